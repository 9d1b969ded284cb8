"""What exercises whose answer is a Python function share: a hidden call, and how it is told."""

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, fields
from itertools import islice

import numpy as np

from pod.learn.faults import CellError
from pod.learn.judge import Outcome

MOST_LISTED = 100_000


@dataclass(frozen=True)
class Call:
    """answer(*arguments) shall be `wanted`: a number, an array, or a tuple of these."""

    said: str
    arguments: tuple
    wanted: object

    def __str__(self) -> str:
        return self.said


def call(function: Callable, case: Call, read: Callable = lambda answer: answer) -> Outcome:
    """`read`: the answer as the hints want it."""
    got = plain(function(*deepcopy(case.arguments)), case.wanted)
    got = got if got is None else read(got)
    tried = f"{getattr(function, '__name__', 'your function')}({case.said})"
    told = repr(got) if isinstance(got, str) else got  # "0.5" is no 0.5, and has to look so
    return Outcome(tried, case.wanted, told, right=same(got, case.wanted), case=case, values=(case.wanted, got))


def plain(got: object, wanted: object) -> object:
    """What comes one by one as a list; and where several values are wanted, arrays and tensors as lists as well."""
    if hasattr(got, "__next__"):
        got = listed(got)
    if not isinstance(wanted, tuple):
        return got
    if hasattr(got, "tolist"):
        got = got.tolist()
    if isinstance(got, (list, tuple)) and len(got) == len(wanted):
        parts = [plain(*pair) for pair in zip(got, wanted, strict=True)]
        return tuple(parts) if isinstance(got, tuple) else parts
    return got


def listed(answer: Iterable) -> list:
    """An answer as a list, cut where no answer is as long: one without an end would never be done."""
    if not isinstance(answer, Iterable):
        raise CellError(f"{type(answer).__name__}, which is no list")
    return list(islice(answer, MOST_LISTED))


def same(got, wanted, nan: bool = False) -> bool:
    """Lists will do for tuples. `nan`: one that is no number is another's equal."""
    if isinstance(wanted, tuple):
        parts = isinstance(got, (tuple, list)) and len(got) == len(wanted)
        return parts and all(same(*pair, nan) for pair in zip(got, wanted, strict=True))
    try:
        is_text = np.asarray(got).dtype.kind in "SU"
        got, wanted = np.asarray(got, dtype=float), np.asarray(wanted, dtype=float)
    except (TypeError, ValueError):  # no number
        return False
    return not is_text and got.shape == wanted.shape and np.allclose(got, wanted, rtol=1e-6, atol=0, equal_nan=nan)


def is_whole(said) -> bool:
    """Whether it is a whole number, of whatever type."""
    try:
        return bool(int(said) == said)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def counted(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def gives(*rules: Callable) -> Callable[[Outcome], bool]:
    """A hint's test: whether the answer is what a rule, wrong in its own way, gives for the same arguments."""

    @np.errstate(all="ignore")
    def is_it(o: Outcome) -> bool:
        return o.error is None and any(same(o.values[1], rule(*o.case.arguments), nan=True) for rule in rules)

    is_it.everywhere = True
    return is_it


# ---------------------------------------------------------------- smaller cases


def fewer(least: int) -> Callable[[float], Iterator[float]]:
    """Simpler numbers than one, down to `least`."""
    return lambda n: (x for x in dict.fromkeys((least, n // 2, n - 1)) if least <= x < n)


def shorter(least: int, simpler: Callable = lambda x: ()) -> Callable[[list], Iterator[list]]:
    """Simpler lists than one, of at least so many: without a half, without one, and with one made simpler."""

    def lists(xs: list) -> Iterator[list]:
        half, n = -(-len(xs) // 2), len(xs)
        if half < n:
            yield from (xs[:half], xs[half:])
        yield from (xs[:i] + xs[i + 1 :] for i in range(n))
        yield from ([*xs[:i], x, *xs[i + 1 :]] for i in range(n) for x in simpler(xs[i]))

    return lambda xs: (type(xs)(ys) for ys in lists(xs) if len(ys) >= least)


def smaller(make: Callable, *simpler: Callable) -> Callable[[object], Iterator]:
    """Cases like one, but with one of its arguments or fields made simpler."""

    def cases(case) -> Iterator:
        given = case.arguments if isinstance(case, Call) else [getattr(case, f.name) for f in fields(case)]
        yield from (make(*given[:i], x, *given[i + 1 :]) for i, way in enumerate(simpler) for x in way(given[i]))

    return cases
