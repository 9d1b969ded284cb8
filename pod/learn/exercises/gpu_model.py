"""Your turn in chapter "GPU model": how an SM shares itself out."""

from itertools import takewhile

from pod.learn.exercises.functions import Call, call, gives, shorter, smaller
from pod.learn.judge import Exercise, Hint

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
    SHARES,
    [_case(wishes) for wishes in CASES],
    call,
    {
        "everybody all": Hint(
            "Everybody gets what it asks for, and together that is more than there is of an SM.",
            gives(lambda wishes: wishes),
        ),
        "equal parts": Hint(
            "Equal parts give somebody more than it asked for. It cannot use that, and others could.",
            gives(lambda wishes: [1 / len(wishes)] * len(wishes)),
        ),
        "capped equal parts": Hint(
            "Nobody gets more than its wish, but what the small ones leave is left lying. The others may have it.",
            gives(lambda wishes: [min(wish, 1 / len(wishes)) for wish in wishes]),
        ),
        "in proportion": Hint(
            "In proportion to the wishes the small ones lose as well. On an SM a warp that asks seldom is served "
            "when it asks.",
            lambda o: gives(_proportional)(o) or gives(_stretched)(o),
        ),
        "first come": Hint(
            "The first in the list took all it wanted. The order of the list must not matter.", gives(_in_turn)
        ),
        "one takes all": Hint(
            "One after the other took all that it wanted, and the last ones got nothing. Two with the same wish must "
            "get the same: each at most an equal part of what is left.",
            gives(lambda wishes: _greedily(wishes, False), lambda wishes: _greedily(wishes, True)),
        ),
        "sorted": Hint(
            "These are the right shares in the order of their size. Each must stand where its wish stands.",
            gives(lambda wishes: sorted(_filled(wishes)), lambda wishes: sorted(_filled(wishes), reverse=True)),
        ),
        "shared once": Hint(
            "The rest was shared among the others once, and one of them wants less than that part: what it leaves must "
            "be shared again. Go from the smallest wish to the largest.",
            gives(_once),
        ),
    },
    "`Pace.on_sm` in pod/simulate/gpusim.py is this loop, with warps for workers.",
    lambda random: _case([random.randint(1, 20) / 20 for _ in range(random.randint(1, 6))]),
    smaller(_case, shorter(1, lambda wish: takewhile(lambda simple: simple != wish, (1.0, 0.5, 0.1)))),
)
