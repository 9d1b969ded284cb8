"""Every cost model that chooses: how many CTAs, how many parts, which tile, whose turn, which kernel.

The constants were measured on an H200; other cards use them too, and are right, if perhaps not as fast as they could.
"""

from functools import cache, lru_cache
from math import ceil, gcd
from typing import NamedTuple

import numpy as np

from pod.batch import HybridBatch
from pod.hardware import GPU
from pod.schedule.decode import MOST_PARTS, distinct, segments, weighted_cuts
from pod.schedule.work import DECODE_ROWS, PERSISTENT, SHAPES, WARPGROUP, WIDE, Pack, Shape, Side, pass_count

# ---------------------------------------------------------------- the sm_80 family: how long each side would take
# The tensor cores give mma.sync MMA_SYNC of their rate, 1 on cards without wgmma. Prefill reaches PREFILL_SHARE of
# that: the smaller tile of four CTAs an SM reads K and V twice as often. A prefill CTA alone on its SM, beside decode,
# reaches ALONE of what a full SM does, or CROWDED where decode has most SMs to itself: then decode takes all of the
# DRAM rate, and prefill waits for its keys. Decode reaches DECODE_SHARE of that rate.
MMA_SYNC = {"h100": 0.64, "h200": 0.64}
PREFILL_SHARE = {2: 0.58, 4: 0.47, 8: 0.35}  # the last one is a guess: eight CTAs are never chosen
ALONE, CROWDED = 0.75, 0.6
DECODE_SHARE = 0.92
# Beside prefill decode is handed out in pieces that shrink: each is an even share of what is left for every slot of the
# card. Where prefill takes more than LONG_PREFILL of decode's time, it is SMALL_PART of that: then decode need not
# hurry, and no prefill waits long for a slot.
LONG_PREFILL, SMALL_PART = 0.7, 0.8
# Four CTAs an SM have a slower prefill. They pay where a prompt is so short that the tiles of two CTAs an SM would make
# just one wave, decode would make it two, and prefill is long.
SHORT_PROMPT = 1024
# Turns put one CTA of each kind on every SM that has two. With many pieces of prefill an SM they are faster than shares
# of the work on 22 of 22 batches, by up to 8 %; with few they are up to 13 % slower, and with four CTAs an SM mostly so
# (methods-policies, methods-policy).
MANY_PIECES = 6  # of prefill, an SM


def policy(ctas_per_sm: int, pieces: int, sms: int) -> str:
    """Who takes turns at an SM: see binding.POLICIES. `pieces`: of prefill."""
    return "50:50" if ctas_per_sm == 2 and pieces >= MANY_PIECES * sms else "proportional"


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
    pays = is_long(seconds(batch, gpu, sms, 2)) and method == "pod" and batch.prefill and batch.decode
    return 4 if pays and max(batch.prefill.kv_lens) <= SHORT_PROMPT else 2


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
PREFILL_FLOPS = 700e12  # FLOP/s that the prefill side reaches alone on long chunks, as measured; for models of the GPU
FITTED_SMS = 132  # the rates and times below are of a whole H200; 104 plans of prefill alone are met to 5 % on average
BLOCK_US = {128: 1.5, 64: 1.2}  # of prefill: 128 rows by 128 keys of a head on one SM, by head_dim
WIDE_COST = 1.16  # time of a block of the wide tile over that of the other
# Of a piece, of one that is a part, and of each step of merging, in tenths of a block.
PIECE_COST, PART_COST, MERGE_COST = 5, 29, 4
# Rows x head_dim that a warpgroup has of a tile whose parts it merges together: then a part and a step cost less. With
# more, each warp its own rows was faster on 9 of 13 batches of drafts, by up to 11 %; with less, slower by up to 28 %.
FEW, FEW_PART_COST, FEW_MERGE_COST = 4096, 15, 2
FAN = 8  # parts of prefill that are merged at a time: csrc/sm90/prefill.cuh
SHORTEST_PART = 2  # blocks of a part of prefill
RANGES_L2 = 24 << 20  # bytes of L2 that ranges of prefill find filled with what they read again
SHARES, BINS = (2, 3, 4, 5, 6, 8, 12, 16), 16  # quarters of an SM's share that are tried; see prefill_time
MIDDLES = np.arange(1, 2 * BINS, 2)  # of the bins, in half ones
DECODE_BYTES = 4.25e12  # bytes/s of KV that decode reads alone
PREFILL_BYTES = 3.8e12  # that prefill reads alone where its rows are few
DRAM_BYTES = 4.4e12  # that both sides read together at most
TILE_PIECE_US = 2.2  # what beginning a piece of decode costs
SHORT = 1 << 18  # keys of all KV heads: single tokens alone with fewer are few rows of prefill; see as_few_rows
# Decode, which overlaps: all as prefill must be reckoned so much faster. Sharing is reckoned a tenth too low in the
# median: with 1.12 a batch with heads of 64 shared SMs where their wider tiles, alone, were 14 % faster.
IN_DOUBT = 1.1
TOGETHER = 0.2  # of the shorter side is felt when both run
BESIDE = 7  # tenths of decode's time, in which prefill may take it easy
MIN_TILES = 4  # of a range of decode: below, merging more parts costs more than it saves
# What merging the parts of a head costs, and what beginning another part costs.
MERGE_US, BORDER_US = 5.0, 1.0


