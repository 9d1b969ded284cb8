"""Your turn in chapter "online softmax": merge two states."""

import numpy as np

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint

MERGE = '''
def merge(a, b):
    """Two states (m, l, O), each of keys of its own, as one."""
    ...
'''


def _merged(a, b):
    m = max(a[0], b[0])
    fade = [np.exp(x[0] - m) if x[1] else 0.0 for x in (a, b)]
    return m, fade[0] * a[1] + fade[1] * b[1], fade[0] * a[2] + fade[1] * b[2]


def _of(*scores: float) -> tuple:
    """The state of keys with these scores, and values 1, 2, 3 ... in two columns."""
    if not scores:
        return -np.inf, 0.0, np.zeros(2)
    m, p = max(scores), np.exp(np.array(scores) - max(scores))
    return m, float(p.sum()), p @ np.arange(1.0, 1 + 2 * len(scores)).reshape(-1, 2)


def _case(a: tuple, b: tuple) -> Call:
    said = " and ".join(f"keys with scores {', '.join(f'{x:g}' for x in s)}" if s else "no keys" for s in (a, b))
    return Call(said, (_of(*a), _of(*b)), _merged(_of(*a), _of(*b)))


def _o_as_it_is(a, b):
    m, l, _ = _merged(a, b)
    return m, l, a[2] + b[2]


def _wrong_way(a, b):
    m = max(a[0], b[0])
    return m, np.exp(m - a[0]) * a[1] + np.exp(m - b[0]) * b[1], np.exp(m - a[0]) * a[2] + np.exp(m - b[0]) * b[2]


def _divided(a, b):
    m, l, O = _merged(a, b)
    return m, l, O / (l or 1)


def _one_side(a, b):
    m = max(a[0], b[0])
    return m, np.exp(a[0] - m) * a[1] + b[1], np.exp(a[0] - m) * a[2] + b[2]


def _averaged(a, b):
    """As if O were divided already."""
    m, l, _ = _merged(a, b)
    fade = [np.exp(x[0] - m) * x[1] if x[1] else 0.0 for x in (a, b)]
    return m, l, (fade[0] * a[2] + fade[1] * b[2]) / (l or 1)


def _twice(a, b):
    """As _averaged, and never divided."""
    m, l, O = _averaged(a, b)
    return m, l, O * l


def _added(a, b):
    m = a[0] + b[0]
    return m, np.exp(a[0] - m) * a[1] + np.exp(b[0] - m) * b[1], np.exp(a[0] - m) * a[2] + np.exp(b[0] - m) * b[2]


merge = Exercise(
    MERGE,
    [
        _case((1, 3), (5, 2)),
        _case((5, 2), (1, 3)),
        _case((9999, 10000), (-10000,)),
        _case((2, 0), ()),
        _case((), (-7,)),
        _case((), ()),
    ],
    call,
    {
        "nothing and nothing": Hint(
            "Two states without keys have m = -inf, and -inf - (-inf) is not a number. Their merge is"
            " such a state again.",
            lambda o: np.isnan(o.values[1][1]),
        ),
        "one side only": Hint(
            "Only a was rescaled. Either of the two may be the one with the smaller m.", gives(_one_side)
        ),
        "nothing rescaled": Hint(
            "l and O are sums of exp(s - m), each with the m of its own state. Bring both to the "
            "larger m before you add.",
            gives(lambda a, b: (max(a[0], b[0]), a[1] + b[1], a[2] + b[2])),
        ),
        "only l": Hint(
            "l is right. O holds the same exponentials, and must fade by the same factors.", gives(_o_as_it_is)
        ),
        "the wrong way round": Hint(
            "The state with the smaller m must shrink, and it grew: its factor is exp(its m - the "
            "larger m), at most 1.",
            gives(_wrong_way),
        ),
        "divided": Hint("O is the numerator; it is divided by l once, when all keys have been seen.", gives(_divided)),
        "averaged": Hint(
            "That averages two outputs. O is not divided yet: it is a sum, like l, and fades like l.", gives(_averaged)
        ),
        "weighted twice": Hint(
            "O came in times l. The weights are in it already: it is a sum of them, as l is, and fades by the same "
            "factor.",
            gives(_twice),
        ),
        "maxima added": Hint(
            "Sums add up, maxima do not: the largest score of both is the larger of the two.", gives(_added)
        ),
        "no keys have no zero": Hint(
            "The largest of no scores is -inf, not 0: with 0, keys with scores below it would never be the maximum.",
            lambda o: np.isneginf(o.values[0][0]) and o.values[1][0] == 0,
        ),
        "out of range": Hint(
            "exp of a score of 10,000 is in no format. Only differences to the larger m may go into exp.",
            lambda o: (
                isinstance(o.error, OverflowError) or not np.isfinite(o.values[1][1]) and max(o.values[0][0], 0) > 88
            ),
        ),
    },
    "Whoever can do this can cut attention anywhere: FlashDecoding's last kernel is this function.",
    lambda random: _case(*(tuple(random.randint(-90, 90) for _ in range(random.randint(1, 4))) for _ in range(2))),
)
