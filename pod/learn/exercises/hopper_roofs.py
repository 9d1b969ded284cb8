"""Your turn in chapter "POD on Hopper": which of several roofs a batch is nearest to."""

from collections.abc import Callable
from copy import deepcopy

from pod.hardware import H200
from pod.learn.exercises.functions import Call, gives, plain, same
from pod.learn.judge import Exercise, Hint, Outcome

NEAREST_ROOF = '''
def nearest_roof(work, a_second, a_cycle, mhz, ms):
    """The roof that a batch is nearest to, and how near, as a pair: ("l2", 0.7) when L2 is used to 70 %.

    work: by roof, what the batch needs of it. Each roof has its limit in one of two dictionaries: in `a_second`, the
    most in a second whatever the clock is, or in `a_cycle`, the most in a cycle of all SMs. The batch ran `ms` ms at
    `mhz` MHz."""
    ...
'''
ROOFS = ("tensor", "dram", "l2", "smem", "power")


def _shares(work, a_second, a_cycle, mhz, ms) -> dict[str, float]:
    limits = a_second | {roof: most * mhz * 1e6 for roof, most in a_cycle.items()}
    return {roof: 1e3 * work[roof] / ms / limits[roof] for roof in work}


def _named(roof: str, share: float) -> tuple[float, float]:
    """As numbers, for comparing."""
    return ROOFS.index(roof), share


def _nearest(*case, pick: Callable = max, shares: Callable = _shares) -> tuple[float, float]:
    found = shares(*case)
    roof = pick(found, key=found.get)
    return _named(roof, found[roof])


def _scaled(factor: float) -> Callable:
    return lambda *case: (_nearest(*case)[0], factor * _nearest(*case)[1])


def _seconds_only(work, a_second, a_cycle, mhz, ms):
    return _nearest({roof: work[roof] for roof in work if roof in a_second}, a_second, {}, mhz, ms)


def _most_work(work, a_second, a_cycle, mhz, ms):
    roof = max(work, key=work.get)
    return _named(roof, _shares(work, a_second, a_cycle, mhz, ms)[roof])


def _clock_for_all(work, a_second, a_cycle, mhz, ms):
    slowed = {roof: most * mhz / FULL_MHZ for roof, most in a_second.items()}
    return _nearest(work, slowed, a_cycle, mhz, ms)


def _cycles_for_seconds(work, a_second, a_cycle, mhz, ms):
    return _shares(work, a_second | a_cycle, {}, mhz, ms)


def _try(function: Callable, case: Call) -> Outcome:
    got = plain(function(*deepcopy(case.arguments)), case.wanted)
    tried = f"{getattr(function, '__name__', 'your function')}({case.said})"
    roof, share = case.wanted
    wanted, said = (ROOFS[roof], round(share, 4)), got
    read = got
    if isinstance(got, (tuple, list)) and len(got) == 2:
        got = [x.item() if getattr(x, "shape", None) == () else x for x in got]
        read = tuple(ROOFS.index(x) if x in ROOFS else x for x in got) if _hashable(got) else got
        said = tuple(round(x, 4) if isinstance(x, float) else x for x in got)
    return Outcome(tried, wanted, said, right=same(read, case.wanted), case=case, values=(case.wanted, read))


def _hashable(got) -> bool:
    return all(isinstance(x, (str, int, float)) for x in got)


FULL_MHZ = 1980
A_SECOND = {"dram": 4.6e12, "l2": 9.6e12, "power": H200.power_w}
A_CYCLE = {"tensor": 492_000, "smem": 128 * H200.sms}


def _case(tensor: float, dram: float, l2: float, smem: float, joules: float, mhz: float, ms: float) -> Call:
    """GFLOP, and GB of each memory."""
    amounts = dict(zip(ROOFS, (1e9 * tensor, 1e9 * dram, 1e9 * l2, 1e9 * smem, joules), strict=True))
    work = {roof: amount for roof, amount in amounts.items() if amount}
    limits = ({roof: most[roof] for roof in most if roof in work} for most in (A_SECOND, A_CYCLE))
    case = work, *limits, mhz, ms
    told = ", ".join(f"{roof!r}: {amount:.3g}" for roof, amount in work.items())
    return Call(f"{{{told}}}, ..., mhz={mhz:g}, ms={ms:g}", case, _nearest(*case))


