"""Kernels with a mistake must not pass: the emulator reports them, or their result is wrong."""

import re

import pytest
from wrong import MISTAKES, Mistake, Outcome, kernel


def test_kernel_without_a_mistake_is_right_twice_in_a_row():
    outcome = Outcome(kernel(None))
    assert outcome.text == "right result", outcome.text
    assert outcome.error < 0.01


def test_mistake_that_no_longer_matches_the_source_is_an_error(tmp_path):
    (tmp_path / "x.cuh").write_text("a b a")
    with pytest.raises(ValueError, match="'a' 2 times"):
        Mistake("twice", "x.cuh", "a", "c", "").apply(tmp_path)
    with pytest.raises(ValueError, match="'d' 0 times"):
        Mistake("gone", "x.cuh", "d", "c", "").apply(tmp_path)
    Mistake("once", "x.cuh", "b", "c", "").apply(tmp_path)
    assert (tmp_path / "x.cuh").read_text() == "a c a"


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m.name for m in MISTAKES])
def test_kernel_with_a_mistake_is_caught(mistake):
    outcome = Outcome(kernel(mistake))
    assert re.search(mistake.caught, outcome.text), outcome.text
