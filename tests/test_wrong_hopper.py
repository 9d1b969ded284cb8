"""Hopper kernels with a mistake must not pass either."""

import re
from collections import Counter

import pytest
from wrong.hopper import CASES, MISTAKES, SOURCE, outcome

from pod import broken

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def kernels():
    return broken.kernels(MISTAKES, SOURCE)


def test_kernel_in_which_no_mistake_is_chosen_is_right(kernels):
    kernels.choose(-1)
    assert outcome(kernels) == "right result"


@pytest.mark.parametrize("number, mistake", list(enumerate(MISTAKES)), ids=[m.name for m in MISTAKES])
def test_kernel_with_a_mistake_is_caught(kernels, number, mistake):
    kernels.choose(number)
    text = outcome(kernels)
    assert re.search(mistake.caught, text), text


# These go unmissed, each for a reason. The first keep a warp together, which the next elect.sync does as well; where
# parts are merged, a fence and the counter's own order do the same; the turns of prefill are for speed.
TOGETHER = {("load_block", 0), ("for_pages", 0), ("load_q", 1), ("stop", 0), ("produce", 1)}
TWICE = {("merge of prefill", 0), ("merge of prefill", 3), ("merge of decode", 0), ("merge of decode", 2)}
SPARE = {*TOGETHER, *TWICE, ("consume of prefill", 0)}


def test_every_barrier_but_the_known_ten_is_missed_when_it_goes():
    library, seen = broken.numbered(SOURCE), Counter()
    for barrier in broken.barriers(SOURCE):
        side = barrier.file.removeprefix("sm90/").removesuffix(".cuh")
        name = f"{barrier.function} of {side}" if barrier.function in ("merge", "consume") else barrier.function
        place = (name, seen[name])
        seen[name] += 1
        library.choose(barrier.number)
        if place in SPARE:
            text = outcome(library, CASES[:2])
            assert text == "right result", f"{place}: {text}"
        else:
            text = outcome(library)
            assert re.search("race: |no fence.proxy.async between", text), f"{place}: {text}"
    assert set(SPARE) <= {(name, i) for name, count in seen.items() for i in range(count)} and seen.total() == 25
