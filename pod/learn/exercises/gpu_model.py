"""Your turn in chapter "GPU model": how an SM shares itself out."""

from itertools import takewhile

from pod.learn.exercises.functions import Call, call, gives, shorter, smaller
from pod.learn.judge import Exercise, Hint
from pod.learn.questions import Question

CHAPTER = "gpu_model"
SHARES = '''
def shares(wishes):
    """What each worker gets of an SM, in all at most 1 and nobody more than its wish; who wants little gets it."""
    ...
'''


def _filled(wishes: list[float]) -> list[float]:
    """Water-filling: the lowest wishes first, each at most an equal part of what is left."""
    got, left = [0.0] * len(wishes), 1.0
    order = sorted(range(len(wishes)), key=wishes.__getitem__)
    for rank, i in enumerate(order):
        got[i] = min(wishes[i], left / (len(wishes) - rank))
        left -= got[i]
    return got


def _in_turn(wishes: list[float]) -> list[float]:
    got, left = [], 1.0
    for wish in wishes:
        got.append(min(wish, left))
        left -= got[-1]
    return got


def _proportional(wishes: list[float]) -> list[float]:
    return [wish / max(1, sum(wishes)) for wish in wishes]


def _stretched(wishes: list[float]) -> list[float]:
    return [wish / sum(wishes) for wish in wishes]


def _once(wishes: list[float]) -> list[float]:
    """What the small ones leave is shared once, and nobody looks whether that is more than a wish."""
    part = 1 / len(wishes)
    small = [w for w in wishes if w <= part]
    rest = (1 - sum(small)) / max(1, len(wishes) - len(small))
    return [w if w <= part else rest for w in wishes]


def _greedily(wishes: list[float], largest: bool) -> list[float]:
    """Whoever has the largest (or smallest) wish takes it, then the next."""
    got, left = [0.0] * len(wishes), 1.0
    for i in sorted(range(len(wishes)), key=wishes.__getitem__, reverse=largest):
        got[i] = min(wishes[i], left)
        left -= got[i]
    return got


def _case(wishes: list[float]) -> Call:
    return Call(f"{wishes}", (wishes,), _filled(wishes))


def _draw(random) -> Call:
    return _case([random.randint(1, 20) / 20 for _ in range(random.randint(1, 6))])


CASES = (
    [0.7, 0.1],
    [0.9, 0.9],
    [0.2, 0.3],
    [0.9, 0.1, 0.9],
    [0.35, 0.05, 1.0, 1.0],
    [1.0],
    [0.3, 0.3, 0.3, 0.3],
    [0.05, 0.24, 0.9, 0.29, 0.9],
)

shares = Exercise(
    "shares",
    CHAPTER,
    SHARES.strip("\n"),
    [_case(wishes) for wishes in CASES],
    call,
    [
        Hint(
            "everybody all",
            "Everybody gets what it asks for, and together that is more than there is of an SM.",
            gives(lambda wishes: wishes),
        ),
        Hint(
            "equal parts",
            "Equal parts give somebody more than it asked for. It cannot use that, and others could.",
            gives(lambda wishes: [1 / len(wishes)] * len(wishes)),
        ),
        Hint(
            "capped equal parts",
            "Nobody gets more than its wish, but what the small ones leave is left lying. The others may have it.",
            gives(lambda wishes: [min(wish, 1 / len(wishes)) for wish in wishes]),
        ),
        Hint(
            "in proportion",
            "In proportion to the wishes the small ones lose as well. On an SM a warp that asks seldom is served "
            "when it asks.",
            lambda o: gives(_proportional)(o) or gives(_stretched)(o),
        ),
        Hint(
            "first come",
            "The first in the list took all it wanted. The order of the list must not matter.",
            gives(_in_turn),
        ),
        Hint(
            "one takes all",
            "One after the other took all that it wanted, and the last ones got nothing. Two with the same wish must "
            "get the same: each at most an equal part of what is left.",
            gives(lambda wishes: _greedily(wishes, False), lambda wishes: _greedily(wishes, True)),
        ),
        Hint(
            "sorted",
            "These are the right shares in the order of their size. Each must stand where its wish stands.",
            gives(lambda wishes: sorted(_filled(wishes)), lambda wishes: sorted(_filled(wishes), reverse=True)),
        ),
        Hint(
            "shared once",
            "The rest was shared among the others once, and one of them wants less than that part: what it leaves must "
            "be shared again. Go from the smallest wish to the largest.",
            gives(_once),
        ),
    ],
    "`Pace.on_sm` in pod/simulate/gpusim.py is this loop, with warps for workers.",
    _draw,
    smaller(_case, shorter(1, lambda wish: takewhile(lambda simple: simple != wish, (1.0, 0.5, 0.1)))),
)

