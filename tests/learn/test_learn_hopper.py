"""What holds for the exercises of chapter 17 in every case: their solutions against a ring that runs, the makespan of
whole tiles, and the shares that the chapter draws."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.experiments.hopper import hopper_peers, hopper_roofs
from pod.hardware import H200
from pod.learn import judge
from pod.learn.exercises import hopper_parts
from pod.schedule.waves import makespan
from tests.solutions import solutions


def solved(name: str):
    names: dict = {}
    exec(compile(solutions()[name][0][2], "<cell>", "exec"), names)
    return names[name]


class Barrier:
    """An mbarrier: it counts arrivals, and of its phases knows whether the latest complete one was odd."""

    def __init__(self, arrivals: int) -> None:
        self.expected, self.arrived, self.complete = arrivals, 0, 1

    def arrive(self) -> None:
        self.arrived = (self.arrived + 1) % self.expected
        self.complete ^= self.arrived == 0

    def lets(self, parity: int) -> bool:
        return parity == self.complete


def read_by_all(ring, copies: int, stages: int, readers: int, random: Random) -> bool:
    """Whether every reader reads every copy, in whatever order the threads come by; False when all wait."""
    filled, emptied = ([Barrier(n) for _ in range(stages)] for n in (1, readers))
    holds, at = [None] * stages, [0] * (readers + 1)  # what lies in a stage; the next copy of each, the producer last
    while waiting := [who for who in range(readers + 1) if at[who] < copies]:
        able = [who for who in waiting if _lets(ring(at[who], stages), who == readers, filled, emptied)]
        if not able:
            return False
        who = random.choice(able)
        stage = ring(at[who], stages)[0]
        if who == readers:
            holds[stage] = at[who]
            filled[stage].arrive()
        elif holds[stage] != at[who]:
            return False
        else:
            emptied[stage].arrive()
        at[who] += 1
    return True


def _lets(place: tuple, producer: bool, filled: list[Barrier], emptied: list[Barrier]) -> bool:
    stage, to_read, to_copy = place
    return emptied[stage].lets(to_copy) if producer else filled[stage].lets(to_read)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 3), st.randoms())
def test_every_reader_of_a_ring_reads_every_copy(copies, stages, readers, random):
    assert read_by_all(solved("ring"), copies, stages, readers, random)


WRONG = [hint for hint, *_ in solutions()["ring"] if hint and hint != "phases by their number"]


@pytest.mark.parametrize("hint", WRONG)
def test_a_wrong_parity_is_a_ring_that_stops_or_is_read_too_soon(hint):
    (text,) = (text for name, _, text in solutions()["ring"] if name == hint)
    names: dict = {}
    exec(text, names)
    cases = [(stages, seed) for stages in (2, 3) for seed in range(20)]
    assert not all(_survives(names["ring"], stages, Random(seed)) for stages, seed in cases)


def _survives(ring, stages: int, random: Random) -> bool:
    try:
        return read_by_all(ring, 12, stages, 2, random)
    except IndexError:  # a stage that the ring does not have
        return False


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 8), st.integers(1, 4))
def test_cutting_well_is_never_worse_than_not_cutting_nor_better_than_the_floor(tiles, sms, price):
    end = hopper_parts.ends(tiles, sms, price, solved("part_length")(tiles, sms, price))
    whole = makespan(sorted(tiles, reverse=True), sms)
    assert sum(tiles) / sms <= end * (1 + 1e-9) and end <= whole * (1 + 1e-9)
    assert end == pytest.approx(hopper_parts.best(tiles, sms, price))


def test_the_nearest_roof_is_the_one_that_the_chapter_draws():
    drawn = hopper_roofs.table().query("state == 'steady'").set_index("batch")
    for case, seen in zip(hopper_peers.cases(), hopper_peers.table().itertuples(), strict=True):
        count, smem = hopper_roofs._work(case)
        flops = count.wide + count.wide_registers + count.narrow + count.narrow_16
        work = {"tensor": 1e12 * flops, "dram": 1e12 * count.dram, "l2": 1e12 * count.into_sms, "smem": smem}
        from_l2 = 1e12 * hopper_roofs.fastest_from_l2()
        a_second = {"dram": hopper_roofs.fastest_read(), "l2": from_l2}
        a_cycle = {"tensor": hopper_roofs.flops_a_cycle(), "smem": 128 * H200.sms}
        row = drawn.loc[seen.batch]
        roof, share = solved("nearest_roof")(work, a_second, a_cycle, row.mhz, row.ms)
        assert roof == max(work, key=lambda name: row[name]) and math.isclose(100 * share, row[roof], rel_tol=1e-6)


def test_a_length_is_judged_by_when_the_last_sm_ends():
    exercise = judge.exercises()["part_length"]

    def longest(tiles, sms, price):
        """Any of equally good ones will do."""
        return min(range(max(tiles), 0, -1), key=lambda n: hopper_parts.ends(tiles, sms, price, n))

    assert judge.judge(exercise, longest).state == "right"
    assert "and it ends after" in judge.judge(exercise, lambda *_: 10**6).text
