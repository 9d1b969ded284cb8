"""The program of one cell: its kernels, emulated, with a `main` around them. A launch is one run of it.

A program of its own can be stopped, and whatever a reader's kernel does to it, the notebook lives on.
"""

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock, Thread

from pod import files
from pod.kernels import build
from pod.learn.rewrite import Cell

try:
    import resource
except ImportError:  # Windows counts otherwise
    resource = None

FOLDER = build.CSRC / "learn"
MOST_SECONDS, MOST_COMPILING, MOST_KEPT = 15, 60, 600
MOST_MEMORY, MOST_PRINTED = 4 << 30, 20_000  # bytes, letters
MOST_STACK = 1 << 16  # bytes of a kernel's own variables, a thread
FLAGS = [
    "-std=c++17",
    "-O1",
    "-fvisibility=hidden",
    "-Werror=return-type",
    "-DPOD_EMULATE",
    f"-I{build.CSRC}",
    f"-I{FOLDER}",
    "-x",
    "c++",
]
FORMATS = ["-Wformat", "-Werror=format", "-Werror=format-extra-args"]
OF_A_CELL = [
    f"-Wframe-larger-than={MOST_STACK}",
    f"-Werror=frame-larger-than={MOST_STACK}",
    "-Wuninitialized",
    "-Werror=uninitialized",
    "-Wno-maybe-uninitialized",
    "-fsanitize=bounds,integer-divide-by-zero,signed-integer-overflow,shift-exponent",  # told by csrc/learn/machine.cpp
    *FORMATS,
]
NAMELESS = re.compile(r"'D\.\d+' is used uninitialized")
# 0xfe for what nobody has set, which csrc/learn/machine.cpp knows; "fre" would put what a branch sets in its place.
UNSET = ["-ftrivial-auto-var-init=pattern", "-fno-tree-fre"]


@dataclass(frozen=True)
class Event:
    """One access: `kind` is "r", "w" or "a" (atomic); `phase` counts the barriers that its thread has passed."""

    cta: int
    thread: int
    phase: int
    line: int
    kind: str
    memory: int  # 0, 1, ... arguments that are tensors; -1, -2, ... shared variables
    element: int


@dataclass(frozen=True)
class Variable:
    """Where a __shared__ variable lies."""

    name: str
    number: int
    offset: int
    bytes: int
    element: int
    inner: int = 0  # the sizes of its inner dimensions, 0 where it has none
    innermost: int = 0

    def place(self, index: int) -> str:
        """An element, as the text has it."""
        indices = [index]
        for size in filter(None, (self.innermost, self.inner)):
            indices[:1] = divmod(indices[0], size)
        return self.name + "".join(f"[{i}]" for i in indices)


@dataclass
class Report:
    """What a launch did. `fault` is the emulator's text, "" when all went well."""

    fault: str = ""
    events: list[Event] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    threads: list[tuple[int, int, str, int]] = field(default_factory=list)  # CTA, thread, state, line
    sms: dict[int, int] = field(default_factory=dict)  # of a CTA
    printed: str = ""

    def shared(self, name: str) -> Variable | None:
        """The variable of this name; of two kernels' variables, the one that was used."""
        mine, used = [v for v in self.variables if v.name == name], {e.memory for e in self.events}
        return next((v for v in mine if -1 - v.number in used), mine[0] if mine else None)


# ---------------------------------------------------------------- building


class Refused(Exception):
    """What the compiler said of a cell."""


class Endless(Exception):
    """The compiler went on and on."""


def built(cell: Cell) -> Path:
    """The cell's program, compiled unless it is in the cache."""
    name = f"cell-{_hash(_text(cell), _machine_key())}"
    if program := files.kept(f"learn/{name}"):
        with suppress(OSError):  # in a place where nothing may be written
            program.touch()  # it is not the oldest that goes next
        return program
    program = files.folder("learn") / name
    sweep(program.parent)
    with tempfile.TemporaryDirectory(prefix="build-", dir=program.parent) as workshop:
        _compile(cell, Path(workshop), program)
    return program


def sweep(folder: Path) -> None:
    """Every try of every reader leaves a program: the oldest go."""
    programs = [p for p in folder.glob("cell-*") if p.suffix in ("", ".kernel")]
    for old in sorted(programs, key=_last_used, reverse=True)[MOST_KEPT:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".sum").unlink(missing_ok=True)


def _last_used(program: Path) -> float:
    try:
        return program.stat().st_mtime
    except FileNotFoundError:  # another notebook sweeps at this moment
        return 0.0


def _compile(cell: Cell, workshop: Path, program: Path) -> None:
    source, ours, made = workshop / "cell.cu", workshop / "cell.o", workshop / "program"
    source.write_text(_text(cell), encoding="utf-8")
    compile_it = [*FLAGS, *OF_A_CELL, *_unset(), "-c", str(source), "-o", str(ours)]
    compiling = _start(compile_it)
    other = machine()  # compiled beside the cell, the first time
    said = _finish(compiling, MOST_COMPILING)
    if NAMELESS.search(said):  # GCC does not see that a `const float&` bound to a sum has a value
        said = _finish(_start([*compile_it, "-Wno-error=uninitialized"]), MOST_COMPILING)
    said = said or _finish(_start([str(ours), str(other), "-o", str(made)]))
    if said:
        raise Refused(said)
    files.keep(made, program)


_making = Lock()


