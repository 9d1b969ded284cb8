"""The work lists of the Hopper kernel: which piece of attention each SM computes, and in which order.

The kernel itself decides nothing. It draws prefill units and decode chunks from two queues, and this module fills them.
A piece of work is one row of twelve integers, `FIELDS`; `csrc/sm90/common.cuh` reads the same twelve.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import gcd

import numpy as np

FIELDS = ("q_row", "rows", "head", "seq", "pos0", "kv_len", "begin", "end", "part", "parts", "slot", "group")
PREFILL_TILE = 128  # query rows, and KV tokens of a block
WIDE_TILE = 192  # query rows with a third warpgroup of prefill: at head_dim 64, where there is no decode
WIDE_COST = 1.28  # time of a block of the wide tile over that of the other (measured on H200)
DECODE_TILE = 64  # KV tokens of a tile
DECODE_HEADS = 8  # query heads that one pass over a KV head serves
MIN_TILES = 8  # of a decode chunk: below, merging more parts costs more than it saves (measured on H200)
UNIT_OVERHEAD = 3  # what starting and merging a prefill unit costs, in KV blocks (measured on H200)
L2_SHARE = 32 << 20  # bytes of K and V that the tiles in flight may spread over, of the H200's 50 MB


@dataclass(frozen=True)
class WorkList:
    """Rows of work, and how much room their partial results take."""

    work: np.ndarray  # [n, 12] int32
    chunks: np.ndarray  # [n_chunks + 1] first row of each chunk that is drawn from the queue
    slots: int = 0  # partial results
    groups: int = 0  # results that are merged from several parts

    def column(self, name: str) -> np.ndarray:
        return self.work[:, FIELDS.index(name)]


def _rows(**columns) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*(columns[name] for name in FIELDS)), axis=1).astype(np.int32)


def _empty() -> WorkList:
    return WorkList(np.zeros((0, len(FIELDS)), np.int32), np.zeros(1, np.int32))


# ---------------------------------------------------------------------------------------------------------- prefill
def _makespan(lengths: np.ndarray, workers: int) -> float:
    """Time until greedy workers have finished units of these lengths, longest first."""
    ends = [0.0] * workers
    for length in sorted(lengths, reverse=True):
        heapq.heappushpop(ends, ends[0] + length)
    return max(ends)


def choose_splits(blocks: np.ndarray, workers: int) -> int:
    """In how many parts each tile's KV range is cut: more than one only when whole tiles would leave workers idle."""
    best, best_time = 1, np.inf
    for splits in range(1, 9):
        if splits > 1 and (len(blocks) * splits > 2 * workers or splits > blocks.min()):
            break
        time = _makespan(np.repeat(np.ceil(blocks / splits) + UNIT_OVERHEAD, splits), workers)
        if time < best_time:
            best, best_time = splits, time
    return best


