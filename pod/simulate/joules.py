"""A kernel's energy from what it does: bytes, products by shape, exponentials, and the watts of a GPU that is busy.

Each kind of work has a price. A kernel that is repeated without a rest stands at the power limit, so there its joules
also tell its time: the fourth roof, beside those of arithmetic, memory and shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pod.batch import HybridBatch
from pod.schedule import decide
from pod.schedule.work import WARPGROUP, Schedule


class Work(NamedTuple):
    """What a kernel does, in 10^12. Flops and scores are those computed, padding and masked ones included."""

    dram: float = 0.0  # bytes read from DRAM or written to it
    into_sms: float = 0.0  # bytes that come from L2 into shared memory
    scores: float = 0.0  # exponentials
    wide: float = 0.0  # flops of products with 128 columns, both operands in shared memory: Q K^T of prefill
    wide_registers: float = 0.0  # the same, the rows in registers: P V of prefill
    narrow: float = 0.0  # with 8 columns: both products of decode
    narrow_16: float = 0.0  # with 16


class Spent(NamedTuple):
    """What was seen: some work, how long it took, and its energy."""

    work: Work
    seconds: float
    joules: float


# ---------------------------------------------------------------- prices


@dataclass(frozen=True)
class Prices:
    """Joules of 10^12 bytes, flops or exponentials, and watts whatever a busy GPU does."""

    each: Work
    watts: float

    def moving(self, work: Work) -> float:
        """Joules of the work itself."""
        return float(np.dot(self.each, work))

    def joules(self, work: Work, seconds: float) -> float:
        return self.moving(work) + self.watts * seconds

    def least_seconds(self, work: Work, limit: float) -> float:
        """The roof: no sooner can it be repeated under a power limit, in watts."""
        return self.moving(work) / (limit - self.watts)

    def under(self, work: Work, limit: float) -> float:
        """Joules when the power limit sets the pace."""
        return self.joules(work, self.least_seconds(work, limit))


def fitted(seen: Iterable[Spent], watts: float) -> Prices:
    """The prices, none below zero, that meet the energies best, counted in percent. `watts` are given: at the power
    limit time follows energy, so that no fit could tell them apart."""
    seen = list(seen)
    joules = np.array([s.joules for s in seen])
    amounts = np.array([s.work for s in seen]) / joules[:, None]
    moving = 1 - watts * np.array([s.seconds for s in seen]) / joules
    return Prices(Work(*_least_squares(amounts, moving)), watts)


def _least_squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Without negative numbers: what would be negative is left out, the worst first."""
    size, x = np.linalg.norm(a, axis=0), np.zeros(a.shape[1])
    kept = size > 0
    while kept.any():
        found = np.linalg.lstsq(a[:, kept] / size[kept], b, rcond=None)[0]
        if found.min() >= 0:
            x[kept] = found / size[kept]
            break
        kept[np.flatnonzero(kept)[found.argmin()]] = False
    return x


# ---------------------------------------------------------------- the work of the Hopper kernel


def of_batch(batch: HybridBatch, sms: int) -> Work:
    return of_schedule(decide.hopper(batch, sms))


def of_schedule(s: Schedule) -> Work:
    """Keys and values once from DRAM, since L2 holds those of the tiles under way; from L2 for every tile."""
    shape, d = s.shape, s.batch.head_dim
    rows = WARPGROUP * -(-s.prefill.tokens * s.prefill.heads // WARPGROUP)
    blocks = s.prefill.blocks(shape.prefill_keys)
    prefill = int((rows * blocks).sum()) * shape.prefill_keys
    keys = int(s.decode.blocks(shape.decode_keys).sum()) * shape.decode_keys
    decode, copied = keys * shape.decode_rows, int(blocks.sum()) * shape.prefill_keys + keys
    narrow = "narrow" if shape.decode_rows == 8 else "narrow_16"
    counts = {"dram": s.batch.bytes, "into_sms": copied * 2 * d * 2, "scores": prefill + decode,
              "wide": 2 * prefill * d, "wide_registers": 2 * prefill * d, narrow: 4 * decode * d}  # fmt: skip
    return Work(**{name: count / 1e12 for name, count in counts.items()})
