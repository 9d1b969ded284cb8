"""Broken kernels: the real source with one line changed, and a batch that touches every part of it.

Each change is a mistake that somebody could make. It is applied to the source as it is today, so it cannot go stale
unnoticed: a line that is no longer found exactly once fails the tests.
"""

import ctypes
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from emulator import CSRC, build, pointer

from pod.batch import HybridBatch
from pod.reference import hybrid_attention

DRIVER = Path(__file__).parent / "driver.cu"
BATCH = HybridBatch((70, 1, 1, 20), (150, 77, 33, 20), num_q_heads=4, num_kv_heads=2, head_dim=64, page_size=16)
SMS = 3
PREFILL_ROWS, DECODE_ROWS = 128, 16  # rows of a tile with two CTAs an SM


@dataclass(frozen=True)
class Mistake:
    name: str
    file: str
    old: str
    new: str
    caught: str  # what the emulator says, or "wrong result"

    def apply(self, csrc: Path) -> None:
        path = csrc / self.file
        text = path.read_text()
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: {self.file} has {self.old!r} {found} times; it must be there once")
        path.write_text(text.replace(self.old, self.new))


TILE, STREAMK, BINDING = "include/tile_attention.cuh", "include/streamk.cuh", "include/binding.cuh"
MISTAKES = [
    Mistake(
        "the barrier before a slot is read and refilled is missing",
        TILE,
        "        team.sync();\n        fetch_ahead(key);",
        "        fetch_ahead(key);",
        "race: ",
    ),
    Mistake(
        "a panel is read before its copy has arrived",
        TILE,
        "cp_async_wait<kLate ? 0 : kSlots / 2 - 2>()",
        "cp_async_wait<kLate ? 1 : kSlots / 2 - 1>()",
        "un-awaited copy: ",
    ),
    Mistake(
        "the slots still in use are refilled",
        TILE,
        "first = wrap(slot + kSlots - 2), second = wrap(slot + kSlots - 1)",
        "first = wrap(slot), second = wrap(slot + 1)",
        "un-awaited copy: ",
    ),
    Mistake(
        "the output is not rescaled when the maximum grows",
        TILE,
        "o[r][j][e] *= fade[r][e / 2];",
        ";",
        "wrong result",
    ),
    Mistake(
        "the sum is not rescaled when the maximum grows",
        "include/softmax.cuh",
        "float sum = l[r][h] * fade[r][h];",
        "float sum = l[r][h];",
        "wrong result",
    ),
    Mistake(
        "the mask is one key off",
        TILE,
        "if (column(j) + e >= seen)",
        "if (column(j) + e > seen)",
        "wrong result",
    ),
    Mistake(
        "the mask is aligned to the top left instead of the bottom right",
        TILE,
        "min(work.end, work.pos + 1 + row * diagonal)",
        "min(work.end, 1 + row * diagonal)",
        "wrong result",
    ),
    Mistake(
        "the page after the right one is read",
        TILE,
        "+ (key >> x.page_shift)))",
        "+ (key >> x.page_shift) + 1))",
        "out of bounds: 4 bytes of block_table|wrong result",
    ),
    Mistake(
        "rows past the end are copied instead of zeroed",
        TILE,
        "from + r * stride, r + first < valid)",
        "from + r * stride, true)",
        "out of bounds: |wrong result",
    ),
    Mistake(
        "the last, partly filled tile of keys is lost",
        TILE,
        "for (; key < work.end; key += kKeys) step<true>(key);",
        "for (; key + kKeys <= work.end; key += kKeys) step<true>(key);",
        "wrong result",
    ),
    Mistake(
        "shared memory is written with one swizzle and read with another",
        TILE,
        "return place((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);",
        "return ((lane & 7) + (lane >> 4) * 8) * kRowBytes + ((lane >> 3 & 1) << 4);",
        "wrong result",
    ),
    Mistake(
        "all heads of a tile are read from the first KV head",
        TILE,
        "work.kv_head * x.kv_head",
        "0 * x.kv_head",
        "wrong result",
    ),
    Mistake(
        "all parts of a tile are stored in the same slot",
        STREAMK,
        "work.slot + work.part, inverse",
        "work.slot, inverse",
        "race: |wrong result",
    ),
    Mistake(
        "partial results are counted before all warps have stored theirs",
        STREAMK,
        "    team.sync();  // all have stored their piece\n",
        "",
        "race: ",
    ),
    Mistake(
        "the ticket publishes nothing",
        STREAMK,
        "ptx::atomic_add_acq_rel(parts.arrived",
        "atomicAdd(parts.arrived",
        "race: .* with no release and acquire between",
    ),
    Mistake(
        "the parts are added without their weights",
        STREAMK,
        "const float weight = ptx::ex2(float(lse2[i * Tile::kRows]) - base);",
        "const float weight = 1;",
        "wrong result",
    ),
    Mistake(
        "the arrival counters are not set back",
        STREAMK,
        "parts.arrived[work.group] = 0;",
        ";",
        "wrong result",
    ),
    Mistake(
        "the tickets are not set back",
        BINDING,
        "c.tickets[i] = 0;",
        ";",
        "out of bounds: |wrong result|slot",
    ),
    Mistake(
        "thread 0's choice is read without waiting for it",
        BINDING,
        "        __syncthreads();\n        const Assignment a = {box[0]",
        "        const Assignment a = {box[0]",
        "race: ",
    ),
    Mistake(
        "the choice is overwritten while others still read it",
        BINDING,
        "        __syncthreads();  // the box lies in memory that the work will use\n",
        "",
        "race: ",
    ),
]


def kernel(mistake: Mistake | None):
    """The library of the kernel with this mistake, or of the right one."""
    with tempfile.TemporaryDirectory() as folder:
        csrc = Path(folder) / "csrc"
        shutil.copytree(CSRC, csrc, ignore=shutil.ignore_patterns("hopper"))
        if mistake:
            mistake.apply(csrc)
        return build(DRIVER, csrc, ["-O1", "-w"])


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


class Outcome:
    """What a kernel did with the batch in two launches: the emulator's report, or how far off the result is."""

    def __init__(self, library):
        import torch

        q, k, v, table = BATCH.tensors(seed=3)
        prefill, decode = works()
        pieces, deal = list(range(len(decode) + 1)), [0, 1, 2, 4, 5, 7, 8, 10]
        lists = np.array([*np.ravel(prefill), *np.ravel(decode), *pieces, *deal], np.int32)
        groups, slots = 8, 16
        counters = np.zeros(SMS + 3 + 2 * groups, np.int32)
        partials = np.full(slots * (PREFILL_ROWS + DECODE_ROWS) * 65, np.nan, np.float32)
        expected, _ = hybrid_attention(q, k, v, BATCH.q_lens, BATCH.kv_lens, table)
        library.run.restype = ctypes.c_char_p
        self.report, self.error = None, 0.0
        for _ in range(2):  # the second launch finds what the first has left behind
            out = torch.full_like(q, torch.nan)
            sizes = [len(q), len(k), len(BATCH.q_lens), BATCH.num_q_heads, BATCH.num_kv_heads]
            counts = [len(prefill), len(decode), len(decode), len(deal)]
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
