"""python -m pod trace: a picture and a file for Perfetto."""

import json
from types import SimpleNamespace

import pytest

from pod import kernels
from pod.__main__ import main
from pod.batch import HybridBatch
from pod.lab.trace import record

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)


def test_trace_draws_and_writes_events_in_microseconds(tmp_path, capsys):
    assert main(["trace", "--batch", "toy", "--out", str(tmp_path)]) == 0
    assert "SMs that held both: 4 of 4" in capsys.readouterr().out
    assert (tmp_path / "trace-pod-toy.png").read_bytes().startswith(b"\x89PNG")
    events = json.loads((tmp_path / "trace-pod-toy.json").read_text())["traceEvents"]
    work = [e for e in events if e["ph"] == "X"]
    assert {e["cat"] for e in work} == {"prefill", "decode"} and {e["pid"] for e in work} == {0, 1, 2, 3}
    assert min(e["ts"] for e in work) == 0 and 10 < max(e["ts"] + e["dur"] for e in work) < 100_000
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {f"SM {i}" for i in range(4)}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_trace_of_a_large_batch_needs_a_gpu(tmp_path, refused):
    assert "--batch: got 'C1', allowed without a GPU is 'toy'" in refused("trace", "--batch", "C1", "--out", tmp_path)


def test_a_card_has_the_sms_that_it_has(tmp_path, refused, monkeypatch):
    monkeypatch.setattr(kernels, "mode", lambda: SimpleNamespace(name="gpu", reason=""))
    assert "--sms: got 8, allowed without a GPU" in refused("trace", "--sms", 8, "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_trace_refuses_what_its_kernel_would_leave_out():
    with pytest.raises(ValueError, match="^window: got 9, allowed for method 'hopper' alone"):
        record(HybridBatch((1,), (20,), 2, 1, 64, window=9))
