"""The schedule of a batch for each kernel: who computes what, where, in which order. No device is asked or touched."""

from dataclasses import replace
from functools import cache, partial
from math import gcd

import numpy as np

from pod.batch import HybridBatch
from pod.hardware import GPU
from pod.schedule import binding, choose, decode, prefill
from pod.schedule.work import (
    NARROW,
    PERSISTENT,
    SHAPES,
    WHOLE,
    WIDE,
    Pack,
    Schedule,
    Shape,
    Side,
    WorkList,
    by_token,
    empty,
    pass_count,
    seeing,
    sides,
)

METHODS = ("serial", "streams", "cta", "warp", "pod")  # of the sm_80 family
LEAN_WARPS, LEAN_CTAS = 4, 2  # of a CTA of csrc/lean/lean.cu; CTAs an SM


# ---------------------------------------------------------------- what only the Hopper kernel computes
def alone_takes(batch: HybridBatch) -> list[str]:
    """What of a batch no other kernel can do: its loads take 16 keys at a time from one page."""
    size = batch.page_size
    odd = size is not None and (size < 16 or size & (size - 1))
    return [*batch.rules, *(["page_size"] if odd else []), *(["kv_dtype"] if batch.kv_dtype else [])]


def check_plain(batch: HybridBatch, method: str) -> None:
    """Refuse it for any other method, whoever asks: a plan, a build or a simulation."""
    for name in alone_takes(batch):
        more = ", which takes powers of two from 16 on, and None" if name == "page_size" else ""
        raise ValueError(f"{name}: got {getattr(batch, name)!r}, allowed for method 'hopper' alone, and not for "
                         f"{method!r}{more}")  # fmt: skip


