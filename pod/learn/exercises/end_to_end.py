"""Your turn in chapter "end to end": a search for capacity, and the fair way to compare two systems."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint, Outcome

# ---------------------------------------------------------------- the highest rate

CAPACITY = '''
def capacity(kept):
    """The highest rate of requests, to 2 %, at which a server keeps its promises: kept(rate) says whether it does.
    Any rate above 0 may be asked for. Every question is a day of simulation, so there may be 25."""
    ...
'''
CLOSE, TRIES, PATIENCE = 0.02, 25, 5000


class Endless(Exception):
    """More questions than anybody would wait for."""


@dataclass
class Server:
    """It keeps its promises up to some rate."""

    most: float
    tries: int = 0

    def kept(self, rate: float) -> bool:
        self.tries += 1
        if self.tries > PATIENCE:
            raise Endless(f"{PATIENCE:,} questions, and no end")
        return 0 <= rate <= self.most


class Most(float):
    """Up to which rate a server keeps its promises."""

    def __str__(self) -> str:
        return f"a server that keeps its promises up to {float(self):g} requests a second"


def _number(said) -> float | None:
    try:
        return None if isinstance(said, str) else float(said)
    except (TypeError, ValueError, RuntimeError):
        return None


def search(function: Callable, most: Most) -> Outcome:
    server, tried = Server(float(most)), f"{most}"
    wanted = f"{most / (1 + CLOSE):.3g} to {most:.3g}, after at most {TRIES} questions"
    try:
        rate = function(server.kept)
    except Endless as error:
        return Outcome(tried, wanted, str(error), case=most, values=(most, 0.0, PATIENCE))
    if rate is None:
        return Outcome(tried, wanted)
    if (read := _number(rate)) is None:
        return Outcome(tried, wanted, f"{rate!r}, which is no number", case=most)
    rate = read
    right = most / (1 + CLOSE) <= rate <= most and server.tries <= TRIES
    got = f"{rate:.6g}, after {server.tries} questions"
    return Outcome(tried, wanted, got, right=right, case=most, values=(most, rate, server.tries))


def _off(o: Outcome) -> float:
    """By what factor the rate is too high."""
    return o.values[1] / o.values[0]


capacity = Exercise(
    CAPACITY,
    [Most(rate) for rate in (1.7, 37.5, 1.0, 300.0, 0.013)],
    search,
    {
        "no number": Hint("One number is asked for, the highest rate that was kept.", lambda o: "no number" in o.got),
        "in small steps": Hint(
            "So many questions: step by step it takes a day for each. Double the rate as long as all is well, and then "
            "halve what is between.",
            lambda o: o.values[2] > TRIES,
        ),
        "never downwards": Hint(
            "This server breaks its promises at the first rate that was tried already. Then go down, until it keeps "
            "them.",
            lambda o: o.case < 1 and _off(o) > 1.5,
        ),
        "the first that fails": Hint(
            "That rate is a little too high: promises break there. Of the two ends the lower one is the answer, as "
            "only that was kept.",
            lambda o: 1 < _off(o) <= 1.5,
        ),
        "only doubled": Hint(
            "A server can do up to twice as much as that. Between the last rate that is kept and the first that is "
            "not, try the middle.",
            lambda o: 0.49 < _off(o) < 0.95,
        ),
        "an end too soon": Hint(
            "It ends before it could get there: it has a highest rate, or too few rounds. Double until a promise "
            "breaks.",
            lambda o: 0 < _off(o) < 0.49,
        ),
        "not to 2 %": Hint(
            "Nearly. 2 % are meant of the rate: two ends that are 0.02 apart are close at 37 requests a second, and "
            "anything at 0.01.",
            lambda o: _off(o) == 0 or 0.9 < _off(o) < 1,
        ),
    },
    "`python -m pod capacity` is this search over simulated days.",
    lambda random: Most(round(10 ** random.uniform(-2, 2.5), 3)),
)

# ---------------------------------------------------------------- at equal wait

MORE_LOAD = '''
def more_load(loads, slow, fast, wait):
    """How much more load the fast system takes than the slow one, in %, until the median user waits `wait` seconds.
    `slow` and `fast`: how long that user waits at each of the `loads`, rising; straight lines in between."""
    ...
'''


def _more_load(loads, slow, fast, wait):
    at_slow, at_fast = (np.interp(wait, waits, loads) for waits in (slow, fast))
    return 100 * (at_fast / at_slow - 1)


def _vertical(loads, slow, fast, wait):
    """The ratio of waits at the load where the slow one waits so long."""
    at = np.interp(wait, slow, loads)
    return 100 * (wait / np.interp(at, loads, fast) - 1)


def _less_wait(loads, slow, fast, wait):
    """By what part the fast one waits less, at that load."""
    return 100 * (1 - np.interp(np.interp(wait, slow, loads), loads, fast) / wait)


def _points(loads, slow, fast, wait):
    """The highest of the measured loads at which the wait is not longer."""
    at_slow, at_fast = (max(load for load, w in zip(loads, waits, strict=True) if w <= wait) for waits in (slow, fast))
    return 100 * (at_fast / at_slow - 1)


def _next_points(loads, slow, fast, wait):
    """The first of the measured loads at which the wait is as long, or longer."""
    at_slow, at_fast = (next(load for load, w in zip(loads, waits, strict=True) if w >= wait) for waits in (slow, fast))
    return 100 * (at_fast / at_slow - 1)


def _nearest(loads, slow, fast, wait):
    at_slow, at_fast = (loads[int(np.abs(np.array(waits) - wait).argmin())] for waits in (slow, fast))
    return 100 * (at_fast / at_slow - 1)


def _curve(loads, slow, fast, wait) -> Call:
    said = f"loads={loads}, slow={slow}, fast={fast}, wait={wait}"
    return Call(said, (loads, slow, fast, wait), _more_load(loads, slow, fast, wait))


def _draw(random) -> Call:
    """Two rising curves, and a wait that both of them reach."""
    loads = [round(0.5 + 0.25 * i, 2) for i in range(random.randint(3, 7))]
    steps = [[random.randint(1, 60) for _ in loads] for _ in range(2)]
    slow, fast = ([sum(x[: i + 1]) / 20 for i in range(len(x))] for x in steps)
    least, most = max(slow[0], fast[0]), min(slow[-1], fast[-1])
    return _curve(loads, slow, fast, round(random.uniform(least, most), 3)) if least < most else _draw(random)


LOADS = [0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0]
SLOW, FAST = [0.3, 0.4, 0.6, 1.0, 3.1, 9.0, 20.0], [0.23, 0.28, 0.37, 0.55, 0.7, 1.4, 5.0]
CURVES = ((LOADS, SLOW, FAST, 0.5), (LOADS, SLOW, FAST, 0.9), (LOADS, SLOW, FAST, 2.0),
          ([1, 2, 4], [0.5, 1.0, 8.0], [0.25, 0.5, 1.0], 0.75), ([1, 3], [1, 2], [1, 2], 1.5))  # fmt: skip

more_load = Exercise(
    MORE_LOAD,
    [_curve(*curve) for curve in CURVES],
    call,
    {
        "at equal load": Hint(
            "This compares waits at one load, the vertical distance. Near capacity that can be any number. Compare "
            "loads at one wait.",
            gives(_vertical, _less_wait),
        ),
        "requests, not percent": Hint(
            "That is how much more in requests a second. In % of what the slow one takes.",
            gives(*(lambda *a, x=x: _more_load(*a) / x * np.interp(a[3], a[1], a[0]) for x in (1, 100))),
        ),
        "of the fast one": Hint(
            "That is how much less the slow one takes, in % of the fast one's. More is meant of the slow one's.",
            gives(lambda *a: 100 - 100 / (1 + _more_load(*a) / 100)),
        ),
        "a ratio": Hint(
            "Right, as a ratio or a part of one. 1.25 times is 25 % more.",
            gives(lambda *a: 1 + _more_load(*a) / 100, lambda *a: _more_load(*a) / 100),
        ),
        "only points": Hint(
            "These are loads that were measured. The curves reach the wait between two of them: on a straight line.",
            gives(_points, _nearest, _next_points),
        ),
        "the slow one over the fast one": Hint(
            "That is how much more the slow one takes. It is the other way round.",
            gives(lambda *a: 100 * (1 / (1 + _more_load(*a) / 100) - 1)),
        ),
        "read the other way": Hint(
            "Here `wait` was looked up among the loads. It is a wait: find it on the vertical axis, and read the load "
            "below it.",
            gives(lambda loads, slow, fast, wait: 100 * (np.interp(wait, loads, slow) / np.interp(wait, loads, fast)
                                                         - 1)),
        ),
    },
    "Say the wait, and the number hardly depends on who says it.",
    _draw,
)  # fmt: skip