def machine() -> Path:
    """The machine that every cell is linked to, compiled unless it is in the cache."""
    name = f"machine-{_machine_key()}.o"
    with _making:
        if kept := files.kept(f"learn/{name}"):
            return kept
        place = files.folder("learn") / name
        with tempfile.TemporaryDirectory(prefix="build-", dir=place.parent) as workshop:
            made = Path(workshop) / name
            if wrong := _finish(_start([*FLAGS, "-c", str(FOLDER / "machine.cpp"), "-o", str(made)])):
                raise RuntimeError(f"csrc/learn/machine.cpp: {wrong[:6000]}")
            files.keep(made, place)
        return place


def make_ahead() -> None:
    """The machine, so that no reader waits for it; what is wrong will be said when a cell needs it."""
    with suppress(build.BuildError, RuntimeError, OSError):
        machine()


def prepare() -> None:
    """The same while somebody still reads."""
    Thread(target=make_ahead, daemon=True).start()


def complaints(source: Path) -> str:
    """What the compiler has against a text that it need not translate."""
    return refusal(*FLAGS, *FORMATS, "-fsyntax-only", str(source))


def refusal(*arguments: str) -> str:
    """What the compiler says when it fails."""
    return _finish(_start(arguments))


def _text(cell: Cell) -> str:
    table = ", ".join(f'{{"{k}", [](const cell::Argument* a) {{ cell::call(::{k}, a); }}}}' for k in cell.kernels)
    return (
        f'#include "cell.h"\n#line 1 "cell"\n{cell.emulated}\n#line 1 "table"\n'
        f"const cell::Kernel cell::kernels[] = {{{table}}};\nconst int cell::kernel_count = {len(cell.kernels)};\n"
    )


def _start(arguments: Sequence[str]) -> subprocess.Popen:
    command = [*_compiler().split(), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": {**os.environ, "LC_ALL": "C"}}
    return subprocess.Popen(command, text=True, errors="replace", start_new_session=True, **pipes)


def _finish(compiling: subprocess.Popen, seconds: float | None = None) -> str:
    """What it said, when it failed."""
    try:
        said = compiling.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        raise Endless(f"got a text that is not compiled in {seconds} s, allowed is a shorter one") from None
    finally:
        if compiling.poll() is None:  # it is late, or somebody interrupts: its own children go, too
            os.killpg(compiling.pid, signal.SIGKILL)
            compiling.wait()
    return (said or "the compiler said nothing") if compiling.returncode else ""


@cache
def _compiler() -> str:
    build.require_tools()
    return build.compiler()


@cache
def _unset() -> list[str]:
    """GCC 12 and Clang 16 are the first that have it."""
    return [] if refusal(*UNSET, "-fsyntax-only", "-x", "c++", os.devnull) else UNSET


@cache
def _machine_key() -> str:
    compiler, sources = _compiler(), [FOLDER, build.CSRC / "emulate", build.CSRC / "include"]
    texts = [f.read_text(encoding="utf-8") for folder in sources for f in sorted(folder.iterdir()) if f.is_file()]
    return _hash(compiler, *FLAGS, *OF_A_CELL, *UNSET, *texts)


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- running


def run(program: Path, cell: Cell, words: Sequence[str], data: bytes, seed: int = 0) -> tuple[Report, bytes]:
    """One launch: the report, and the tensors' bytes after it. Each seed is another order that a GPU could take."""
    environment = {**os.environ, "POD_EMULATE_SEED": str(seed)}
    with tempfile.TemporaryDirectory(prefix="pod-cell-") as folder:
        tensors, report = Path(folder) / "tensors", Path(folder) / "report"
        tensors.write_bytes(data)
        command = [str(program), str(tensors), str(report), *words]
        printed = Path(folder) / "printed"
        try:
            with printed.open("wb") as out:
                caught = {"stdout": out, "stderr": subprocess.DEVNULL, "timeout": MOST_SECONDS}
                done = subprocess.run(command, env=environment, preexec_fn=resource and _less_memory, **caught)
        except subprocess.TimeoutExpired:
            return Report(f"emulator: time: did not end within {MOST_SECONDS} s after line {_last_line(report)}"), data
        told = report.read_text(encoding="utf-8") if report.exists() else ""
        if done.returncode and "fault\n" not in told:
            told += f"fault\nemulator: crash: ended with {done.returncode} after line {_last_line(report)}"
        return _read(told, cell, _beginning(printed)), tensors.read_bytes()


def _less_memory() -> None:
    """A kernel that asks for memory in a loop shall not take the machine's. Nothing is imported after a fork."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _beginning(printed: Path) -> str:
    with printed.open(encoding="utf-8", errors="replace") as file:
        text = file.read(MOST_PRINTED)
        return f"{text} ...\n" if file.read(1) else text


def _last_line(report: Path) -> int:
    file = report.with_name(f"{report.name}.last")
    return int.from_bytes(file.read_bytes(), sys.byteorder) if file.exists() else 0


def _read(told: str, cell: Cell, printed: str) -> Report:
    lines, _, fault = told.partition("fault\n")
    report = Report(fault.strip(), printed=printed)
    for line in lines.splitlines():
        kind, *rest = line.split()
        if kind == "variable":
            number, *sizes = map(int, rest)
            report.variables.append(Variable(cell.shared[number], number, *sizes))
        elif kind == "place":
            cta, sm = map(int, rest)
            report.sms[cta] = sm
        elif kind == "event":
            cta, thread, phase, at, how, memory, element = rest
            report.events.append(Event(*map(int, (cta, thread, phase, at)), how, int(memory), int(element)))
        else:
            cta, thread, state, at = rest
            report.threads.append((int(cta), int(thread), state, int(at)))
    return report
