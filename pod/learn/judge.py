"""Exercises and their judges: hidden cases are tried, and what fails is told, with what was expected and a hint.

An Exercise is kept by its module in pod/learn/exercises. Its solution, and answers that are wrong in a plausible way,
lie in notebooks/solutions; tests/learn/test_learn_judges.py holds every judge against all of them.
"""

from __future__ import annotations

import dis
import io
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from random import Random

from pod.learn import progress
from pod.learn.cuda import Kernel
from pod.learn.exercises import CHAPTERS
from pod.learn.faults import CellError

MOST_SECONDS = 20  # of an answer in Python
MOST_BYTES = 2 << 30  # that it may take beyond what is there already
MOST_DEEP = 3000  # calls in each other; with more, those that go through C leave the stack, and the notebook ends
MOST_SAID, MOST_LINES = 600, 12  # letters of a value, and of what is printed; lines of that
MOSTLY = 0.8  # of what is not right; the rest may be a second slip
DRAWN = 20  # cases at random, so that nobody can list them
SEARCHING, A_TRY = 3.0, 0.5  # seconds that a smaller case is looked for, and that one may take
SMALLEST = "  (the smallest case found that goes wrong like this)"
AGAIN = 5e-6, 1e-3  # seconds until an answer that swallows its end is ended again, and from then on
SLOW = (CellError, TimeoutError, MemoryError, NotImplementedError)  # errors after which no further case is tried
NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}  # what a bare `...` is compiled to


@dataclass(frozen=True)
class Outcome:
    """One hidden case that was tried: in words what, what should have come out, and what did.

    For the hints: the case itself, both values, and, of a kernel, its run and all of its arguments after it.
    """

    tried: str
    expected: object
    got: object = None
    error: BaseException | None = None
    right: bool = False
    case: object = None
    values: tuple = ()
    watched: object = None
    arguments: Sequence = ()


@dataclass(frozen=True)
class Hint:
    """What somebody may have thought, by what came of it."""

    says: str
    when: Callable[[Outcome], bool]


@dataclass(frozen=True)
class Exercise:
    """try_one(answer, case) -> Outcome; the first that is not right is told, with the first hint that fits it.

    draw(random): one more case. smaller(case): simpler ones, the simplest first; with it the smallest case that goes
    wrong in the same way is told. A hint that is a rule, `everywhere`, must fit most of what is not right.
    """

    stub: str
    cases: Sequence
    try_one: Callable[[object, object], Outcome]
    hints: Mapping[str, Hint]  # by name
    well_done: str
    draw: Callable[[Random], object] | None = None
    smaller: Callable[[object], Iterable] | None = None
    name: str = ""  # as its module has it
    chapter: str = ""

    def all_cases(self) -> list:
        random = Random(self.name)  # the same each time: whoever mends an answer can see what became of it
        return [*self.cases, *(self.draw(random) for _ in range(DRAWN if self.draw else 0))]


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
    return {
        name: replace(one, name=name, chapter=chapter, stub=one.stub.strip("\n"))
        for chapter, modules in CHAPTERS.items()
        for module in modules
        for name, one in vars(import_module(f"pod.learn.exercises.{module}")).items()
        if isinstance(one, Exercise)
    }


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
    printed = Printed()
    with redirect_stdout(printed):
        outcomes = list(_outcomes(exercise, answer))
    wrong, said = [outcome for outcome in outcomes if not outcome.right], printed.getvalue().rstrip()
    if wrong and _is_nothing(answer, wrong[0]):
        return _not_yet(exercise)
    if wrong:
        return _wrong(exercise, answer, wrong, said)
    text = f"{exercise.name}: right, in {len(outcomes)} hidden cases. {exercise.well_done}"
    return Verdict("right", "\n".join([text, *_printed(said)]))


def _outcomes(exercise: Exercise, answer) -> Iterator[Outcome]:
    """Of all cases, where more than one may tell what somebody thought; else up to the first that is not right."""
    for case in exercise.all_cases():
        yield (outcome := _tried(exercise, answer, case))
        if not outcome.right and (not exercise.draw or _ends_it(outcome)):
            return


