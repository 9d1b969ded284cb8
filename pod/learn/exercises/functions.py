"""What exercises whose answer is a Python function share: a hidden call, and how it is told."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pod.learn.judge import Outcome

MOST_LISTED = 100_000


@dataclass(frozen=True)
class Call:
    """answer(*arguments) shall be `wanted`: a number, an array, or a tuple of these."""

    said: str
    arguments: tuple
    wanted: object


def call(function: Callable, case: Call, read: Callable = lambda answer: answer) -> Outcome:
    """`read`: the answer as the hints want it."""
    got = function(*deepcopy(case.arguments))
    got = got if got is None else read(got)
    tried = f"{function.__name__}({case.said})"
    return Outcome(tried, case.wanted, got, right=same(got, case.wanted), case=case, values=(case.wanted, got))


def listed(answer: Iterable) -> list:
    """An answer as a list, cut where no answer is as long: one without an end would never be done."""
    return list(islice(answer, MOST_LISTED))


def same(got, wanted) -> bool:
    if isinstance(wanted, tuple):
        return isinstance(got, tuple) and len(got) == len(wanted) and all(map(same, got, wanted))
    got, wanted = np.asarray(got, dtype=float), np.asarray(wanted, dtype=float)
    return got.shape == wanted.shape and np.allclose(got, wanted, rtol=1e-6, atol=0)


def gives(rule: Callable) -> Callable[[Outcome], bool]:
    """A hint's test: whether the answer is what this rule, wrong in its own way, gives for the same arguments."""
    return lambda o: o.error is None and same(o.values[1], rule(*o.case.arguments))
