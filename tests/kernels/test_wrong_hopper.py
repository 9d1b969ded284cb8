"""Hopper kernels with a mistake must not pass either."""

import re
from collections import Counter

import pytest
from wrong.hopper import CASES, MISTAKES, SOURCE, outcome

from pod.lab import mutate

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def kernels():
    return mutate.kernels(MISTAKES, SOURCE)


def test_kernel_in_which_no_mistake_is_chosen_is_right(kernels):
    kernels.choose(-1)
    assert outcome(kernels) == "right result"


@pytest.mark.parametrize("number, mistake", list(enumerate(MISTAKES)), ids=[m.name for m in MISTAKES])
def test_kernel_with_a_mistake_is_caught(kernels, number, mistake):
    kernels.choose(number)
    text = outcome(kernels)
    assert re.search(mistake.caught, text), text


# These go unmissed, each for a reason: the first keep a warp together, which the next elect.sync does as well; the
# turns of prefill are for speed; and the next product brings the warps together, too, before they write P.
TOGETHER = {("common", "load_block", 0), ("common", "for_pages", 0), ("common", "for_pages", 1),
            ("prefill", "load_q", 1), ("prefill", "stop", 0), ("decode", "announce", 1)}  # fmt: skip
SPARE = {*TOGETHER, ("prefill", "consume", 1), ("decode", "merge", 1)}
# Caches of 8 bits have code of their own, which these cases do not run: see test_emulator_hybrid90_8.py.
EIGHT_BITS = {("prefill", "run"), ("prefill", "stop_widening"), ("prefill", "widen"),
              ("prefill", "queries_as_halves"), ("decode", "order")}  # fmt: skip


def test_every_barrier_but_the_known_eight_is_missed_when_it_goes():
    library, seen = mutate.numbered(SOURCE), Counter()
    for barrier in mutate.barriers(SOURCE):
        name = (barrier.file.removeprefix("sm90/").removesuffix(".cuh"), barrier.function)
        place = (*name, seen[name])
        seen[name] += 1
        if name in EIGHT_BITS:
            continue
        library.choose(barrier.number)
        if place in SPARE:
            text = outcome(library, CASES[:2])
            assert text == "right result", f"{place}: {text}"
        else:
            text = outcome(library)
            assert re.search("race: |no fence.proxy.async between|deadlock: ", text), f"{place}: {text}"
    assert set(SPARE) <= {(*name, i) for name, count in seen.items() for i in range(count)} and seen.total() == 35
