"""Your turn in chapter "waves": the scheduler of a GPU."""

from pod.learn.exercises.functions import Call, call, fewer, gives, shorter, smaller
from pod.learn.judge import Exercise, Hint
from pod.learn.questions import Question
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


def _draw(random) -> Call:
    return _case(random.choices((1, 2, 3, 5, 9), k=random.randint(6, 14)), random.randint(2, 4))


CASES = (
    ([1, 1, 1, 1, 1], 4),
    ([3, 1, 1, 2, 2, 1], 2),
    ([1, 1, 1, 1, 1, 1, 1, 1, 3, 3], 4),
    ([2, 7, 1, 8, 2, 8], 3),
    ([5], 9),
    ([1, 9, 1, 1], 2),
)

last_end = Exercise(
    "last_end",
    CHAPTER,
    LAST_END.strip("\n"),
    [_case(*case) for case in CASES],
    call,
    [
        Hint(
            "the short ones first",
            "Sorted, they come in another order. A GPU takes CTAs as they are numbered.",
            gives(lambda lengths, slots: makespan(sorted(lengths), slots)),
        ),
        Hint(
            "in turn",
            "CTA i went to slot i % slots. It waits for that one even when another is free: take the "
            "slot that is free first.",
            gives(_in_turn),
        ),
        Hint(
            "dealt beforehand",
            "Each slot has its neighbours in the list, dealt before anybody began. A CTA waits for a slot even when "
            "another is free: take the slot that is free first.",
            gives(_in_blocks),
        ),
        Hint(
            "full waves",
            "Here a wave begins when all of the one before has ended. A GPU starts the next CTA as "
            "soon as one slot is free.",
            gives(_in_waves, _by_count),
        ),
        Hint(
            "the long ones first",
            "That is a better order than the one asked for, and section 5 comes to it. A GPU takes "
            "CTAs as they are numbered.",
            gives(lambda lengths, slots: makespan(sorted(lengths, reverse=True), slots)),
        ),
        Hint(
            "who starts last",
            "This is when the CTA ends that starts last. One that started before it may still be running.",
            gives(_when_the_last_ends),
        ),
        Hint(
            "the first to be through",
            "This is when the first slot is free for good. The last one counts: everybody waits for it.",
            gives(_first_free),
        ),
        Hint(
            "one slot",
            "That is all of them in a single slot, one after the other. There are `slots` of them at work.",
            gives(lambda lengths, slots: sum(lengths)),
        ),
        Hint(
            "no last wave",
            "This is the work divided by the slots, as if it could be cut as finely as you please. A "
            "CTA runs in one slot.",
            gives(lambda lengths, slots: sum(lengths) / slots, lambda lengths, slots: -(-sum(lengths) // slots)),
        ),
        Hint(
            "one CTA",
            "This is the longest CTA. There are more of them than slots, and some must wait.",
            gives(lambda lengths, slots: max(lengths)),
        ),
    ],
    "Eight lines, and the staircase, the quarter, and the three ways out all come from them.",
    _draw,
    smaller(_case, shorter(1, fewer(1)), fewer(1)),
)

EXERCISES = (last_end,)
QUESTIONS = {
    "five-tiles-on-four": Question(
        CHAPTER,
        "Four tiles take 1 unit of time on 4 SMs. How long do five take, and eight?",
        {
            "1.25, and 2": "That is the work divided by the SMs. But a tile runs on one SM, to its end.",
            "2, and 2": "The fifth opens a second wave, in which three SMs have nothing to do.",
            "1, and 2": "There are four SMs, and each has one tile at a time here.",
        },
        "2, and 2",
    ),
    "batch-before-the-step": Question(
        CHAPTER,
        "4 CTAs a request, two fit on an SM. After which batch does the step come: on 108 SMs, and on 132?",
        {
            "54, and 66": "2 x 108 / 4, and 2 x 132 / 4.",
            "27, and 33": "That would be one CTA on an SM.",
            "108, and 132": "An SM holds two CTAs, and a request brings four.",
        },
        "54, and 66",
    ),
    "four-ctas-alone": Question(
        CHAPTER,
        "In the last wave 4 CTAs have DRAM to themselves. If its bytes per second were all that limits them, how long "
        "would that wave take?",
        {
            "4/264 of a full one": "They have 4/264 of a full wave's bytes to fetch, at its full rate. On the paper's "
            "A100 it was more than a quarter, so something else limits a CTA that is alone.",
            "about a quarter of a full one": "The paper's A100 took a little more. But by DRAM alone each could draw "
            "66 times its share of a full wave.",
            "as long as a full one": "That holds for tiles that wait for their own SM's arithmetic. DRAM "
            "is everybody's.",
        },
        "4/264 of a full one",
    ),
    "cut-into-pieces": Question(
        CHAPTER,
        "By what factor does cutting every CTA into 2, 4 or 8 pieces shrink the step from 54 to 55?",
        {
            "2, 4, 8": "A piece that is half as long makes a last wave half as long.",
            "not at all": "The last wave is still there, but it is made of shorter pieces.",
            "it is gone at 2": "8 pieces are left over then, and they still need their time.",
        },
        "2, 4, 8",
    ),
    "eight-tiles-together": Question(
        CHAPTER,
        "Five decode tiles, three prefill tiles, four SMs. How long do two kernels take one after the other, and one "
        "kernel with all eight?",
        {
            "2, and 2": "The five alone take two waves, and the three another.",
            "3, and 2": "Three waves, of which two are not full; eight tiles fill two.",
            "3, and 1": "Eight tiles on four SMs are two waves, whatever they compute.",
        },
        "3, and 2",
    ),
}