EXERCISES = (shares,)

QUESTIONS = {
    "a-tile-on-every-sm": Question(
        CHAPTER,
        "One tile of a prompt, 128 query rows against 4,224 keys, alone on an empty H200. Then 132 such tiles, one "
        "on every SM. How many times longer will the 132 take?",
        {
            "132 times": "That is what one division says: 132 times the FLOPs.",
            "about 4 times": "Nothing is in their way: each has an SM of its own, and prefill hardly needs DRAM.",
            "as long": "131 SMs had nothing to do before.",
        },
        "as long",
    ),
    "beside-three-decodes": Question(
        CHAPTER,
        "Four CTAs fit on an SM: one prefill tile and three of decode, on every SM alike. Decode needs less than "
        "half of the SM's time. How fast is the prefill tile, in % of its pace alone?",
        {
            "100": "The SM has time for it. But a tile needs bytes, too, and memory has a queue.",
            "about 75": "That is what two decode CTAs leave it.",
            "under 50": "In the model most of the tile's reads are hits in L2, and hits wait behind decode's misses.",
        },
        "under 50",
    ),
    "slowest-of-three": Question(
        CHAPTER,
        "One after the other (`serial`), one grid with the prefill tiles first (`cta`), or by tickets (`pod`): which "
        "is the slowest?",
        {
            "serial": "Two kernels, and nothing overlaps. But each of them ends evenly.",
            "cta": "Prefill fills all slots first, so nothing overlaps, and the ragged pieces of decode at the end "
            "cost time that serial's even ones do not.",
            "pod": "It mixes, and is the fastest.",
        },
        "cta",
    ),
    "order-of-five": Question(
        CHAPTER,
        "Ten percent were our bar for the median error. In how many batches of 100 will the model put the five "
        "methods in the right order? Two methods whose times differ by less than 5 % may stand in either.",
        {
            "about 50": "So it is where every pair of methods counts, however close: in 49.",
            "about 75": "Pairs that differ by 5 % or more mostly differ by more than the model's error.",
            "more than 90": "In 93. (The fastest method is named rightly in 89, where close ones count, too.)",
        },
        "more than 90",
    ),
    "ranges-beside-a-chunk": Question(
        CHAPTER,
        "Equal ranges of decode beside a chunk, instead of pieces that shrink: faster or slower?",
        {
            "faster, by some percent": "Alone they all end together. Beside prefill nobody knows which slot falls free "
            "when.",
            "the same": "Work and kernel are the same, but who starts late with a long range ends late.",
            "slower, by some percent": "Presumably a warp that starts late ends late, as ranges are as long as a run.",
        },
        "slower, by some percent",
    ),
    "who-gains-more": Question(
        CHAPTER,
        "By the model, which gains more from POD over the same kernels one after the other, in the mean over 60 "
        "batches of the sweep: the A100 or the H200?",
        {
            "the A100": "Its decode leaves more of each SM. But only in a narrow window around equal halves does the "
            "model say so, and in a wider one the difference is gone.",
            "the H200": "Bytes have grown faster than what an SM can issue, so its decode leaves less of each SM.",
            "neither, in the mean": "30 % on either. Which one leads for equal halves depends on the window that is "
            "taken.",
        },
        "neither, in the mean",
    ),
}
