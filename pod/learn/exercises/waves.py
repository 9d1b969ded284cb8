"""Your turn in chapter "waves": the scheduler of a GPU."""

from pod.learn.exercises.functions import Call, call, fewer, gives, shorter, smaller
from pod.learn.judge import Exercise, Hint
from pod.schedule.waves import makespan

LAST_END = '''
def last_end(lengths, slots):
    """When the last CTA ends. Each starts, in order, in the slot that is free first; `lengths` are their times."""
    ...
'''


def _in_waves(lengths: list, slots: int) -> float:
    return sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))


def _by_count(lengths: list, slots: int) -> float:
    return -(-len(lengths) // slots) * max(lengths)


def _when_the_last_ends(lengths: list, slots: int) -> float:
    ends = [0.0] * slots
    for length in lengths:
        slot = ends.index(min(ends))
        ends[slot] += length
    return ends[slot]


def _in_blocks(lengths: list, slots: int) -> float:
    each = -(-len(lengths) // slots)
    return max(sum(lengths[i : i + each]) for i in range(0, len(lengths), each))


def _first_free(lengths: list, slots: int) -> float:
    ends = [0.0] * slots
    for length in lengths:
        ends[ends.index(min(ends))] += length
    return min(ends)


def _case(lengths: list, slots: int) -> Call:
    return Call(f"{lengths}, slots={slots}", (lengths, slots), makespan(lengths, slots))


CASES = (
    ([1, 1, 1, 1, 1], 4),
    ([3, 1, 1, 2, 2, 1], 2),
    ([1, 1, 1, 1, 1, 1, 1, 1, 3, 3], 4),
    ([2, 7, 1, 8, 2, 8], 3),
    ([5], 9),
    ([1, 9, 1, 1], 2),
)

last_end = Exercise(
    LAST_END,
    [_case(*case) for case in CASES],
    call,
    {
        "the short ones first": Hint(
            "Sorted, they come in another order. A GPU takes CTAs as they are numbered.",
            gives(lambda lengths, slots: makespan(sorted(lengths), slots)),
        ),
        "in turn": Hint(
            "CTA i went to slot i % slots. It waits for that one even when another is free: take the "
            "slot that is free first.",
            gives(lambda lengths, slots: max(sum(lengths[i::slots]) for i in range(slots))),
        ),
        "dealt beforehand": Hint(
            "Each slot has its neighbours in the list, dealt before anybody began. A CTA waits for a slot even when "
            "another is free: take the slot that is free first.",
            gives(_in_blocks),
        ),
        "full waves": Hint(
            "Here a wave begins when all of the one before has ended. A GPU starts the next CTA as "
            "soon as one slot is free.",
            gives(_in_waves, _by_count),
        ),
        "the long ones first": Hint(
            "That is a better order than the one asked for, and section 5 comes to it. A GPU takes "
            "CTAs as they are numbered.",
            gives(lambda lengths, slots: makespan(sorted(lengths, reverse=True), slots)),
        ),
        "who starts last": Hint(
            "This is when the CTA ends that starts last. One that started before it may still be running.",
            gives(_when_the_last_ends),
        ),
        "the first to be through": Hint(
            "This is when the first slot is free for good. The last one counts: everybody waits for it.",
            gives(_first_free),
        ),
        "one slot": Hint(
            "That is all of them in a single slot, one after the other. There are `slots` of them at work.",
            gives(lambda lengths, slots: sum(lengths)),
        ),
        "no last wave": Hint(
            "This is the work divided by the slots, as if it could be cut as finely as you please. A "
            "CTA runs in one slot.",
            gives(lambda lengths, slots: sum(lengths) / slots, lambda lengths, slots: -(-sum(lengths) // slots)),
        ),
        "one CTA": Hint(
            "This is the longest CTA. There are more of them than slots, and some must wait.",
            gives(lambda lengths, slots: max(lengths)),
        ),
    },
    "Eight lines, and the staircase, the quarter, and the three ways out all come from them.",
    lambda random: _case(random.choices((1, 2, 3, 5, 9), k=random.randint(6, 14)), random.randint(2, 4)),
    smaller(_case, shorter(1, fewer(1)), fewer(1)),
)
