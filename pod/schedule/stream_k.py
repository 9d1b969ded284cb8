"""Stream-K: lay the key blocks of all decode requests on one line and cut it into ranges, one a worker.

A range may begin and end inside a request, so no worker idles in a last wave (LeanAttention). Where the line is cut is
all that tells the methods apart: at equal distances, at the end of every head (FlashAttention-2), or at fixed parts of
every head (FlashDecoding). The parts of a head are merged as those of a fixed split are.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from pod.schedule.fixed_split import MOST_PARTS, WorkList, decode_lanes, empty, number_parts, rows

BLOCK = 64  # keys that are not cut apart
FULL = 0.95  # of a wave: a fuller one is worth whole parts (measured on H200: they win 1 to 3 %)


# ---------------------------------------------------------------- where to cut: the end of each range, in blocks
def equal_cuts(blocks: np.ndarray, workers: int) -> np.ndarray:
    """As many ranges as workers, equally long to within one block."""
    total = int(np.sum(blocks))
    workers = min(workers, total)
    return np.arange(1, workers + 1) * total // workers


def split_cuts(blocks: np.ndarray, splits: int) -> np.ndarray:
    """Every unit in parts of a length that cuts the longest into `splits`; a short one fills fewer. 1: whole units."""
    blocks = np.asarray(blocks, np.int64)
    part = -(-int(blocks.max()) // splits)
    parts = -(-blocks // part)
    starts = np.repeat(np.cumsum(blocks) - blocks, parts)
    number = np.arange(len(starts)) - np.repeat(np.cumsum(parts) - parts, parts)
    return np.minimum(starts + (number + 1) * part, np.repeat(np.cumsum(blocks), parts))


def full_parts(units: int, workers: int) -> int | None:
    """Parts of each of `units` equally long units that nearly fill the waves of `workers`; None if no number does.

    Then a fixed split ends as early as equal ranges would, and no range crosses the border of a unit.
    """
    parts = max(1, workers // units)
    waves = -(-units * parts // workers)
    return parts if units * parts >= FULL * waves * workers else None


def flash_splits(units: int, blocks: int, sms: int, ctas_per_sm: int = 2) -> int:
    """How many parts FlashDecoding would choose: the fewest whose last wave is at least 85 % as full as the best one's.

    Its version 2.5.6, the paper's, counts one CTA an SM although two fit; later ones count two. `units` are CTAs
    without a split, `blocks` the key blocks of the longest.
    """
    slots = sms * ctas_per_sm
    if units >= 0.8 * slots:
        return 1
    length = lambda parts: -(-blocks // parts)  # noqa: E731
    choices = [n for n in range(1, min(MOST_PARTS, slots, blocks) + 1) if n == 1 or length(n) != length(n - 1)]
    full = {n: units * n / slots / -(-units * n // slots) for n in choices}
    return next(n for n in choices if full[n] >= 0.85 * max(full.values()))


# ---------------------------------------------------------------- what lies between the cuts
def segments(blocks: np.ndarray, cuts: np.ndarray) -> tuple[np.ndarray, ...]:
    """Units of `blocks` blocks, end to end, cut at `cuts`: each segment's worker, unit, first and end block."""
    ends = np.cumsum(blocks)
    borders = np.unique(np.concatenate([[0], ends, cuts]))
    unit = np.searchsorted(ends, borders[:-1], side="right")
    start = (ends - blocks)[unit]
    return np.searchsorted(cuts, borders[:-1], side="right"), unit, borders[:-1] - start, borders[1:] - start


def decode_work(
    tokens, kv_lens, seqs, num_q_heads, num_kv_heads, workers: int, splits: int | None = None, packed: bool = True,
    block: int = BLOCK, alike: int | None = None,
) -> WorkList:  # fmt: skip
    """Decode of all requests in at most `workers` pieces of equal length, or cut into `splits` whatever the workers.

    packed: the query heads of a KV head share a pass over it; without, as in the paper, every query head reads for
    itself. alike: so many neighbouring heads, whose keys and values lie side by side in memory, are cut at the same
    places, so that neighbouring workers read them at the same time; None for as many as can be, or one if not packed.
    """
    kv_lens = np.asarray(kv_lens, np.int64)
    if len(kv_lens) == 0:
        return empty()
    lanes = decode_lanes(num_q_heads, num_kv_heads) if packed else _single_lanes(num_q_heads, num_kv_heads)
    if alike is None:
        alike = gcd(len(lanes), workers if splits is None else 0) if packed else 1
    request, lane = np.arange(len(kv_lens)), np.arange(0, len(lanes), alike)
    request, lane = np.repeat(request, len(lane)), np.tile(lane, len(request))
    blocks = -(-kv_lens // block)[request]
    cuts = equal_cuts(blocks, workers // alike) if splits is None else split_cuts(blocks, splits)
    worker, unit, begin, end = segments(blocks, cuts)
    parts = np.bincount(unit)
    _, part, slot, group, slots, groups = number_parts(parts)

    # Every segment once for each lane that is cut alike: worker * alike + i has those of the i-th.
    s, i = np.divmod(np.arange(len(unit) * alike), alike)
    order = np.lexsort((s, i, worker[s]))
    s, i = s[order], i[order]
    u = unit[s]
    r, n = request[u], parts[u]
    head, kv_head, count = lanes[lane[u] + i].T
    work = rows(token=np.asarray(tokens)[r], rows=count, head=head, kv_head=kv_head, seq=np.asarray(seqs)[r],
                pos=kv_lens[r] - 1, begin=begin[s] * block, end=np.minimum(end[s] * block, kv_lens[r]), part=part[s],
                parts=n, slot=slot[s] * alike + i * n, group=group[s] * alike + i)  # fmt: skip
    pieces = np.searchsorted(worker[s] * alike + i, np.arange((worker[-1] + 1) * alike + 1))
    return WorkList(work, pieces.astype(np.int32), slots * alike, groups * alike)


def _single_lanes(num_q_heads: int, num_kv_heads: int) -> np.ndarray:
    """decode_lanes with one query head each."""
    head = np.arange(num_q_heads)
    return np.stack([head, head // (num_q_heads // num_kv_heads), np.ones_like(head)], axis=1)
