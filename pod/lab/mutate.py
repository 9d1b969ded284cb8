"""What is this line for? A kernel with something changed or taken out, run on the CPU emulator.

A `Mistake` changes the source as it is today; `barriers` numbers every barrier, so that any of them can be left out.
`Outcome` runs the POD kernel on a batch that touches every part of it and says what the emulator reports, or whether
the result is wrong. tests/wrong has a collection of mistakes that must all be caught, in this kernel and in Hopper's.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from pod.batch import HybridBatch
from pod.hardware import GPUS
from pod.kernels import sm80
from pod.kernels.build import CSRC, plain, pointer
from pod.kernels.launch import flat
from pod.reference import hybrid_attention
from pod.schedule import decide
from pod.schedule.work import Schedule

FLAGS = ["-O1", "-w"]
BATCH = HybridBatch((70, 1, 1, 20), (150, 77, 13, 20), num_q_heads=4, num_kv_heads=2, head_dim=64, page_size=16)
SMS = 3


@dataclass(frozen=True)
class Source:
    """A kernel that can be broken."""

    driver: Path
    synced: tuple[str, ...]  # the files of csrc that its barriers are in
    unused: tuple[str, ...] = ("micro",)  # folders of csrc that it does without
    also: tuple[Path, ...] = ()  # folders of the driver's own headers

    def build(self, change=lambda csrc: None, flags=()) -> ctypes.CDLL:
        """The library of this kernel after `change` to a copy of csrc."""
        with tempfile.TemporaryDirectory() as folder:
            csrc = Path(folder) / "csrc"
            shutil.copytree(CSRC, csrc, ignore=shutil.ignore_patterns(*self.unused))
            change(csrc)
            return plain(self.driver, [*FLAGS, *flags], csrc, self.also)


POD = Source(
    CSRC / "emulate" / "driver.cu",
    ("include/binding.cuh", "include/tile_attention.cuh", "include/merge.cuh"),
    ("sm90", "lean", "micro"),
)


# ---------------------------------------------------------------- a mistake made


@dataclass(frozen=True)
class Mistake:
    """`old`, which `file` of csrc has exactly once, becomes `new`, and so on for each pair of `also`.

    `caught`: what the outcome's text should say then.
    """

    name: str
    file: str
    old: str
    new: str
    caught: str = ""
    also: tuple[tuple[str, str], ...] = ()

    def apply(self, csrc: Path) -> None:
        path = csrc / self.file
        path.write_text(_replaced(path.read_text(encoding="utf-8"), self.places(csrc)), encoding="utf-8")

    def places(self, csrc: Path) -> list[tuple[int, str, str]]:
        """Where the file has each `old`, with its `new`."""
        text = (csrc / self.file).read_text(encoding="utf-8")
        for old, _ in (pairs := [(self.old, self.new), *self.also]):
            if (found := text.count(old)) != 1:
                raise ValueError(f"{self.name}: {self.file} has {old!r} {found} times; it must be there once")
        return [(text.index(old), old, new) for old, new in pairs]


def _replaced(text: str, places: list[tuple[int, str, str]]) -> str:
    """The text with `new` in place of `old` at each place."""
    for at, old, new in sorted(places, reverse=True):
        if text[at : at + len(old)] != old:
            raise ValueError(f"{old!r}: another change begins inside it")
        text = text[:at] + new + text[at + len(old) :]
    return text


def kernel(mistake: Mistake | None = None) -> ctypes.CDLL:
    """The POD kernel with this mistake, or the right one."""
    return POD.build(mistake.apply if mistake else lambda csrc: None)


# ---------------------------------------------------------------- many in one library, of which one is chosen


def choosable(places: list[tuple[int, str, int, str, str]], source: Source, flags=()) -> ctypes.CDLL:
    """The kernel with all of these changes (number, file, place, old, new); `choose(number)` says which are made."""

    def change(csrc: Path) -> None:
        for file in {file for _, file, *_ in places}:
            here = [(at, old, _either(number, old, new)) for number, name, at, old, new in places if name == file]
            (csrc / file).write_text(_replaced((csrc / file).read_text(encoding="utf-8"), here), encoding="utf-8")

    return source.build(change, flags)


def _either(number: int, old: str, new: str) -> str:
    """Code that is `new` where `number` is chosen. What ends with ; is a statement, everything else an expression."""
    old, new = (re.sub(r" *//.*", "", code) for code in (old, new))
    if old.endswith(";"):
        return f"if (pod_chosen == {number}) {{ {new} }} else {{ {old} }}"
    return f"(pod_chosen == {number} ? {new} : {old})"


@cache
def kernels(mistakes: tuple[Mistake, ...], source: Source) -> ctypes.CDLL:
    """One library for all mistakes: `choose(i)` makes the one at i, `choose(-1)` none."""
    return choosable([(i, m.file, *place) for i, m in enumerate(mistakes) for place in m.places(CSRC)], source)


# ---------------------------------------------------------------- one barrier left out

STATEMENT = re.compile(
    r"^ *((?:team\.)?sync\(\);|meet\(\);|turn\.take\(\);|__sync(?:threads|warp)\(\);|__threadfence\(\);"
    r"|ptx::fence_proxy_async\(\);)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Barrier:
    number: int
    file: str
    place: int
    function: str
    statement: str


def barriers(source: Source = POD) -> list[Barrier]:
    """Every barrier of the kernel, in the order of the sources."""
    found = [barrier for file in source.synced for barrier in _barriers_of(file)]
    return [Barrier(number, *barrier) for number, barrier in enumerate(found)]


def _barriers_of(file: str) -> list[tuple]:
    text = (CSRC / file).read_text(encoding="utf-8")
    return [(file, m.start(1), _function_at(text, m.start()), m[1]) for m in STATEMENT.finditer(text)]


def _function_at(text: str, place: int) -> str:
    """The name of the device function that `place` is in."""
    return re.findall(r"^ *(?:template <.*> )?DEV [^;]*?(\w+)\(", text[:place], re.MULTILINE)[-1]


@cache
def numbered(source: Source, *flags: str) -> ctypes.CDLL:
    """The kernel in which `choose(number)` leaves out one of its barriers."""
    return choosable([(b.number, b.file, b.place, b.statement, ";") for b in barriers(source)], source, flags)


def without(barrier: Barrier | None, head_dim: int = 128) -> Outcome:
    """What the kernel does when a barrier is left out."""
    library = numbered(POD, f"-DHEAD_DIM={head_dim}")
    library.choose(-1 if barrier is None else barrier.number)
    return Outcome(library, head_dim)


# ---------------------------------------------------------------- and what comes of it


class Outcome:
    """What a kernel did with the batch in two launches: the emulator's report, or how far off the result is."""

    def __init__(self, library: ctypes.CDLL, head_dim: int = BATCH.head_dim):
        import torch

        batch = replace(BATCH, head_dim=head_dim)
        q, k, v, table = batch.tensors(seed=3)
        header, lists, counters, floats = sm80.lay_out(made_for(batch))
        numbers, lists, counters = np.array(header, np.int32), flat(lists), np.zeros(counters, np.int32)
        partials = np.full(floats, np.nan, np.float32)
        expected, _ = hybrid_attention(q, k, v, BATCH.q_lens, BATCH.kv_lens, table)
        library.run.restype = ctypes.c_char_p
        self.report, self.error = None, 0.0
        for _ in range(2):  # the second launch finds what the first has left behind
            out = torch.full_like(q, torch.nan)
            sizes = [len(q), len(k), len(BATCH.q_lens), BATCH.num_q_heads, BATCH.num_kv_heads]
            tensors = [pointer(x.view(torch.int16).numpy()) for x in (q, k, v, out)]
            table_args = [pointer(table.numpy()), table.shape[1]]
            work_args = [pointer(x) for x in (numbers, lists, counters, partials)]
            report = library.run(*tensors, *table_args, *sizes, *work_args)
            if report:
                self.report = report.decode()
                return
            off = np.abs(out.double().numpy() - expected)
            self.error = max(self.error, np.inf if np.isnan(off).any() else off.max())

    @property
    def text(self) -> str:
        return self.report or ("wrong result" if self.error > 0.02 else "right result")


def made_for(batch: HybridBatch) -> Schedule:
    """A work list that touches every part: some sequences are split in two, and the last piece has two rows."""
    made = decide.hybrid(batch, GPUS["a100"], SMS, "pod", "50:50", 2, prefill_splits=2, decode_splits=2)
    pieces = np.delete(made.decode.pieces, -2)
    return replace(made, decode=replace(made.decode, pieces=pieces))
