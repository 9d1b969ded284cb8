"""Kernels with a mistake must not pass: the emulator reports them, or their result is wrong."""

import re
from collections import Counter

import pytest
from wrong import MISTAKES

from pod.lab import mutate
from pod.lab.mutate import Mistake, Outcome, kernel


def test_kernel_without_a_mistake_is_right_twice_in_a_row():
    outcome = Outcome(kernel())
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


def test_mistakes_that_overlap_cannot_share_a_library():
    rescaled = Mistake("all of a line", mutate.POD.synced[1], "o[r][j][e] *= fade[r][e / 2];", ";")
    part = Mistake("a part of it", mutate.POD.synced[1], "fade[r][e / 2]", "1")
    with pytest.raises(ValueError, match="another change begins inside it"):
        mutate.kernels((rescaled, part), mutate.POD)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m.name for m in MISTAKES])
def test_kernel_with_a_mistake_is_caught(mistake):
    outcome = Outcome(kernel(mistake))
    assert re.search(mistake.caught, outcome.text), outcome.text


SPARE = {("broadcast", 0), ("broadcast", 2), ("run", 0)}  # others stand close enough; chapter 08 says which


def test_every_barrier_but_the_known_three_is_missed_when_it_goes():
    assert mutate.without(None).text == "right result"
    seen = Counter()
    for barrier in mutate.barriers():
        place = (barrier.function, seen[barrier.function])
        seen[barrier.function] += 1
        text = mutate.without(barrier).text
        if place in SPARE:
            assert text == "right result", f"{place}: {text}"
        else:
            assert re.search("race: |un-awaited copy: ", text), f"{place}: {text}"
    assert seen == {"assign": 2, "broadcast": 3, "run": 1, "write_out": 2, "step": 2, "merge_if_last": 2}
