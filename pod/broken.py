"""What is this line for? The POD kernel with something changed or taken out, run on the CPU emulator.

A `Mistake` changes one place of the source as it is today; `barriers` numbers every barrier, so that any of them can be
left out. `Outcome` runs the kernel on a batch that touches every part of it and says what the emulator reports, or
whether the result is wrong. tests/wrong has a collection of mistakes that must all be caught.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np

from pod.batch import HybridBatch
from pod.emulator import CSRC, build, pointer
from pod.reference import hybrid_attention
from pod.schedule.binding import DECODE, PREFILL

DRIVER = CSRC / "emulate" / "driver.cu"
FLAGS = ["-O1", "-w"]
BATCH = HybridBatch((70, 1, 1, 20), (150, 77, 33, 20), num_q_heads=4, num_kv_heads=2, head_dim=64, page_size=16)
SMS = 3
PREFILL_ROWS, DECODE_ROWS = 128, 16  # rows of a tile with two CTAs an SM


# ---------------------------------------------------------------- one place changed


@dataclass(frozen=True)
class Mistake:
    """`old`, which `file` of csrc has exactly once, becomes `new`. `caught`: what Outcome.text should say then."""

    name: str
    file: str
    old: str
    new: str
    caught: str = ""

    def apply(self, csrc: Path) -> None:
        path = csrc / self.file
        text = path.read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: {self.file} has {self.old!r} {found} times; it must be there once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def kernel(mistake: Mistake | None = None) -> ctypes.CDLL:
    """The kernel with this mistake, or the right one."""
    with _copy_of_csrc() as csrc:
        if mistake:
            mistake.apply(csrc)
        return build(DRIVER, FLAGS, csrc)


class _copy_of_csrc(tempfile.TemporaryDirectory):
    def __enter__(self) -> Path:
        csrc = Path(super().__enter__()) / "csrc"
        shutil.copytree(CSRC, csrc, ignore=shutil.ignore_patterns("hopper", "micro"))
        return csrc


# ---------------------------------------------------------------- one barrier left out

SYNCED = ("include/binding.cuh", "include/tile_attention.cuh", "include/streamk.cuh")
STATEMENT = re.compile(r"^( *)((?:team\.)?sync\(\);|__syncthreads\(\);|__syncwarp\(\);)", re.MULTILINE)


@dataclass(frozen=True)
class Barrier:
    number: int
    file: str
    function: str
    statement: str


def barriers() -> list[Barrier]:
    """Every barrier of the kernel, in the order of the sources."""
    texts = {file: (CSRC / file).read_text(encoding="utf-8") for file in SYNCED}
    found = [(file, text, m) for file, text in texts.items() for m in STATEMENT.finditer(text)]
    return [Barrier(i, file, _function_at(text, m.start()), m[2]) for i, (file, text, m) in enumerate(found)]


def _function_at(text: str, place: int) -> str:
    """The name of the device function that `place` is in."""
    return re.findall(r"^ *(?:template <.*> )?DEV [^;]*?(\w+)\(", text[:place], re.MULTILINE)[-1]


@cache
def numbered(head_dim: int) -> ctypes.CDLL:
    """The kernel in which `leave_out(number)` disables one of its barriers."""
    number = count()
    with _copy_of_csrc() as csrc:
        for file in SYNCED:
            text = (csrc / file).read_text(encoding="utf-8")
            text = STATEMENT.sub(lambda m: f"{m[1]}if (pod_without != {next(number)}) {m[2]}", text)
            (csrc / file).write_text(text, encoding="utf-8")
        return build(DRIVER, [*FLAGS, f"-DHEAD_DIM={head_dim}"], csrc)


def without(barrier: Barrier | None, head_dim: int = 128) -> Outcome:
    """What the kernel does when a barrier is left out."""
    library = numbered(head_dim)
    library.leave_out(-1 if barrier is None else barrier.number)
    return Outcome(library, head_dim)


# ---------------------------------------------------------------- and what comes of it


class Outcome:
    """What a kernel did with the batch in two launches: the emulator's report, or how far off the result is."""

    def __init__(self, library: ctypes.CDLL, head_dim: int = BATCH.head_dim):
        import torch

        q, k, v, table = replace(BATCH, head_dim=head_dim).tensors(seed=3)
        prefill, decode = works()
        pieces, deal = [*range(len(decode) - 1), len(decode)], [PREFILL, DECODE] * 4  # the last piece has two records
        lists = np.array([*np.ravel(prefill), *np.ravel(decode), *pieces, *deal], np.int32)
        groups, slots = 8, 16
        counters = np.zeros(SMS + 3 + 2 * groups, np.int32)
        partials = np.full(slots * (PREFILL_ROWS + DECODE_ROWS) * (head_dim + 1), np.nan, np.float32)
        expected, _ = hybrid_attention(q, k, v, BATCH.q_lens, BATCH.kv_lens, table)
        library.run.restype = ctypes.c_char_p
        self.report, self.error = None, 0.0
        for _ in range(2):  # the second launch finds what the first has left behind
            out = torch.full_like(q, torch.nan)
            sizes = [len(q), len(k), len(BATCH.q_lens), BATCH.num_q_heads, BATCH.num_kv_heads]
            counts = [len(prefill), len(decode), len(pieces) - 1, len(deal)]
            tensors = [pointer(x.view(torch.int16).numpy()) for x in (q, k, v, out)]
            table_args = [pointer(table.numpy()), table.shape[1]]
            work_args = [pointer(lists), *counts, pointer(counters), groups, pointer(partials), slots, slots, SMS]
            report = library.run(*tensors, *table_args, *sizes, *work_args)
            if report:
                self.report = report.decode()
                return
            off = np.abs(out.double().numpy() - expected)
            self.error = max(self.error, np.inf if np.isnan(off).any() else off.max())

    @property
    def text(self) -> str:
        return self.report or ("wrong result" if self.error > 0.02 else "right result")


def works() -> tuple[list, list]:
    """Prefill and decode records, as csrc/include/tile_attention.cuh reads them; some sequences are split in two."""
    group = BATCH.num_q_heads // BATCH.num_kv_heads
    cuts = {0: [0, 64, 150], 1: [0, 32, 77]}  # parts of the split sequences
    lists = {True: [], False: []}
    starts = np.cumsum([0, *BATCH.q_lens])
    groups = {True: 0, False: 0}
    for seq, (q_len, kv_len) in enumerate(zip(BATCH.q_lens, BATCH.kv_lens, strict=True)):
        prefill = q_len > 1
        bounds = cuts.get(seq, [0, kv_len])
        parts = len(bounds) - 1
        for head in range(0, BATCH.num_q_heads, 1 if prefill else group):
            rows, pos = (q_len, kv_len - q_len) if prefill else (group, kv_len - 1)
            slot = groups[prefill] * 2
            for part in range(parts):
                keys = bounds[part : part + 2]
                record = [starts[seq], rows, head, head // group, seq, pos, *keys, part, parts, slot, groups[prefill]]
                lists[prefill].append(record)
            groups[prefill] += parts > 1
    return lists[True], lists[False]
