"""The suites of chapter 16's kernel: right calls, rows with names of their own, and how ncu's source page is read."""

import pytest

from pod import kernels
from pod.batch import HybridBatch
from pod.experiments.plus34 import single_query
from pod.lab.measure import ncu, peers

torch = pytest.importorskip("torch")
SOURCE_PAGE = """\
"Kernel Name","void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<double>>(int)"
"Address","Source","Warp Stall Sampling (All Samples)","# Samples"
"0x7f1","      EXIT ","1","1"
"Kernel Name","void single_query<__nv_bfloat16, 0>(Params<__nv_bfloat16>)"
"Address","Source","Warp Stall Sampling (All Samples)","# Samples"
"0x7f2","      LDG.E.64 R2,  [R4] ","1,204","9"
"0x7f3","      FFMA R1, R2, R3, R1 ","","0"
"""


def test_batches_fit_a_13b_model():
    for name in single_query.BATCHES:
        batch = single_query.batch(name)
        assert batch.kv_bytes < 12e9 and max(batch.kv_lens) <= 2048, name


@pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
def test_every_idea_is_right_on_a_setting():
    setting = peers.Setting(HybridBatch((1, 1), (37, 90), 2, 2, 128), device="cpu")
    calls, holes = peers.ready(setting, single_query.IDEAS)
    assert holes == {} and list(calls) == list(single_query.IDEAS)


def test_source_page_is_read_kernel_by_kernel(monkeypatch):
    changed = SOURCE_PAGE.replace("6, 0>", "6, 1>").replace("LDG.E.64", "LDS.64")
    one, other = SOURCE_PAGE.splitlines(), changed.splitlines()
    monkeypatch.setattr(ncu, "_ncu", lambda *options: [*one, *one, *other, *other])  # ncu lists each kernel twice
    first, second = ncu.stalls("any")
    assert first == [{"sass": "LDG.E.64 R2, [R4]", "samples": 1204.0}, {"sass": "FFMA R1, R2, R3, R1", "samples": 0.0}]
    assert second == [{"sass": "LDS.64 R2, [R4]", "samples": 1204.0}, first[1]]
