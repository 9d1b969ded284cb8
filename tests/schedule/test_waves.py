"""CTAs in slots: counts, order, no slot used twice at once, and the two laws of speed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod.schedule.waves import last_wave, makespan, run, shared_dram, steady, waves

WORK = st.lists(st.floats(0.1, 10), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("ctas", "slots", "rounds", "last"), [(4, 4, 1, 4), (5, 4, 2, 1), (216, 216, 1, 216), (220, 216, 2, 4)]
)
def test_equal_ctas_come_in_waves(ctas, slots, rounds, last):
    assert (waves(ctas, slots), last_wave(ctas, slots)) == (rounds, last)
    ran = run([1.0] * ctas, slots)
    assert max(r.end for r in ran) == rounds
    assert sum(r.end == rounds for r in ran) == last


@given(WORK, st.integers(1, 8), st.floats(1, 8))
def test_no_slot_holds_two_ctas_at_once_and_none_waits_beside_a_free_one(work, slots, reach):
    ran = run(work, slots, shared_dram(slots, reach))
    assert [r.cta for r in ran] == list(range(len(work)))
    assert all(a.start <= b.start for a, b in zip(ran, ran[1:], strict=False))
    for r in ran:
        running = [o for o in ran if o.start <= r.start < o.end and o is not r]
        assert r.slot not in {o.slot for o in running}
        before = [o for o in ran if o.start < r.start < o.end]
        assert r.start == 0 or len(before) < slots
        if r.start > 0:  # it started when some other CTA ended
            assert any(o.end == r.start for o in ran)


@given(WORK, st.integers(1, 8))
def test_at_a_steady_pace_every_cta_takes_its_own_time(work, slots):
    assert all(r.end - r.start == pytest.approx(work[r.cta]) for r in run(work, slots, steady))


@given(WORK, st.integers(1, 8), st.floats(1, 8))
def test_dram_never_delivers_more_than_a_full_wave_draws(work, slots, reach):
    time = makespan(work, slots, shared_dram(slots, reach))
    assert time >= sum(work) / slots * (1 - 1e-9) and time >= max(work) / reach * (1 - 1e-9)
    assert time <= makespan(work, slots) * (1 + 1e-9), "sharing can only be faster than a fixed pace"


@pytest.mark.parametrize("reach", [1, 2, 4, 8])
def test_one_cta_too_many_costs_what_its_reach_says(reach):
    full, more = ([1.0] * n for n in (216, 220))
    speed = shared_dram(216, reach)
    assert makespan(full, 216, speed) == pytest.approx(1)
    assert makespan(more, 216, speed) == pytest.approx(1 + 1 / reach)


def test_a_long_remainder_is_limited_by_dram_not_by_reach():
    assert makespan([1.0] * (216 + 108), 216, shared_dram(216, 4)) == pytest.approx(1.5)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: run([1.0], 0), "slots: got 0"),
    (lambda: run([1.0, 0.0], 2), "work: got 0.0"),
    (lambda: waves(3, -1), "slots: got -1"),
    (lambda: shared_dram(4, 0.5), "reach: got 0.5"),
])  # fmt: skip
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
