"""Every cost model that chooses: how many CTAs, how many parts, which tile, whose turn, which kernel.

The constants were measured on an H200; other cards use them too, and are right, if perhaps not as fast as they could.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from pod.batch import HybridBatch
from pod.hardware import GPU
from pod.schedule.decode import MOST_PARTS, pass_count
from pod.schedule.work import PERSISTENT, SHAPES, WIDE, Shape, Side

# ---------------------------------------------------------------- the sm_80 family: how long each side would take
# The tensor cores give mma.sync MMA_SYNC of their rate, 1 on cards without wgmma. Prefill reaches PREFILL_SHARE of
# that: the smaller tile of four CTAs an SM reads K and V twice as often. A prefill CTA alone on its SM, beside decode,
# reaches ALONE of what a full SM does, or CROWDED where decode has most SMs to itself: then decode takes all of the
# DRAM rate, and prefill waits for its keys. Decode reaches DECODE_SHARE of that rate.
MMA_SYNC = {"h100": 0.64, "h200": 0.64}
PREFILL_SHARE = {2: 0.58, 4: 0.47}
ALONE, CROWDED = 0.75, 0.6
DECODE_SHARE = 0.92
# Beside prefill decode is handed out in pieces that shrink: each is an even share of what is left for every slot of the
# card. Where prefill takes more than LONG_PREFILL of decode's time, it is SMALL_PART of that: then decode need not
# hurry, and no prefill waits long for a slot.
LONG_PREFILL, SMALL_PART = 0.7, 0.8
# Four CTAs an SM have a slower prefill. They pay where a prompt is so short that the tiles of two CTAs an SM would make
# just one wave, decode would make it two, and prefill is long.
SHORT_PROMPT = 1024


def seconds(batch: HybridBatch, gpu: GPU, sms: int, ctas_per_sm: int) -> tuple[float, float]:
    """That prefill and decode would take alone, on `sms` SMs of this card."""
    flops, nbytes = batch.bounds
    prefill, decode = flops / prefill_rate(gpu, ctas_per_sm), nbytes / gpu.dram_bytes_per_s / DECODE_SHARE
    return prefill * gpu.sms / sms, decode * gpu.sms / sms


def prefill_rate(gpu: GPU, ctas_per_sm: int) -> float:
    """FLOP/s of prefill alone on this card."""
    return gpu.tensor_flops * MMA_SYNC.get(gpu.key, 1.0) * PREFILL_SHARE[ctas_per_sm]


def is_long(times: tuple[float, float]) -> bool:
    prefill, decode = times
    return prefill > LONG_PREFILL * decode


def ctas_per_sm(batch: HybridBatch, gpu: GPU, sms: int, method: str) -> int:
    if method != "pod" or not batch.prefill or not batch.decode or max(batch.prefill.kv_lens) > SHORT_PROMPT:
        return 2
    return 4 if is_long(seconds(batch, gpu, sms, 2)) else 2


# ---------------------------------------------------------------- the sm_80 family: parts of a prefill tile
def vanilla_splits(tiles: int, blocks: int, ctas: int) -> int:
    """FlashDecoding's rule: the fewest parts whose last wave is nearly as full as the best choice's.

    `blocks` is how many key blocks the longest tile has, `ctas` how many CTAs run at once.
    """
    if tiles >= 0.8 * ctas:
        return 1
    counts = np.arange(1, min(MOST_PARTS, ctas, blocks) + 1)
    waves = tiles * counts / ctas
    full = waves / np.ceil(waves)
    return int(counts[np.argmax(full >= 0.85 * full.max())])


def limited_splits(tiles: int, blocks: int, ctas: int, tile_time: float = 1.0, batch_time: float = 0.0) -> int:
    """The paper's limit (§4.2.4), at most two waves of prefill; and within it no more parts than the batch needs.

    Beside decode, prefill has the time that the whole batch takes: the fewest parts do whose longest (`tile_time` if
    uncut) ends well before `batch_time`. Without decode, batch_time = 0, FlashDecoding's rule decides.
    """
    most = max(1, min(2 * ctas // max(1, tiles), blocks, MOST_PARTS))
    if batch_time == 0:
        return min(vanilla_splits(tiles, blocks, ctas), most)
    return next((n for n in range(1, most) if tile_time / n <= 0.9 * batch_time), most)


def tile_seconds(batch: HybridBatch, gpu: GPU, ctas_per_sm: int, tiles: int, longest: int, sms: int) -> float:
    """Of a prefill tile with `longest` keys, beside decode."""
    rate = prefill_rate(gpu, ctas_per_sm) * (CROWDED if 2 * tiles <= sms else ALONE) / gpu.sms
    return 4 * batch.head_dim * SHAPES[ctas_per_sm].prefill_rows * longest / rate


# ---------------------------------------------------------------- the sm_80 family: parts of a decode
PIECE_OVERHEAD = 32  # what starting and merging a decode piece costs, in keys
SHORTEST = 512  # keys of a piece, when pieces shrink


def even_keys(kv_lens: np.ndarray, passes: int, workers: int, step: int) -> int:
    """Keys a decode piece should have, so that `workers` warps end at about the same time.

    Longer pieces cost less to start and merge, shorter ones leave less of the last wave idle; the model weighs both.
    """
    longest, total = int(kv_lens.max()), int(kv_lens.sum()) * passes
    choices = np.unique(np.ceil(longest / np.arange(1, MOST_PARTS + 1) / step).astype(int) * step)
    choices = choices[choices >= min(256, choices.max())]
    parts = -(-kv_lens[:, None] // choices)  # [sequences, choices]
    pieces = parts.sum(0) * passes
    mean = total / pieces + PIECE_OVERHEAD
    slowest = (-(-kv_lens[:, None] // parts)).max(0) + PIECE_OVERHEAD
    time = np.maximum(slowest, mean * np.ceil(pieces / workers))
    return int(choices[::-1][np.argmin(time[::-1])])  # the longest of the best


def shrinking_keys(kv_lens: np.ndarray, passes: int, workers: int, step: int) -> np.ndarray:
    """Keys that the pieces of each request should have: a worker's share of what is left, but no fewer than SHORTEST.

    Nobody knows when beside prefill a slot becomes free. Long pieces first cost little, short ones last end together.
    """
    order = np.argsort(-kv_lens, kind="stable")
    left = np.empty_like(kv_lens)
    left[order] = np.cumsum(kv_lens[order][::-1])[::-1]
    return np.maximum(SHORTEST, -(-left * passes // workers // step) * step)


def decode_parts(side: Side, shape: Shape, workers: int, rule: int | str) -> np.ndarray | int | None:
    """Of each request: so many; "auto", so that `workers` warps end together; "shrinking", to be handed out to them as
    they become free; or for "stream-k" None, equal ranges."""
    if rule == "stream-k" or len(side.seq) == 0:
        return None
    if not isinstance(rule, str):
        return rule
    keys = {"auto": even_keys, "shrinking": shrinking_keys}[rule]
    length = keys(side.kv_len, pass_count(side, shape.decode_rows), workers, shape.decode_keys)
    return -(-side.kv_len // length)


# ---------------------------------------------------------------- the sm_80 family: all of it
class Cut(NamedTuple):
    """How the sm_80 family shares out a batch."""

    ctas_per_sm: int
    splits: int  # of each prefill tile
    workers: int  # warps among which decode is shared out
    parts: np.ndarray | int | None  # of each decode; None for equal ranges


def hybrid(batch: HybridBatch, chunks: Side, singles: Side, gpu: GPU, sms: int, method: str, ctas: int | str,
           prefill_splits: int | str, decode_splits: int | str) -> Cut:  # fmt: skip
    """`prefill_splits`: parts, or the rule "limited", "vanilla" or "none". `decode_splits`: parts; "auto", so that all
    warps end together, or beside prefill in pieces that shrink; or "stream-k"."""
    if ctas == "auto":
        ctas = ctas_per_sm(batch, gpu, sms, method)
    shape, times = SHAPES[ctas], seconds(batch, gpu, sms, ctas)
    beside, splits = len(chunks.seq) > 0 and method != "serial", prefill_splits
    if isinstance(splits, str):
        alone = len(singles.seq) == 0 or method in ("serial", "streams")
        splits = _splits(batch, chunks, gpu, sms, ctas, splits, 0.0 if alone else max(times))
    workers = sms * ctas * shape.virtual
    if beside and is_long(times):
        workers = int(workers / SMALL_PART)
    rule = "shrinking" if beside and decode_splits == "auto" else decode_splits
    return Cut(ctas, splits, workers, decode_parts(singles, shape, workers, rule))


def _splits(batch, chunks: Side, gpu: GPU, sms: int, ctas: int, rule: str, batch_time: float) -> int:
    if rule == "none" or len(chunks.seq) == 0:
        return 1
    shape, longest = SHAPES[ctas], int(chunks.kv_len.max())
    tiles = int((-(-chunks.q_len // shape.prefill_rows)).sum()) * chunks.q_heads
    sizes = (tiles, -(-longest // shape.prefill_keys), sms * ctas)
    if rule == "vanilla":
        return vanilla_splits(*sizes)
    if batch_time == 0:
        return limited_splits(*sizes)
    return limited_splits(*sizes, tile_seconds(batch, gpu, ctas, tiles, longest, sms), batch_time)


# ---------------------------------------------------------------- FlashDecoding and stream-K
FULL = 0.95  # of a wave: a fuller one is worth whole parts (they win 1 to 3 %)


def flash_splits(units: int, blocks: int, sms: int, ctas_per_sm: int = 2) -> int:
    """How many parts FlashDecoding would choose: the fewest whose last wave is at least 85 % as full as the best one's.

    Its version 2.5.6, the paper's, counts one CTA an SM although two fit; later ones count two. `units` are CTAs
    without a split, `blocks` the key blocks of the longest.
    """
    ctas = sms * ctas_per_sm
    if units >= 0.8 * ctas:
        return 1
    length = lambda parts: -(-blocks // parts)  # noqa: E731
    choices = [n for n in range(1, min(MOST_PARTS, ctas, blocks) + 1) if n == 1 or length(n) != length(n - 1)]
    full = {n: units * n / ctas / -(-units * n // ctas) for n in choices}
    return next(n for n in choices if full[n] >= 0.85 * max(full.values()))


def full_parts(units: int, workers: int) -> int | None:
    """Parts of each of `units` equally long units that nearly fill the waves of `workers`; None if no number does.

    Then a fixed split ends as early as equal ranges would, and no range crosses the border of a unit.
    """
    parts = max(1, workers // units)
    waves = -(-units * parts // workers)
    return parts if units * parts >= FULL * waves * workers else None


# ---------------------------------------------------------------- the Hopper kernel
PREFILL_FLOPS = 700e12  # FLOP/s that the prefill side reaches alone on an H200 (measured)
DECODE_BYTES = 4.25e12  # bytes/s of KV that the decode side reads alone (measured)
UNIT_OVERHEAD = 3  # what starting and merging a piece of prefill costs, in blocks
WIDE_COST = 1.28  # time of a block of the wide tile over that of the other
MIN_TILES = 8  # blocks of a piece of decode: below, merging more parts costs more than it saves
# What merging the parts of a head costs, and what beginning another part costs.
MERGE_US, BORDER_US = 5.0, 1.0


def prefill_yields(batch: HybridBatch) -> bool:
    """Whether decode would end last and so deserves the tensor cores between two turns of prefill.

    The tensor cores serve waiting warps in turn. With two prefill warpgroups queueing, decode gets every third product;
    when they hand over only at the end of a turn, every second, at the price of 10 % of prefill's own rate.
    """
    prefill, decode = batch.prefill, batch.decode
    if not prefill or not decode:
        return False
    return prefill.flops / PREFILL_FLOPS < decode.kv_bytes / DECODE_BYTES


def makespan(lengths: np.ndarray, workers: int) -> float:
    """Time until greedy workers have finished pieces of these lengths, longest first."""
    ends = [0.0] * workers
    for length in sorted(lengths, reverse=True):
        heapq.heappushpop(ends, ends[0] + length)
    return max(ends)


def prefill_splits(blocks: np.ndarray, workers: int) -> int:
    """In how many parts each tile's KV range is cut: more than one only when whole tiles would leave workers idle."""
    best, best_time = 1, np.inf
    for splits in range(1, 9):
        if splits > 1 and (len(blocks) * splits > 2 * workers or splits > blocks.min()):
            break
        time = makespan(np.repeat(np.ceil(blocks / splits) + UNIT_OVERHEAD, splits), workers)
        if time < best_time:
            best, best_time = splits, time
    return best


