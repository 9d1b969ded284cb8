"""Your turn in chapter "waves": the scheduler of a GPU."""

from __future__ import annotations

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint
from pod.schedule.waves import makespan

CHAPTER = "waves"
LAST_END = '''
def last_end(lengths, slots):
    """When the last CTA ends. Each starts, in order, in the slot that is free first; `lengths` are their times."""
    ...
'''


def _in_turn(lengths: list, slots: int) -> float:
    return max(sum(lengths[i::slots]) for i in range(slots))


def _in_waves(lengths: list, slots: int) -> float:
    return sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))


CASES = (
    ([1, 1, 1, 1, 1], 4),
    ([3, 1, 1, 2, 2, 1], 2),
    ([1, 1, 1, 1, 1, 1, 1, 1, 3, 3], 4),
    ([2, 7, 1, 8, 2, 8], 3),
    ([5], 9),
)

last_end = Exercise(
    "last_end",
    CHAPTER,
    LAST_END.strip("\n"),
    [Call(f"{lengths}, slots={slots}", (lengths, slots), makespan(lengths, slots)) for lengths, slots in CASES],
    call,
    [
        Hint(
            "no last wave",
            "This is the work divided by the slots, as if it could be cut as finely as you please. A "
            "CTA runs in one slot.",
            gives(lambda lengths, slots: sum(lengths) / slots),
        ),
        Hint(
            "in turn",
            "CTA i went to slot i % slots. It waits for that one even when another is free: take the "
            "slot that is free first.",
            gives(_in_turn),
        ),
        Hint(
            "full waves",
            "Here a wave begins when all of the one before has ended. A GPU starts the next CTA as "
            "soon as one slot is free.",
            gives(_in_waves),
        ),
        Hint(
            "the long ones first",
            "That is a better order than the one asked for, and section 5 comes to it. A GPU takes "
            "CTAs as they are numbered.",
            gives(lambda lengths, slots: makespan(sorted(lengths, reverse=True), slots)),
        ),
    ],
    "Eight lines, and the staircase, the quarter, and the three ways out all come from them.",
)

EXERCISES, QUESTIONS = (last_end,), {}