# ---------------------------------------------------------------- the sm_80 family: csrc/sm80/hybrid.cu
def hybrid(batch: HybridBatch, gpu: GPU, sms: int, method: str = "pod", policy: str = "auto",
           ctas_per_sm: int | str = "auto", prefill_splits: int | str = "limited", decode_splits: int | str = "auto",
           invariant: bool = False, drafts: int = 1, causal: bool = True) -> Schedule:  # fmt: skip
    """For `sms` SMs of a card. The choices as in pod.plan, already checked. invariant: as for hopper; then nothing is
    chosen by what is in the batch. drafts: so few new tokens count as decodes, each token for itself."""
    check_plain(batch, method)
    chunks, singles = sides(batch, drafts)
    singles = by_token(seeing(singles), causal)
    if invariant:
        ctas = 2 if ctas_per_sm == "auto" else ctas_per_sm
        cut = choose.Cut(ctas, 1, 0, -(-singles.kv_len // FIXED_KEYS[1]))
    else:
        cut = choose.hybrid(batch, chunks, singles, gpu, sms, method, ctas_per_sm, prefill_splits, decode_splits)
    shape = SHAPES[cut.ctas_per_sm]
    tiles = prefill.longest_first(prefill.tiles(chunks, Pack(shape.prefill_rows, 1), causal))
    splits = -(-tiles.end // FIXED_KEYS[0]) if invariant else cut.splits
    work = prefill.cut(tiles, splits, shape.prefill_keys)
    pieces = warp_pieces(singles, shape, cut.workers, cut.parts)
    deal = _deal(policy, work, pieces, cut.ctas_per_sm, sms) if method == "pod" else np.zeros(0, np.int32)
    return Schedule(batch, causal, sms, method, shape, work, pieces, cut.ctas_per_sm, deal)


FIXED_KEYS = (4096, 1024)  # of a part of prefill and of decode that does not depend on other sequences


def warp_pieces(side: Side, shape: Shape, workers: int, parts: np.ndarray | int | None) -> WorkList:
    """`parts` of each request, or equal ranges for `workers`."""
    if parts is None:
        return warp_ranges(side, workers)
    return decode.split_k(side, parts, shape.decode_keys, shape.decode_rows)


def _deal(policy: str, work: WorkList, pieces: WorkList, ctas_per_sm: int, sms: int) -> np.ndarray:
    """What an SM's tickets ask for. A CTA of decode has several pieces."""
    whole, costs, starts = work.costs, pieces.costs, np.arange(0, len(pieces.pieces) - 1, SHAPES[ctas_per_sm].virtual)
    if policy == "auto":
        policy = choose.policy(ctas_per_sm, len(whole), sms)
    return binding.deal(policy, whole, np.add.reduceat(costs, starts) if len(starts) else np.zeros(0), sms)


def flash2(batch: HybridBatch, sms: int, keys: tuple[int, int]) -> Schedule:
    """FlashAttention-2 in two calls: a CTA a tile of 128 rows, and one a request and KV head; keys are cut by
    FlashDecoding's rule alone. `keys`: that a CTA of either side takes at a time."""
    check_plain(batch, "serial")
    shape, (chunks, singles), work, pieces = SHAPES[2], sides(batch), empty(), empty()
    if batch.prefill:
        tiles = prefill.longest_first(prefill.tiles(chunks, Pack(shape.prefill_rows, 1), batch.causal))
        splits = choose.vanilla_splits(len(tiles.end), -(-max(batch.prefill.kv_lens) // keys[0]), 2 * sms)
        work = prefill.cut(tiles, splits, shape.prefill_keys)
    if batch.decode:
        units, blocks = len(singles.seq) * batch.num_kv_heads, -(-max(batch.decode.kv_lens) // keys[1])
        splits = choose.vanilla_splits(units, blocks, 2 * sms)
        pieces = decode.split_k(singles, splits, shape.decode_keys, shape.decode_rows)
    return Schedule(batch, batch.causal, sms, "serial", shape, work, pieces, 2)


# ---------------------------------------------------------------- decodes alone: csrc/lean/lean.cu
STREAM_K = 64  # keys that its warps never cut apart


def lean(batch: HybridBatch, sms: int, splits: int | str | None = None, worker: str = "warp", block: int = STREAM_K,
         alike: int | None = None, invariant: bool = False, causal: bool = True) -> Schedule:  # fmt: skip
    """splits: parts of every head, None for equal ranges, or "auto". worker: "warp", or CTAs with the paper's tile.
    block: keys that are not cut apart. alike: as in stream_k, None for as many as can be. invariant: as for hopper."""
    check_plain(batch, "lean")
    singles = seeing(sides(batch)[1])
    workers = sms * LEAN_CTAS * (LEAN_WARPS if worker == "warp" else 1)
    if splits == "auto":
        splits = None
        if len(set(batch.kv_lens)) == 1:
            units = len(batch.kv_lens) * pass_count(singles, SHAPES[LEAN_CTAS].decode_rows)
            splits = choose.full_parts(units, workers)
    if invariant:
        parts = -(-singles.kv_len // FIXED_KEYS[1])
        work = decode.split_k(singles, parts, block, SHAPES[LEAN_CTAS].decode_rows)
    else:
        work = warp_ranges(singles, workers, splits, worker == "warp", block, alike)
    return Schedule(batch, causal, sms, "lean", SHAPES[LEAN_CTAS], empty(), work, LEAN_CTAS)


def warp_ranges(side: Side, workers: int, splits: int | None = None, packed: bool = True, block: int = STREAM_K,
            alike: int | None = None) -> WorkList:  # fmt: skip
    """In at most `workers` pieces of equal length, or cut into `splits` whatever the workers. packed: the query heads
    of a KV head share a pass over it; without, as in the paper, every query head reads for itself."""
    heads = SHAPES[LEAN_CTAS].decode_rows if packed else 1
    if alike is None:
        alike = gcd(pass_count(side, heads), workers if splits is None else 0) if packed else 1
    if splits is None:
        return decode.stream_k(side, partial(decode.equal_cuts, workers=workers // alike), block, heads, alike)
    return decode.stream_k(side, partial(decode.split_cuts, splits=splits), block, heads, alike)


# ---------------------------------------------------------------- the Hopper kernel: csrc/sm90
FIXED = (32, 48)  # blocks of prefill and tiles of decode of a part that does not depend on other sequences


def hopper(batch: HybridBatch, sms: int, splits: int | None = None, weights=None, yields: bool | None = None,
           parts: int | None = None, roles: choose.Roles | None = None, pack: Pack | None = None,
           invariant: bool = False, causal: bool = True) -> Schedule:  # fmt: skip
    """One persistent CTA an SM. splits: parts of a prefill tile; weights: of the ranges of decode, equal unless named;
    parts: of every head of decode instead of ranges; roles: see choose.roles; pack: of a tile of prefill; yields: see
    choose.Ticks.

    invariant: nothing about a sequence's computation depends on the others, to the bit; only who does it, and when."""
    if roles is None:
        roles = choose.as_decode(batch.group) if invariant else choose.roles(batch)
    ticks, pad = choose.ticks(batch.head_dim, sms), choose.pad(choose.width(batch))
    chunks, singles = sides(batch, roles.tokens)
    shape = _persistent(roles.rows)
    if invariant:
        keys = shape.decode_keys
        ranges = decode.split_k(singles, -(-singles.seen // (FIXED[1] * keys)), keys, roles.rows)
    else:
        ranges = hopper_ranges(singles, sms, weights, parts=parts, rows=roles.rows, pad=pad)
    tiles = decode.tiles(singles, shape)
    work, blocks = empty(), 0
    if len(chunks.seq):
        alone = not (len(singles.seq) or invariant or pack)
        wide, narrow = alone and choose.takes_wide(batch), alone and choose.takes_narrow(batch)
        if batch.group <= shape.prefill_rows and int(chunks.q_len.max()) == 1:
            wide = False  # all heads of one token are a tile of either
        ranges_too = alone and splits is None
        rest = (sms, batch.head_dim, causal, splits, pack, ticks.beside(tiles), invariant, narrow, ranges_too)
        made = [_prefill_pieces(chunks, tile, *rest) for tile in ((shape, WIDE) if wide else (shape,))]
        _, blocks, pack, cut, shape = min(made, key=lambda m: m[0])
        work = cut()
    yields = ticks.decode_is_last(blocks, tiles) if yields is None else yields
    return Schedule(batch, causal, sms, "hopper", shape, work, ranges, yields=yields, pack=pack or WHOLE)


@cache
def _persistent(rows: int) -> Shape:
    return replace(PERSISTENT, decode_rows=rows)


def _prefill_pieces(side: Side, shape: Shape, sms: int, head_dim: int, causal: bool, splits: int | None,
                    pack: Pack | None, beside: int, invariant: bool, narrow: bool,
                    ranges_too: bool) -> tuple:  # fmt: skip
    """About how long they take, if somebody asks, how many blocks they read, the pack, what cuts them, and their shape,
    which is another one for few rows, if it may be narrow. ranges_too: as decode is cut, if that ends sooner."""
    keys, rows = shape.prefill_keys, shape.prefill_rows
    pack = pack or (choose.whole_group(side.group, rows) if invariant else choose.prefill_pack(side, rows))
    tiles = prefill.in_sections(prefill.tiles(side, pack, causal), side, head_dim, keys)
    blocks = tiles.blocks(keys)
    fixed = -(-blocks // FIXED[0]) if invariant else splits
    few = narrow and shape != WIDE and choose.is_narrow(side, pack, head_dim)
    parts, time = choose.prefill_parts(blocks, sms, beside, fixed, ranges_too, few)
    cut, total = partial(prefill.cut, tiles, parts, keys, blocks), int(blocks.sum())
    if ranges_too and not few and choose.ranges_may_pay(total, sms, time):
        cuts, sooner = choose.prefill_ranges(blocks, sms)
        again, among = prefill.read_again(tiles, side, keys)
        sooner += choose.missing_l2(head_dim, sooner, total - again, again, among)
        if sooner < time:
            time, cut = sooner, partial(prefill.in_ranges, tiles, cuts, keys, blocks)
    time *= choose.WIDE_COST if shape == WIDE else 1.0
    return time, total, pack, cut, NARROW if few else shape


def hopper_ranges(side: Side, workers: int, weights=None, least: int = choose.MIN_TILES, parts: int | None = None,
                  rows: int = PERSISTENT.decode_rows, pad: int = 0) -> WorkList:  # fmt: skip
    """Decode in `workers` ranges across the borders of heads and requests, none shorter than `least` tiles. pad: tiles
    that beginning a head is worth."""
    keys = PERSISTENT.decode_keys
    passes = pass_count(side, rows)
    if parts is not None:
        return decode.stream_k(side, partial(decode.split_cuts, splits=parts), keys, rows, decode.alike_for(passes))
    alike = decode.alike_for(passes, workers)

    def cuts(blocks: np.ndarray) -> np.ndarray:
        ranges = max(1, min(workers // alike, int(blocks.sum()) // least))
        shares = np.ones(ranges, int) if weights is None else np.asarray(weights, float)[:ranges]
        return decode.weighted_cuts(blocks, shares, pad)

    return decode.stream_k(side, cuts, keys, rows, alike)