def prefill_time(shape: Shape, blocks: np.ndarray, workers: int) -> float:
    """Of pieces with so many blocks each, in blocks of the usual tile: what speaks for the wide one or against it."""
    return (WIDE_COST if shape is WIDE else 1.0) * makespan(blocks + UNIT_OVERHEAD, workers)


def cheapest_parts(units: int, tiles: int, workers: int, tile_us: float) -> int | None:
    """Parts of each of `units` equally long heads that end first, or None if equal ranges do.

    Equal ranges leave nobody idle, but merging costs time, and so does every border between two parts in a range.
    """

    def time(parts: int) -> float:
        waves = -(-units * parts // workers)
        return waves * -(-tiles // parts) * tile_us + (waves - 1) * BORDER_US + (MERGE_US if parts > 1 else 0)

    longest = max(units * tiles / workers, MIN_TILES)
    equal = longest * tile_us + MERGE_US + (1 + units // workers) * BORDER_US
    best = min(range(1, min(tiles, MOST_PARTS) + 1), key=time)
    return best if time(best) <= equal else None


def whole_parts(batch: HybridBatch, sms: int) -> int | None:
    """`cheapest_parts` of a batch of decodes; None also where they are not equally long."""
    if len(set(batch.kv_lens)) > 1:
        return None
    tiles = -(-batch.kv_lens[0] // PERSISTENT.decode_keys)
    units = len(batch.kv_lens) * batch.num_kv_heads * -(-batch.group // PERSISTENT.decode_rows)
    tile_us = batch.kv_bytes / (units * tiles) / (DECODE_BYTES / sms) * 1e6
    return cheapest_parts(units, tiles, sms, tile_us)


# ---------------------------------------------------------------- decodes alone: which kernel
MANY, LARGE = 32, 1 << 29  # KV heads of all requests; bytes of keys and values


def decode_worker(batch: HybridBatch, on_hopper: bool, splits: int | str = "auto") -> str:
    """The Hopper kernel where it runs. "auto" leaves large batches of many heads to warps, which read them 1 to 8 %
    faster (on H200); few heads they would cut into too many parts."""
    if not on_hopper:
        return "warp"
    many = len(batch.kv_lens) * batch.num_kv_heads >= MANY
    return "warp" if splits == "auto" and many and batch.kv_bytes >= LARGE else "hopper"