def _ends_it(outcome: Outcome) -> bool:
    """Whether further cases would tell nothing more, or take long."""
    if outcome.error is None:
        return outcome.got is None
    return not isinstance(outcome.error, Exception) or isinstance(outcome.error, SLOW)


def _tried(exercise: Exercise, answer, case, seconds: float | None = None) -> Outcome:
    """Whatever an answer does, it is an outcome."""
    try:
        if isinstance(answer, (Kernel, str)):  # runs in a program of its own, with limits of its own
            return exercise.try_one(answer, case)
        with memory_limit(), depth_limit(), time_limit(seconds or MOST_SECONDS):
            return exercise.try_one(answer, case)
    except KeyboardInterrupt:  # by the reader's hand
        raise
    except BaseException as error:  # sys.exit() as well
        return Outcome(_called(answer, case), "an answer", error=error, case=case)


def _called(answer, case) -> str:
    """A call, where the case says what it is called with."""
    said = getattr(case, "said", "")
    return f"{getattr(answer, '__name__', 'your function')}({said})" if said and callable(answer) else f"{case}"


def _is_untouched(exercise: Exercise, answer) -> bool:
    if isinstance(answer, Kernel):
        return _bare(answer.text) == _bare(exercise.stub)
    if isinstance(answer, str):  # CUDA that goes into a kernel of ours
        return _bare(answer) in _bare(exercise.stub)
    return answer is None or answer is Ellipsis


def _is_nothing(answer, outcome: Outcome) -> bool:
    """Whether nobody has written anything; who has, and forgot the `return`, is told so."""
    if outcome.error is not None or outcome.got is not None:
        return isinstance(outcome.error, NotImplementedError)
    return is_bare(answer)


def is_bare(function) -> bool:
    """Whether it does nothing and gives nothing, as a stub."""
    code = getattr(function, "__code__", None)
    steps = [] if code is None else list(dis.get_instructions(code))
    given = [step.argval for step in steps if step.opname.endswith("_CONST")]
    return bool(steps) and {step.opname for step in steps} <= NOTHING and set(given) <= {None}


def _bare(text: str) -> str:
    """A text without comments and space."""
    return "".join("".join(line.partition("//")[0].split()) for line in text.splitlines())


def _not_yet(exercise: Exercise) -> Verdict:
    return Verdict("not yet", f"{exercise.name}: not yet. Write it in the cell above, run that, then this one again.")


def _is_rounded(o: Outcome) -> bool:
    wanted, got = map(float, o.values)
    return got != wanted and any(got == round(wanted, digits) for digits in range(7))


_is_rounded.everywhere = True
NO_RETURN = Hint("Nothing comes back: a `return` is missing.", lambda o: o.error is None and o.got is None)
ROUNDED = Hint("Right, but rounded. All digits are wanted.", _is_rounded)


def _wrong(exercise: Exercise, answer, wrong: Sequence[Outcome], printed: str) -> Verdict:
    hints = {"no return": NO_RETURN, **exercise.hints, "rounded": ROUNDED}
    name, hint = next(((name, hint) for name, hint in hints.items() if _tells(hint, wrong)), ("", None))
    told = _smallest(exercise, answer, wrong[0], hint) if exercise.smaller and wrong[0].case else wrong[0]
    tried, expected = (_short(x) for x in (told.tried, told.expected))
    said = [f"{exercise.name}: not right yet.", f"  tried     {tried}{SMALLEST if told is not wrong[0] else ''}"]
    said += [f"  expected  {_indented(expected)}", f"  got       {_indented(_told(told))}", *_printed(printed)]
    if hint:
        said.append(f"  hint      {_indented(hint.says)}")
    return Verdict("wrong", "\n".join(said), name)


