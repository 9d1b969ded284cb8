"""Exercises and their judges: hidden cases are tried, and what fails is told, with what was expected and a hint.

An Exercise is kept by its module in pod/learn/exercises. Its solution, and answers that are wrong in a plausible way,
lie in notebooks/solutions; tests/learn/test_learn_judges.py holds every judge against all of them.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from pod.learn import progress
from pod.learn.cuda import Kernel
from pod.learn.exercises import CHAPTERS
from pod.learn.faults import CellError

MOST_SECONDS = 20  # of an answer in Python
MOST_SAID = 600  # letters of a value


@dataclass(frozen=True)
class Outcome:
    """One hidden case that was tried: in words what, what should have come out, and what did.

    For the hints: the case itself, both values, and, of a kernel, its run.
    """

    tried: str
    expected: object
    got: object = None
    error: BaseException | None = None
    right: bool = False
    case: object = None
    values: tuple = ()
    watched: object = None


@dataclass(frozen=True)
class Hint:
    """What somebody may have thought, by what came of it."""

    name: str
    says: str
    when: Callable[[Outcome], bool]


@dataclass(frozen=True)
class Exercise:
    """try_one(answer, case) -> Outcome; the first that is not right is told, with the first hint that fits it."""

    name: str
    chapter: str
    stub: str
    cases: Sequence
    try_one: Callable[[object, object], Outcome]
    hints: Sequence[Hint]
    well_done: str


@dataclass(frozen=True)
class Verdict:
    """What a judge says. A notebook shows the words."""

    state: str  # "right", "wrong" or "not yet"
    text: str
    hint: str = ""

    def __repr__(self) -> str:
        return self.text


@cache
def exercises() -> dict[str, Exercise]:
    """All of them, by name."""
    modules = [import_module(f"pod.learn.exercises.{chapter}") for chapter in CHAPTERS]
    return {exercise.name: exercise for module in modules for exercise in module.EXERCISES}


def check(name: str, answer) -> Verdict:
    """Judge an answer and keep the verdict: see `python -m pod progress`."""
    if name not in exercises():
        raise ValueError(f"exercise: got {name!r}, allowed are {', '.join(exercises())}")
    verdict = judge(exercises()[name], answer)
    progress.note(name, verdict.state)
    return verdict


def judge(exercise: Exercise, answer) -> Verdict:
    if _is_untouched(exercise, answer):
        return _not_yet(exercise)
    for case in exercise.cases:
        outcome = _tried(exercise, answer, case)
        if outcome.got is None and outcome.error is None or isinstance(outcome.error, NotImplementedError):
            return _not_yet(exercise)
        if not outcome.right:
            return _wrong(exercise, outcome)
    return Verdict("right", f"{exercise.name}: right, in {len(exercise.cases)} hidden cases. {exercise.well_done}")


def _tried(exercise: Exercise, answer, case) -> Outcome:
    """Whatever an answer does, it is an outcome."""
    try:
        with time_limit(MOST_SECONDS):
            return exercise.try_one(answer, case)
    except KeyboardInterrupt:  # by the reader's hand
        raise
    except BaseException as error:  # sys.exit() as well
        return Outcome(f"{case}", "an answer", error=error, case=case)


def _is_untouched(exercise: Exercise, answer) -> bool:
    if isinstance(answer, Kernel):
        return _bare(answer.module.cell.text) == _bare(exercise.stub)
    if isinstance(answer, str):  # CUDA that goes into a kernel of ours
        return _bare(answer) in _bare(exercise.stub)
    return answer is None or answer is Ellipsis


def _bare(text: str) -> str:
    """A text without comments and space."""
    return "".join("".join(line.partition("//")[0].split()) for line in text.splitlines())


def _not_yet(exercise: Exercise) -> Verdict:
    return Verdict("not yet", f"{exercise.name}: not yet. Write it in the cell above, run that, then this one again.")


def _wrong(exercise: Exercise, outcome: Outcome) -> Verdict:
    hint = next((hint for hint in exercise.hints if _fits(hint, outcome)), None)
    tried, expected = (_short(x) for x in (outcome.tried, outcome.expected))
    said = [f"{exercise.name}: not right yet.", f"  tried     {tried}", f"  expected  {expected}"]
    said += [f"  got       {_indented(_told(outcome))}"]
    if hint:
        said.append(f"  hint      {_indented(hint.says)}")
    return Verdict("wrong", "\n".join(said), hint.name if hint else "")


def _fits(hint: Hint, outcome: Outcome) -> bool:
    try:
        return bool(hint.when(outcome))
    except Exception:  # it was written for other outcomes
        return False


def _told(outcome: Outcome) -> str:
    error = outcome.error
    if error is None or isinstance(error, CellError):
        return _short(outcome.got) if error is None else str(error)
    return f"{type(error).__name__}: {error}{place(error)}"


def place(error: BaseException) -> str:
    """Where in the reader's cell, which is no file, whatever library it was that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    cells = [frame.filename for frame in frames if not Path(frame.filename).exists()]
    lines = [frame.lineno for frame in frames if cells and frame.filename == cells[0]]
    return f" (line {lines[-1]} of your cell)" if lines else ""


def _short(said: object) -> str:
    text = str(said)
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]} ..."


def _indented(text: str) -> str:
    return text.replace("\n", "\n            ")


class _Late(BaseException):
    """Goes through every `except Exception` of a reader's."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Inside, Python that goes on for longer raises a TimeoutError; only the main thread can be stopped so."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Late as late:
        raise TimeoutError(f"still going after {seconds:g} s").with_traceback(late.__traceback__) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
