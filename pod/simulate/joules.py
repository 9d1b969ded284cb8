"""A kernel's energy from what it does: bytes, products by shape, exponentials, and the watts of a GPU that is awake.

Each kind of work has a price, measured alone. A kernel that is repeated without a rest stands at the power limit, so
there its joules also tell its time: a roof of their own, beside FLOP/s and bytes/s.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pod.batch import HybridBatch
from pod.schedule import decide
from pod.schedule.work import WARPGROUP, Schedule


class Work(NamedTuple):
    """What a kernel does, in 10^12. Flops and scores are those computed, padding and masked ones included."""

    dram: float = 0.0  # bytes read from DRAM or written to it
    into_sms: float = 0.0  # bytes that come from L2 into shared memory
    scores: float = 0.0  # exponentials, and what softmax does for each
    wide: float = 0.0  # flops of products with 128 columns, both operands in shared memory: Q K^T of prefill
    wide_registers: float = 0.0  # the same, the rows in registers: P V of prefill
    narrow: float = 0.0  # with 8 columns: both products of decode
    narrow_16: float = 0.0  # with 16


ON_ITS_OWN_CLOCK = ("dram",)
# What a list of prices does not know of a kernel: the order of its addresses, and what its numbers look like.
UNKNOWN = (("dram",), ("wide", "wide_registers"))
EXPONENTS = np.arange(0, 21) / 10


class Spent(NamedTuple):
    """What was seen: some work, its seconds and joules, and the clock of the SMs in MHz."""

    work: Work
    seconds: float
    joules: float
    mhz: float


# ---------------------------------------------------------------- prices


@dataclass(frozen=True)
class Prices:
    """Joules of 10^12 bytes, flops or exponentials, each at the clock at which it was found; a lower clock needs less
    voltage, so there work is cheaper, by a power of the clock. Watts: of a GPU that is awake, whatever it does."""

    each: Work
    mhz: Work
    watts: float
    exponent: float = 1.0

    def parts(self, work: Work, mhz: float) -> Work:
        """Joules of each kind of work."""
        slower = Work(*(mhz / at if at else 1.0 for at in self.mhz))._replace(**dict.fromkeys(ON_ITS_OWN_CLOCK, 1.0))
        return Work(*np.array(self.each) * work * np.array(slower) ** self.exponent)

    def joules(self, work: Work, mhz: float, seconds: float) -> float:
        return sum(self.parts(work, mhz)) + self.watts * seconds

    def least_seconds(self, work: Work, mhz: float, limit: float) -> float:
        """The roof: no sooner can it be repeated under a power limit, in watts."""
        return sum(self.parts(work, mhz)) / (limit - self.watts)


def adjusted(listed: Prices, seen: Iterable[Spent]) -> Prices:
    """A price list with three numbers learnt from a kernel: the exponent of the clock, and a factor for each of what
    the list does not know. Errors count in percent."""
    seen = list(seen)
    fits = [_fit(replace(listed, exponent=float(exponent)), seen) for exponent in EXPONENTS]
    return min(fits, key=lambda fit: fit[1])[0]


def _fit(prices: Prices, seen: list[Spent]) -> tuple[Prices, float]:
    """With the best factors for this exponent, and the sum of the squared errors."""
    joules = np.array([s.joules for s in seen])
    parts = np.array([prices.parts(s.work, s.mhz) for s in seen]) / joules[:, None]
    columns = [[Work._fields.index(name) for name in names] for names in UNKNOWN]
    unknown = np.stack([parts[:, mine].sum(axis=1) for mine in columns], axis=1)
    rest = 1 - prices.watts * np.array([s.seconds for s in seen]) / joules - (parts.sum(axis=1) - unknown.sum(axis=1))
    factors = np.linalg.lstsq(unknown, rest, rcond=None)[0]
    each = prices.each
    for names, factor in zip(UNKNOWN, factors, strict=True):
        each = each._replace(**{name: float(factor) * getattr(each, name) for name in names})
    return replace(prices, each=each), float(((unknown @ factors - rest) ** 2).sum())


# ---------------------------------------------------------------- the work of the Hopper kernel


def of_batch(batch: HybridBatch, sms: int) -> Work:
    return of_schedule(decide.hopper(batch, sms, causal=batch.causal))


def of_schedule(s: Schedule) -> Work:
    """Keys and values once from DRAM, since L2 holds those of the tiles under way; from L2 for every tile."""
    shape, d = s.shape, s.batch.head_dim
    rows = WARPGROUP * -(-s.prefill.tokens * s.prefill.heads // WARPGROUP)
    blocks = s.prefill.blocks(shape.prefill_keys)
    prefill = int((rows * blocks).sum()) * shape.prefill_keys
    keys = int(s.decode.blocks(shape.decode_keys).sum()) * shape.decode_keys
    decode, copied = keys * shape.decode_rows, int(blocks.sum()) * shape.prefill_keys + keys
    narrow = "narrow" if shape.decode_rows == 8 else "narrow_16"
    counts = {"dram": s.batch.bytes, "into_sms": copied * 2 * d * s.batch.kv_width, "scores": prefill + decode,
              "wide": 2 * prefill * d, "wide_registers": 2 * prefill * d, narrow: 4 * decode * d}  # fmt: skip
    return Work(**{name: count / 1e12 for name, count in counts.items()})
