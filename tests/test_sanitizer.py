"""The suite that runs the kernels under compute-sanitizer: its batches on the emulator, and how it reads reports."""

import pytest

from pod import kernels
from pod.ampere import METHODS
from pod.measure.suites import sanitizer

REPORT = "========= COMPUTE-SANITIZER\nlaunches 90\n========= ERROR SUMMARY: {} errors\n"
RACES = "launches 90\n========= RACECHECK SUMMARY: {} hazards displayed ({} errors, 0 warnings)\n"


def test_runs_cover_the_family():
    ran = list(sanitizer.runs())
    for choices in zip(*(choice.values() for _, choice in ran), strict=True):
        assert len(set(map(str, choices))) in (len(METHODS), 2, 3)
    assert {batch.head_dim for batch, _ in ran} == {64, 128}
    assert {batch.page_size for batch, _ in ran} == {16, 32, None} and {b.dtype for b, _ in ran} == set(kernels.DTYPES)


@pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
def test_a_batch_of_it_is_right_and_the_broken_one_is_not():
    batch, choice = next(sanitizer.runs())
    sanitizer.launch(batch, choice, device="cpu")
    with pytest.raises(ValueError, match="block_table"):
        sanitizer.launch(batch, choice, break_table=True, device="cpu")


@pytest.mark.parametrize("errors", [0, 7])
def test_errors_are_read_from_the_summary(errors):
    assert sanitizer.counted("memcheck", REPORT.format(errors)) == {"launches": 90, "errors": errors}
    assert sanitizer.counted("racecheck", RACES.format(errors, errors)) == {"launches": 90, "errors": errors}
    with pytest.raises(ValueError, match="memcheck: got no summary"):
        sanitizer.counted("memcheck", "Killed")