def _smallest(exercise: Exercise, answer, wrong: Outcome, hint: Hint | None) -> Outcome:
    """The simplest outcome that is wrong in the same way: step by step, as long as there is a simpler one."""
    told, end = wrong, time.monotonic() + SEARCHING

    def goes_wrong_alike(outcome: Outcome) -> bool:
        alike = type(outcome.error) is type(wrong.error) and (outcome.got is None) == (wrong.got is None)
        return not outcome.right and alike and (hint is None or _fits(hint, outcome))

    def simpler() -> Outcome | None:
        tried = (_tried(exercise, answer, case, A_TRY) for case in exercise.smaller(told.case))
        return next((o for o in takewhile(lambda _: time.monotonic() < end, tried) if goes_wrong_alike(o)), None)

    with redirect_stdout(Printed()):
        while found := simpler():
            told = found
    return told


def _printed(said: str) -> list[str]:
    lines = said.splitlines()
    shown = "\n".join(lines[:MOST_LINES] + ["..."] * (len(lines) > MOST_LINES))
    return [f"  printed   {_indented(_short(shown))}"] if said else []


def _tells(hint: Hint, wrong: Sequence[Outcome]) -> bool:
    """A rule gives the same as another answer by chance, but not often. An error says nothing about a rule."""
    said = [outcome for outcome in wrong if outcome.error is None]
    told = said if said and getattr(hint.when, "everywhere", False) else wrong[:1]
    return _fits(hint, wrong[0]) and sum(_fits(hint, outcome) for outcome in told) >= MOSTLY * len(told)


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
    try:
        with memory_limit(), depth_limit(), time_limit(MOST_SECONDS):
            text = str(said)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = f"{type(said).__name__}, which cannot be shown: {type(error).__name__}"
    whole = len(text) <= MOST_SAID
    return text if whole else re.sub(r"[^\s,]{1,40}$", "", text[:MOST_SAID]) + " ..."  # half a number is another one


def _indented(text: str) -> str:
    return text.replace("\n", "\n            ")


class Printed(io.StringIO):
    """What an answer prints; of a flood, the beginning."""

    def write(self, text: str) -> int:
        super().write(text[: max(0, MOST_SAID + 1 - self.tell())])
        return len(text)


class _Late(BaseException):
    """Goes through every `except Exception` of a reader's."""


class time_limit:
    """Inside, Python that goes on for longer raises a TimeoutError; only the main thread can be stopped so.

    The innermost of several contexts: the end of another one could be stopped, too.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.before = seconds, None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
            self.before = signal.signal(signal.SIGALRM, self._stop)
            signal.setitimer(signal.ITIMER_REAL, self.seconds, AGAIN[1])

    def _stop(self, _, frame) -> None:
        if frame.f_code.co_filename != __file__:  # else it is on its way out
            signal.setitimer(signal.ITIMER_REAL, *AGAIN)  # soon: behind a bare `except:` of the reader's
            raise _Late

    def __exit__(self, kind, error, trace) -> None:
        if self.before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self.before)
        if kind is _Late:
            raise TimeoutError(f"still going after {self.seconds:g} s").with_traceback(trace) from None


@contextmanager
def depth_limit() -> Iterator[None]:
    """Inside, calls may not go deeper than the stack, even if somebody allows them to."""
    before, allow = sys.getrecursionlimit(), sys.setrecursionlimit
    sys.setrecursionlimit = lambda n: allow(min(n, MOST_DEEP))
    try:
        sys.setrecursionlimit(before)
        yield
    finally:
        sys.setrecursionlimit = allow
        allow(before)


@contextmanager
def memory_limit() -> Iterator[None]:
    """Inside, what takes much more memory than is in use raises a MemoryError, where Linux counts it."""
    if not (counted := Path("/proc/self/statm")).exists():
        yield
        return
    import resource

    before, most = resource.getrlimit(resource.RLIMIT_AS)
    used = int(counted.read_text().split()[0]) * resource.getpagesize()
    limits = [n for n in (used + MOST_BYTES, before, most) if n != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))