def pack_shift(num_q_heads: int, num_kv_heads: int) -> int:
    """log2 of the query heads that share a prefill tile: the largest power of two in the group, 8 at most.

    A tile of 128 rows is then 16 tokens of 8 heads, so that a chunk pads its tail to 16 tokens instead of 128.
    """
    return gcd(num_q_heads // num_kv_heads, 8).bit_length() - 1


def prefill_alone(
    prefill: tuple, head_dim: int, workers: int, causal: bool, splits: int | None
) -> tuple[int, WorkList]:
    """Rows of a tile, and the units, of a batch without decode: the wide tile where it fits and ends sooner."""
    if head_dim > 64:
        return PREFILL_TILE, prefill_work(*prefill, head_dim, workers, causal, splits)
    tiles = {PREFILL_TILE: 1.0, WIDE_TILE: WIDE_COST}
    made = {rows: prefill_work(*prefill, head_dim, workers, causal, splits, rows) for rows in tiles}

    def time(rows: int) -> float:
        lengths = made[rows].column("end") - made[rows].column("begin")
        return tiles[rows] * _makespan(lengths + UNIT_OVERHEAD, workers)

    rows = min(made, key=time)
    return rows, made[rows]


def prefill_work(
    q_starts, q_lens, kv_lens, seqs, num_q_heads, num_kv_heads, head_dim, workers, causal=True, splits=None,
    tile_rows=PREFILL_TILE,
):  # fmt: skip
    """Units of prefill in the order in which they are drawn.

    Longest first, so that the last units to be drawn are short. Heads run fastest, so that those of one KV head read
    the same K and V at the same time, and heads are taken in sections whose K and V fit in L2 together: DRAM is
    decode's.
    """
    if len(q_lens) == 0:
        return _empty()
    group, shift = num_q_heads // num_kv_heads, pack_shift(num_q_heads, num_kv_heads)
    columns = []
    for q_start, q_len, kv_len, seq in zip(q_starts, q_lens, kv_lens, seqs, strict=True):
        first = np.arange(0, q_len, tile_rows >> shift)
        tokens = np.minimum(tile_rows >> shift, q_len - first)
        pos0 = kv_len - q_len + first
        blocks = -(-(pos0 + tokens if causal else np.full_like(first, kv_len)) // PREFILL_TILE)
        kv_heads = int(np.clip(L2_SHARE // (kv_len * head_dim * 4), 1, num_kv_heads))
        tile, head = np.meshgrid(np.arange(len(first)), np.arange(0, num_q_heads, 1 << shift), indexing="ij")
        section = head // (kv_heads * group)
        same = np.ones_like(tile)
        rows = tokens[tile] << shift
        chunk = (q_start + first[tile], rows, head, seq * same, pos0[tile], kv_len * same, blocks[tile], section)
        columns.append([c.ravel() for c in chunk])
    q_row, rows, head, seq, pos0, kv_len, blocks, section = (np.concatenate(c) for c in zip(*columns, strict=True))
    order = np.lexsort((head, seq, -blocks, section))
    q_row, rows, head, seq, pos0, kv_len, blocks = (c[order] for c in (q_row, rows, head, seq, pos0, kv_len, blocks))
    if splits is None:
        splits = choose_splits(blocks, workers)
    parts = np.minimum(splits, blocks)
    tile = np.repeat(np.arange(len(blocks)), parts)
    part = np.arange(len(tile)) - np.repeat(np.cumsum(parts) - parts, parts)
    split = parts > 1
    group_of = np.cumsum(split) - split
    slot_of = np.cumsum(parts * split) - parts * split
    n, p = blocks[tile], parts[tile]
    work = _rows(
        q_row=q_row[tile],
        rows=rows[tile],
        head=head[tile],
        seq=seq[tile],
        pos0=pos0[tile],
        kv_len=kv_len[tile],
        begin=n * part // p,
        end=n * (part + 1) // p,
        part=part,
        parts=p,
        slot=slot_of[tile],
        group=group_of[tile],
    )
    return WorkList(work, np.arange(len(work) + 1, dtype=np.int32), int((parts * split).sum()), int(split.sum()))


# ----------------------------------------------------------------------------------------------------------- decode
def decode_work(q_rows, kv_lens, seqs, num_q_heads, num_kv_heads, workers, weights=None, least=MIN_TILES):
    """Decode cut into `workers` chunks of equal work across request and head borders (stream-K).

    Chunks come in groups of `span` that read the same tokens of neighbouring heads at about the same time, which lie
    side by side in memory. `weights` (one per group of chunks) makes the chunks unequal on purpose.
    """
    if len(kv_lens) == 0:
        return _empty()
    group = num_q_heads // num_kv_heads
    packs = -(-group // DECODE_HEADS)  # passes over a KV head when its group is larger than one pass serves
    lanes = num_kv_heads * packs
    span = gcd(lanes & -lanes, workers)
    cuts = workers // span
    kv_lens, q_rows, seqs = (np.repeat(np.asarray(x, np.int64), lanes // span) for x in (kv_lens, q_rows, seqs))
    lane0 = np.tile(np.arange(0, lanes, span), len(kv_lens) // (lanes // span))

    # The line of all tiles, with a border wherever a unit (request, group of lanes) or a chunk begins.
    tiles = -(-kv_lens // DECODE_TILE)
    ends = np.cumsum(tiles)
    total = int(ends[-1])
    cuts = max(1, min(cuts, total // least))
    share = np.ones(cuts) if weights is None else np.asarray(weights, float)[:cuts]
    cut_at = np.rint(np.cumsum(share) / share.sum() * total).astype(np.int64)
    borders = np.unique(np.concatenate([[0], ends, cut_at]))
    begin, end = borders[:-1], borders[1:]
    unit = np.searchsorted(ends, begin, side="right")
    cut = np.searchsorted(cut_at, begin, side="right")

    first = np.searchsorted(unit, np.arange(len(tiles)))
    parts = np.bincount(unit, minlength=len(tiles))
    split = parts > 1
    group_of = (np.cumsum(split) - split)[unit]
    slot_of = (np.cumsum(parts * split) - parts * split)[unit]
    n_groups, n_slots = int(split.sum()), int((parts * split).sum())

    # Lane `lane0 + j` of every segment goes to chunk cut * span + j.
    segment, j = np.meshgrid(np.arange(len(unit)), np.arange(span), indexing="ij")
    order = np.lexsort((segment.ravel(), j.ravel(), cut[segment].ravel()))
    segment, j = segment.ravel()[order], j.ravel()[order]
    u = unit[segment]
    lane = lane0[u] + j
    pack = lane % packs
    tile0 = (ends - tiles)[u]
    work = _rows(
        q_row=q_rows[u] * num_q_heads + lane // packs * group + pack * DECODE_HEADS,
        rows=np.minimum(DECODE_HEADS, group - pack * DECODE_HEADS),
        head=lane // packs,
        seq=seqs[u],
        pos0=pack * DECODE_HEADS,
        kv_len=kv_lens[u],
        begin=begin[segment] - tile0,
        end=end[segment] - tile0,
        part=segment - first[u],
        parts=parts[u],
        slot=slot_of[segment] * span + j * parts[u],
        group=group_of[segment] * span + j,
    )
    chunks = np.searchsorted(cut[segment] * span + j, np.arange(cuts * span + 1)).astype(np.int32)
    return WorkList(work, chunks, n_slots * span, n_groups * span)
