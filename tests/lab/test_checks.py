"""The suites that check the kernels on a GPU: their batches on the emulator, how they read reports, what they found."""

import pandas as pd
import pytest

from pod import kernels
from pod.data import RECORDED
from pod.experiments.checks import build_time, random_batches, sanitizer
from pod.kernels.build import DTYPES
from pod.kernels.sm80 import METHODS
from pod.lab.measure import check_kernels

REPORT = "========= COMPUTE-SANITIZER\nlaunches 90\n========= ERROR SUMMARY: {} errors\n"
RACES = "launches 90\n========= RACECHECK SUMMARY: {} hazards displayed ({} errors, 0 warnings)\n"


def recorded(name):
    return pd.read_csv(RECORDED / "h200" / f"{name}.csv")


def test_runs_cover_the_family():
    ran = list(sanitizer.runs())
    for choices in zip(*(choice.values() for _, choice in ran), strict=True):
        assert len(set(map(str, choices))) in (len(METHODS), 2, 3)
    assert {batch.head_dim for batch, _ in ran} == {64, 128}
    assert {batch.page_size for batch, _ in ran} == {16, 32, None} and {b.dtype for b, _ in ran} == set(DTYPES)


@pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
def test_a_batch_of_it_is_right_and_the_broken_ones_are_not(monkeypatch):
    batch, choice = next(sanitizer.runs())
    sanitizer.launch(batch, choice, device="cpu")
    with pytest.raises(ValueError, match="block_table"):
        sanitizer.launch(batch, choice, sanitizer.PAGES, device="cpu")
    with pytest.raises(RuntimeError, match="out of bounds: .* of q at"):
        sanitizer.launch(batch, choice, sanitizer.BROKEN, device="cpu")
    monkeypatch.setattr("pod.kernels.allowed._check_pages", lambda *_: None)
    sanitizer.launch(batch, choice, sanitizer.PAGES, device="cpu")  # the emulator sees no step out of the pool


@pytest.mark.parametrize("errors", [0, 7])
def test_errors_are_read_from_the_summary(errors):
    assert sanitizer.counted("memcheck", REPORT.format(errors)) == {"launches": 90, "errors": errors}
    assert sanitizer.counted("racecheck", RACES.format(errors, errors)) == {"launches": 90, "errors": errors}
    with pytest.raises(ValueError, match="memcheck: got no summary"):
        sanitizer.counted("memcheck", "Killed")


def test_sanitizer_found_nothing_but_the_broken_batch():
    found = recorded("sanitizer").set_index(["tool", "batches"])
    right = found.xs(sanitizer.RIGHT, level="batches")
    assert set(right.index) == set(sanitizer.TOOLS) and (right.launches == len(list(sanitizer.runs()))).all()
    assert (right.errors == 0).all() and found.errors["memcheck", sanitizer.BROKEN] > 0
    assert found.errors["memcheck", sanitizer.PAGES] == 0 and found.launches["memcheck", sanitizer.PAGES] > 50


def test_wrong_batches_are_counted_and_the_last_is_replayed_longer(monkeypatch):
    seen = []

    def check(batch, choice, seed, replays):
        seen.append((choice["method"], replays))
        return 0.5 + len(seen) / 10, "wrong" if len(seen) == 2 else ""

    monkeypatch.setattr(check_kernels, "check", check)
    monkeypatch.setattr(check_kernels, "_build", lambda *_: None)
    assert check_kernels.checked("lean", 4, seed=0, replays=3) == {"checked": 4, "wrong": 1, "largest_error": 0.9}
    assert seen == [("lean", 3)] * 3 + [("lean", check_kernels.LAST_REPLAYS)]


def test_every_random_batch_was_right():
    found = recorded("random-batches")
    assert len(found) == len(random_batches.cases()) and (found.checked == found.batches).all()
    assert (found.wrong == 0).all() and (found.largest_error <= check_kernels.MARGIN).all()


@pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
def test_build_is_timed_cold_and_from_the_cache(monkeypatch):
    call = build_time.CALL.replace('torch.device("cuda", torch.cuda.current_device())', 'torch.device("cpu")')
    assert call != build_time.CALL
    monkeypatch.setattr(build_time, "CALL", call)
    monkeypatch.setitem(build_time.FAMILIES, "sm_80", ("pod.kernels.fusion", "FUSION"))
    row = build_time.measure({"family": "sm_80", "kind": ""})
    assert row["cached_s"] < row["cold_s"] / 2


def test_build_was_quick_enough():
    found = recorded("build").set_index("family")
    assert found.cold_s["sm_80"] < 90 and found.cold_s["hopper"] < 120 and (found.cached_s < 5).all()
