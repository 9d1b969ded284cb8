"""Waves: a GPU starts CTAs in order, each in the first free slot, and a kernel ends with its last CTA.

Work is counted in the time that one CTA takes while all slots are busy.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple


class Ran(NamedTuple):
    """One CTA: the slot it had, and from when to when. Slot s is on SM s % sms, since SMs are filled breadth-first."""

    cta: int
    slot: int
    start: float
    end: float


def waves(ctas: int, slots: int) -> int:
    """Rounds that CTAs of equal length take."""
    _check(slots)
    return -(-ctas // slots)


def last_wave(ctas: int, slots: int) -> int:
    """CTAs in the last round."""
    return ctas - (waves(ctas, slots) - 1) * slots


def steady(active: int) -> float:
    """Every CTA has all it needs in its own SM, however many others run: tiles that wait for tensor cores."""
    return 1.0


def shared_dram(slots: int, reach: float) -> Callable[[int], float]:
    """CTAs that share the DRAM. Fewer CTAs get more each, but no CTA draws more than `reach` times its share in a full
    wave: it has only so many loads in flight."""
    if reach < 1:
        raise ValueError(f"reach: got {reach!r}, allowed is at least 1")
    return lambda active: min(reach, slots / active)


def run(work: Sequence[float], slots: int, speed: Callable[[int], float] = steady) -> list[Ran]:
    """When each CTA runs, in order of their starts; `speed(active)` is the pace of each while `active` CTAs run."""
    _check(slots)
    if bad := [w for w in work if not w > 0]:
        raise ValueError(f"work: got {bad[0]!r}, allowed are numbers above 0")
    free, busy, ran = list(range(slots)), [], []  # heaps: the lowest free slot, the first CTA to end
    now = done = 0.0  # the clock, and the work that a CTA which began at 0 would have done: equal pace for all
    for cta, length in enumerate(work):
        if not free:
            now, done = _finish_next(busy, ran, free, now, done, speed)
        heappush(busy, (done + length, cta, heappop(free), now))
    while busy:
        now, done = _finish_next(busy, ran, free, now, done, speed)
    return sorted(ran)


def _finish_next(busy: list, ran: list, free: list, now: float, done: float, speed) -> tuple[float, float]:
    until, cta, slot, start = heappop(busy)
    now += (until - done) / speed(len(busy) + 1)
    ran.append(Ran(cta, slot, start, now))
    heappush(free, slot)
    return now, until


def makespan(work: Sequence[float], slots: int, speed: Callable[[int], float] = steady) -> float:
    """When the last CTA ends."""
    return max((r.end for r in run(work, slots, speed)), default=0.0)


def _check(slots: int) -> None:
    if slots < 1:
        raise ValueError(f"slots: got {slots!r}, allowed is at least 1")