def prefill_pack(side: Side, rows: int) -> Pack:
    """What makes the fewest tiles, each as long as its keys; of those the one with the fewest tokens."""
    made, tokens, passes = _packs(side.group, rows)
    keys = side.kv_len if side.window is None else np.minimum(side.kv_len, side.window + tokens)
    cost = (-(-side.q_len // tokens) * keys).sum(axis=1) * passes
    return made[cost.argmin()]


@cache
def _packs(group: int, rows: int) -> tuple[list[Pack], np.ndarray, np.ndarray]:
    """Those that may be best, the fewest tokens first: few heads fill warpgroups, many pad the least where tokens are
    few. And their tokens, as a column, and how many of each a KV head takes."""
    shares, groups = {-(-group // tiles) for tiles in range(1, group + 1)}, rows // WARPGROUP
    made = [_by_tokens(heads, rows) for heads in {gcd(group, 8), *shares} if heads <= WARPGROUP]
    made += [Pack(WARPGROUP // -(-heads // groups), heads) for heads in shares if groups <= heads <= rows]
    made.sort(key=lambda pack: pack.tokens)
    tokens, heads = np.array(made).T
    return made, tokens[:, None], -(-group // heads)


def _by_tokens(heads: int, rows: int) -> Pack:
    return Pack(rows // WARPGROUP * (WARPGROUP // heads), heads)


def whole_group(group: int, rows: int) -> Pack:
    """Where the batch has no say: all heads of a KV head, as far as a warpgroup has rows for them."""
    return _by_tokens(min(group, WARPGROUP), rows)


class Roles(NamedTuple):
    """Who is decode: sequences of at most `tokens` new tokens, in passes of `rows` tokens x heads."""

    rows: int
    tokens: int


@cache
def possible_roles(group: int) -> list[Roles]:
    """A row tells its token by a shift, so heads count as the next power of two. Where a KV head has more heads than
    rows, they would read it several times: one tile of prefill reads it once."""
    heads = 1 << (group - 1).bit_length()
    return [Roles(rows, rows // heads) for rows in DECODE_ROWS if rows >= heads] + [Roles(DECODE_ROWS[0], 0)]


def as_decode(group: int) -> Roles:
    """Single tokens, and as many drafts as fit the same rows, are decode, whatever that costs, where it reads a KV head
    once; else nothing is."""
    return possible_roles(group)[0]


def width(batch: HybridBatch) -> int:
    """head_dim, counted in 16 bits: what a tile of keys weighs."""
    return batch.head_dim * batch.kv_width // 2


def roles(batch: HybridBatch) -> Roles:
    """By cost: few rows a KV head wait for memory and are decode, many wait for the tensor cores and are prefill.
    Drafts alone are prefill: nothing overlaps, and on 6 of 7 batches it was faster, by 2 to 15 % (4 % slower on one).
    Single tokens alone stay decode while they can, but for short ones: see as_few_rows."""
    q_lens, kv_lens = batch.lens
    if batch.window is not None:
        kv_lens = np.minimum(kv_lens, q_lens + batch.window - 1)
    possible, most = possible_roles(batch.group), int(q_lens.max())
    if most == 1 and len(possible) > 1:
        return possible[-1] if as_few_rows(batch) else as_decode(batch.group)
    if most <= max(made.tokens for made in possible) and not batch.kv_dtype and q_lens.min() > 1:
        return possible[-1]
    few = [np.count_nonzero(q_lens <= made.tokens) for made in possible]
    differ = [made for i, made in enumerate(possible) if few[i] not in few[:i]]
    best, *others = differ
    least = _us(batch, q_lens, kv_lens, best)
    for made in others:
        if _floor_us(batch, q_lens, kv_lens, made) < least > (us := _us(batch, q_lens, kv_lens, made)):
            best, least = made, us
    return best


def takes_wide(batch: HybridBatch) -> bool:
    """Whether there is a kernel with a third warpgroup of prefill, for batches without decode."""
    return batch.head_dim == 64 and not batch.kv_dtype


def takes_narrow(batch: HybridBatch) -> bool:
    """Whether there is a kernel for tiles of few rows, for batches without decode."""
    return not batch.kv_dtype and not batch.rules


def as_few_rows(batch: HybridBatch) -> bool:
    """Whether single tokens alone are faster as few rows of prefill, which merge their parts sooner: short ones, unless
    all are equally long and an H200 had best leave them whole. 325 such batches were 1.04 times as fast, .88 at worst
    and 1.28 at best; equal whole ones were .93 times as fast, longer ones .98."""
    short = sum(batch.seen_lens) * batch.num_kv_heads < SHORT
    return short and takes_narrow(batch) and whole_parts(batch, FITTED_SMS) != 1


def is_narrow(side: Side, pack: Pack, head_dim: int) -> bool:
    """Whether it is faster: where no warpgroup has more than a few rows of a tile."""
    groups = PERSISTENT.prefill_rows // WARPGROUP
    by_tokens = pack.tokens % groups == 0 and pack.tokens // groups * pack.heads <= WARPGROUP
    heads = pack.heads if by_tokens else -(-pack.heads // groups)
    return int(side.q_len.max()) * heads * head_dim <= FEW


def _us(batch: HybridBatch, q_lens: np.ndarray, kv_lens: np.ndarray, made: Roles) -> float:
    """Of the whole batch on an H200, were all SMs busy to the end; all as prefill must be faster beyond doubt."""
    many, kv_heads, sms = q_lens > made.tokens, batch.num_kv_heads, FITTED_SMS
    chunks, chunk_keys, keys = q_lens[many], kv_lens[many], int(kv_lens.sum())
    units = (len(q_lens) - len(chunks)) * kv_heads
    decode = kv_us(width(batch), (keys - int(chunk_keys.sum())) * kv_heads, DECODE_BYTES)
    decode += units * TILE_PIECE_US / sms + MERGE_US * (0 < units < sms)
    memory = kv_us(width(batch), keys * kv_heads, DRAM_BYTES)
    prefill = _prefill_us(batch, chunks, chunk_keys, sms) if len(chunks) else 0.0
    time = max(prefill, decode, memory) + TOGETHER * min(prefill, decode)
    return time if made.tokens else IN_DOUBT * time


def _floor_us(batch: HybridBatch, q_lens: np.ndarray, kv_lens: np.ndarray, made: Roles) -> float:
    """What it takes at least, known at once where all is prefill: what memory needs for the keys."""
    keys = 0 if made.tokens else int(kv_lens[q_lens > 0].sum()) * batch.num_kv_heads
    return 0.99 * IN_DOUBT * kv_us(batch.head_dim, keys, PREFILL_BYTES)


def _prefill_us(batch: HybridBatch, q_lens: np.ndarray, kv_lens: np.ndarray, sms: int) -> float:
    wide = takes_wide(batch) and len(q_lens) == len(batch.q_lens)
    rows, cost = (WIDE.prefill_rows, WIDE_COST) if wide else (PERSISTENT.prefill_rows, 1.0)
    tiles, heads = -(-q_lens * batch.group // rows), batch.num_kv_heads
    twice = 2 * kv_lens - (q_lens - 1) if batch.causal else 2 * kv_lens  # the keys that a tile reads on average
    if batch.window is not None:  # of one tile
        twice = np.minimum(twice, 2 * (batch.window + PERSISTENT.prefill_rows))
    a_block = 2 * PERSISTENT.prefill_keys
    even = heads * int(tiles @ twice) / a_block / sms
    parts = ceil(int(twice.max()) / a_block / max(even, SHORTEST_PART))
    pieces = PIECE_COST * max(1.0, heads * int(tiles.sum()) / sms) + PART_COST * (parts > 1)
    pieces = (pieces + MERGE_COST * merge_steps(parts)) / 10
    memory = kv_us(batch.head_dim, int(kv_lens.sum()) * heads, PREFILL_BYTES)
    return max((even * cost + pieces) * BLOCK_US[batch.head_dim], memory)


def kv_us(head_dim: int, keys: int, rate: float) -> float:
    """To read keys and values of 16 bits, counted for each KV head."""
    return 4e6 * head_dim * keys / rate


def tile_us(head_dim: int) -> float:
    """Of decode: one SM's share of the memory's rate."""
    return kv_us(head_dim, PERSISTENT.decode_keys, DECODE_BYTES / FITTED_SMS)


def pad(head_dim: int) -> int:
    """Tiles of decode that beginning a piece costs."""
    return round(TILE_PIECE_US / tile_us(head_dim))


# Prefill's times in whole numbers, tenths of a block: the plan on the device must find the same ones.
FRACTION = 24  # bits of what is finer


class Ticks(NamedTuple):
    """What takes how long on so many SMs, in 2^-FRACTION tenths of a block of prefill."""

    tile: int  # of decode, alone
    sms: int

    def beside(self, tiles: int) -> int:
        """Tenths of a block that prefill may take: most of decode's."""
        return tiles * self.tile * BESIDE // 10 >> FRACTION

    def decode_is_last(self, blocks: int, tiles: int) -> bool:
        """Whether decode would end last and so deserves the tensor cores between two turns of prefill.

        The tensor cores serve waiting warps in turn. With two prefill warpgroups queueing, decode gets every third
        product; when they hand over only at the end of a turn, every second, at the price of 10 % of prefill's own
        rate.
        """
        return 0 < (10 * blocks << FRACTION) < tiles * self.tile * self.sms


@cache
def ticks(head_dim: int, sms: int) -> Ticks:
    scale = 10 * (1 << FRACTION) / BLOCK_US[head_dim]
    return Ticks(round(tile_us(head_dim) / sms * scale), sms)


def prefill_lengths(total: int, longest: int, sms: int) -> list[int]:
    """Of a part, in sixteenths of a block: even shares of the longest tile, and some of an SM's. None is shorter than
    the least of these: that bounds the number of parts, for which the plan on the device has room."""
    shares = [4 * total * n // sms for n in SHARES]
    return [max(length, shares[0]) for length in [16 * longest // n for n in range(1, 9)] + shares]


def prefill_parts(blocks: np.ndarray, workers: int, beside: int = 0, fixed=None, timed: bool = True,
                  few: bool = False) -> tuple:  # fmt: skip
    """In how many parts each tile's keys are cut, and about how long that takes, in tenths of a block. All parts aim at
    one length, the one with which workers end first: short tiles stay whole beside long ones in parts. `beside`:
    tenths that there is time for anyway; then the fewest parts do that end before. `fixed`: parts that are given.
    timed: whether somebody asks for the time even where no tile is cut. few: rows."""
    total, longest = int(blocks.sum()), int(blocks.max())
    lengths = {min(length, 16 * longest) for length in prefill_lengths(total, longest, workers)}
    if not timed and fixed is None and len(lengths) == 1:  # which cuts no tile
        return np.ones_like(blocks), 0
    tiles = np.bincount(blocks)
    sizes = np.flatnonzero(tiles)
    if fixed is not None:
        parts = np.minimum(fixed, blocks)
        return parts, int(prefill_time(blocks, np.ones_like(blocks), parts[None], workers, few)[0])
    lengths = np.array(sorted(lengths, reverse=True))
    parts = -(-16 * sizes // np.maximum(lengths, 16 * SHORTEST_PART)[:, None])
    parts = np.minimum(parts, MOST_PARTS)
    times = prefill_time(sizes, tiles[sizes], parts, workers, few)
    soon = times < beside
    best = int(np.argmax(soon) if soon.any() else np.argmin(times))
    tiles[sizes] = parts[best]
    return tiles[blocks], int(times[best])


def prefill_time(sizes: np.ndarray, tiles: np.ndarray, parts: np.ndarray, workers: int,
                 few: bool = False) -> np.ndarray:  # fmt: skip
    """Of so many tiles of so many blocks, each size in so many parts, for every row of `parts`; in tenths of a block.

    No sooner than an even share; and where n pieces are at least so long, some worker has n / workers of them, rounded
    up: on average, that tells the end of a queue to 1 %. Lengths are told apart in BINS.
    """
    part_cost, merge_cost = (FEW_PART_COST, FEW_MERGE_COST) if few else (PART_COST, MERGE_COST)
    cost = 10 * -(-sizes // parts) + PIECE_COST + part_cost * (parts > 1)
    pieces, longest = tiles * parts, cost.max(axis=1, keepdims=True)
    bins = cost * BINS // (longest + 1) + np.arange(0, len(parts) * BINS, BINS)[:, None]
    counts = np.bincount(bins.ravel(), pieces.ravel(), len(parts) * BINS).reshape(-1, BINS)
    at_least = counts[:, ::-1].cumsum(axis=1)[:, ::-1].astype(np.int64)
    length = np.minimum(MIDDLES * (longest + 1) // (2 * BINS), longest)
    even, crowded = -(-(cost * pieces).sum(axis=1) // workers), (length * -(-at_least // workers)).max(axis=1)
    return np.maximum(even, crowded) + [merge_cost * merge_steps(most) for most in parts.max(axis=1).tolist()]


def ranges_may_pay(blocks: int, workers: int, time: int) -> bool:
    """Over parts that take so long: a range has a part at either end, as a rule."""
    return time > 10 * blocks // workers + 2 * PART_COST


def prefill_ranges(blocks: np.ndarray, workers: int) -> tuple[np.ndarray, int]:
    """Where the line of all tiles is cut into a range for each worker, about equally long, and how long the longest
    takes, in tenths of a block. Parts of one length leave workers idle at the end where pieces are few; ranges do not,
    and cut few tiles. What being a part costs does not move a border: nearly every range has two. A border close to a
    tile's own moves there."""
    ends = blocks.cumsum()
    cuts = (weighted_cuts(10 * blocks, np.ones(workers, int), PIECE_COST) + 5) // 10
    tile = ends.searchsorted(cuts)
    left = ends[tile] - cuts
    begun = blocks[tile] - left
    cuts = np.where(left <= SHORTEST_PART, ends[tile], np.where(begun <= SHORTEST_PART, cuts - begun, cuts))
    cuts = distinct(cuts, above=0)  # they still ascend
    ranges, tile, begin, end = segments(blocks, cuts)
    parts = np.bincount(tile)
    cost = 10 * (end - begin) + PIECE_COST + PART_COST * (parts > 1)[tile]
    most = int(parts.max())
    time = int(np.bincount(ranges, cost).max()) + MERGE_COST * merge_steps(most)
    return cuts, time if most <= MOST_PARTS else np.iinfo(np.int64).max  # which no kernel merges


def missing_l2(head_dim: int, time: int, once: int, again: int, among: int) -> int:
    """By how much ranges that take `time` wait for DRAM, in tenths of a block. They begin anywhere, so all heads of all
    sequences are read at once, and of what is read again L2 brings only as large a share as it has room for. Blocks:
    that are read once, and again, and among how many. Of 171 batches, to which RANGES_L2 is fitted, the 125 that take
    ranges are 1.11 times as fast as in parts (.95 to 1.36); the others would be 1.02 times (.86 to 1.19)."""
    room = RANGES_L2 // (head_dim * 4 * PERSISTENT.prefill_keys)
    if among <= room:
        return 0
    a_block = 10 * kv_us(head_dim, PERSISTENT.prefill_keys, DECODE_BYTES) / BLOCK_US[head_dim]
    missed = again * (1 - room / among)
    return max(0, round(a_block * (once + missed) - max(time, a_block * once)))


def merge_steps(parts: int) -> int:
    """Parts that are read one after the other until all are in: where there are many, in two rounds."""
    return 0 if parts == 1 else parts if parts <= FAN else FAN + -(-parts // FAN)


@lru_cache(1024)  # a batch is asked about more than once
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
    seen = {kv_len for q_len, kv_len in zip(batch.q_lens, batch.seen_lens, strict=True) if q_len}
    if len(seen) > 1:
        return None
    tiles = max(1, -(-max(seen) // PERSISTENT.decode_keys))  # padding sees nothing, and is a tile
    units = sum(batch.q_lens) * batch.num_kv_heads
    tile_us = batch.kv_bytes / (units * tiles) / (DECODE_BYTES / sms) * 1e6
    return cheapest_parts(units, tiles, sms, tile_us)


# ---------------------------------------------------------------- decodes alone: which kernel
MANY, LARGE = 32, 1 << 29  # KV heads of all requests; bytes of keys and values


def decode_worker(batch: HybridBatch, on_hopper: bool, splits: int | str = "auto") -> str:
    """The Hopper kernel where it runs. "auto" leaves large batches of many heads to warps, which read them 1 to 8 %
    faster (on H200); few heads they would cut into too many parts."""
    if not on_hopper:
        return "warp"
    if batch.group > SHAPES[2].decode_rows:  # warps would read a KV head more than once
        return "hopper"
    many = len(batch.kv_lens) * batch.num_kv_heads >= MANY
    return "warp" if splits == "auto" and many and batch.kv_bytes >= LARGE else "hopper"