def _draw(random) -> Call:
    used = [random.uniform(0.1, 1) if random.random() < 0.8 else 0 for _ in range(4)]
    return _case(random.uniform(10, 600), 4 * used[0], 7 * used[1], 30 * used[2], 0.6 * used[3],
                 random.choice((1200, 1275, 1410, 1635, 1980)), random.randint(30, 120) / 100)  # fmt: skip


CASES = (
    (260, 2.2, 4.0, 8.0, 0, 1980, 0.59), (260, 1.5, 3.0, 14.0, 0.25, 1275, 0.71), (560, 0.4, 3.0, 9.0, 0.3, 1410, 0.9),
    (20, 3.5, 3.0, 4.0, 0, 1980, 0.85), (300, 1.8, 4.4, 14.0, 0.45, 1635, 0.7),
)  # fmt: skip

nearest_roof = Exercise(
    NEAREST_ROOF,
    [_case(*case) for case in CASES],
    _try,
    {
        "milliseconds for seconds": Hint(
            "The limits are by the second, and `ms` are milliseconds: the share is off by a factor of 1,000.",
            gives(_scaled(1e-3), _scaled(1e-6), _scaled(1e3)),
        ),
        "megahertz for hertz": Hint(
            "A megahertz is a million cycles in a second: the limits by the cycle came out a million times too low.",
            gives(lambda work, a_second, a_cycle, mhz, ms: _nearest(work, a_second, a_cycle, mhz / 1e6, ms)),
        ),
        "percent": Hint("Near, but as percent. A roof that is reached is 1.", gives(_scaled(100))),
        "no cycles": Hint(
            "A roof in `a_cycle` was left out. Its limit in a second is the most in a cycle times the cycles in a "
            "second.",
            lambda o: isinstance(o.error, KeyError) or gives(_seconds_only)(o),
        ),
        "the full clock": Hint(
            "What is delivered by the cycle was counted at the full clock, 1,980 MHz. The batch ran at `mhz`.",
            gives(lambda work, a_second, a_cycle, mhz, ms: _nearest(work, a_second, a_cycle, FULL_MHZ, ms)),
        ),
        "a clock for all": Hint(
            "The limits by the second hold whatever the clock is. Only those in `a_cycle` come down with it.",
            gives(_clock_for_all),
        ),
        "the farthest": Hint(
            "That is the roof with most room left. The nearest one is used most.",
            gives(lambda *case: _nearest(*case, pick=min)),
        ),
        "the most work": Hint(
            "FLOPs, bytes and joules cannot be compared with each other, only each with its own limit.",
            gives(_most_work),
        ),
        "all together": Hint(
            "The roofs stand side by side, and a batch may use each of them fully at once: their shares do not add.",
            gives(lambda *case: (_nearest(*case)[0], sum(_shares(*case).values()))),
        ),
        "upside down": Hint(
            "The limit over what was used, so more than 1. A share is what was used over the limit.",
            gives(lambda *case: (_nearest(*case)[0], 1 / _nearest(*case)[1])),
        ),
        "how near only": Hint(
            "That is how near it is. Which roof is it? A pair: its name, and the share.",
            lambda o: same(o.values[1], o.values[0][1]),
        ),
        "cycles for seconds": Hint(
            "What a roof gives in a cycle was taken for what it gives in a second. A second has 1e6 * mhz cycles.",
            gives(lambda *case: _nearest(*case, shares=_cycles_for_seconds)),
        ),
        "another's share": Hint(
            "The share is right, and the roof is not the one that it is of. (max of a dictionary is the last of its "
            "keys in the alphabet.)",
            lambda o: same(o.values[1][1], o.values[0][1]) and o.values[1][0] != o.values[0][0],
        ),
        "no pair": Hint(
            "A pair is asked for: the name of one roof, and its share.",
            lambda o: not (isinstance(o.values[1], (tuple, list)) and len(o.values[1]) == 2),
        ),
        "swapped": Hint("Both are right, in the other order: first the name.",
                        lambda o: same(tuple(o.values[1])[::-1], o.values[0])),
    },
    "The picture above is made of such shares, a dot for each.",
    _draw,
)  # fmt: skip
