"""Work lists of the hybrid kernel: which tile each CTA computes, longest first, and how its keys are split.

A piece of work is one row of twelve integers, `FIELDS`; csrc/include/tile_attention.cuh reads the same twelve (`Work`).
The keys of a tile may be cut into parts (FlashDecoding); parts of one tile share a `group` and merge in slot order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FIELDS = ("token", "rows", "head", "kv_head", "seq", "pos", "begin", "end", "part", "parts", "slot", "group")
DECODE_ROWS = 16  # query heads that one pass over a KV head serves
DECODE_KEYS = 16  # keys a step of decode takes
PIECE_OVERHEAD = 32  # what starting and merging a decode piece costs, in keys
MOST_PARTS = 128  # of one tile
SHORTEST = 512  # keys of a piece, when pieces shrink


@dataclass(frozen=True)
class TileShape:
    """Tiles of a CTA; csrc/sm80/hybrid.cu has the same numbers (Shape)."""

    prefill_rows: int
    prefill_keys: int
    virtual: int  # decode pieces side by side in a CTA, one a warp

    @property
    def threads(self) -> int:
        return self.virtual * 32


SHAPES = {2: TileShape(128, 64, 4), 4: TileShape(64, 32, 2)}  # by CTAs an SM


@dataclass(frozen=True)
class WorkList:
    """Rows of work, how they make pieces, and how much room their partial results take."""

    work: np.ndarray  # [n, 12] int32
    pieces: np.ndarray  # [n_pieces + 1] first row of each piece, which one tile (prefill) or one warp (decode) computes
    slots: int = 0  # partial results
    groups: int = 0  # tiles that are merged from several parts

    def column(self, name: str) -> np.ndarray:
        return self.work[:, FIELDS.index(name)]

    @property
    def costs(self) -> np.ndarray:
        """Keys that each piece reads."""
        keys = np.append(0, np.cumsum(self.column("end") - self.column("begin"), dtype=np.int64))
        return np.diff(keys[self.pieces])


def empty() -> WorkList:
    return WorkList(np.zeros((0, len(FIELDS)), np.int32), np.zeros(1, np.int32))


def rows(**columns) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*(columns[name] for name in FIELDS)), axis=1).astype(np.int32)


def number_parts(parts: np.ndarray) -> tuple[np.ndarray, ...]:
    """For tiles cut into `parts`: each part's tile, number, first slot of the tile and group; all slots and groups."""
    tile = np.repeat(np.arange(len(parts)), parts)
    part = np.arange(len(tile)) - np.repeat(np.cumsum(parts) - parts, parts)
    split = parts > 1
    slot = np.cumsum(parts * split) - parts * split
    group = np.cumsum(split) - split
    return tile, part, slot[tile], group[tile], int((parts * split).sum()), int(split.sum())


# ---------------------------------------------------------------------------------------------------------- prefill
def prefill_tiles(q_starts, q_lens, kv_lens, seqs, num_q_heads, num_kv_heads, shape, causal=True) -> np.ndarray:
    """One row of work a tile, longest first. Query heads run fastest, so that those that share K and V run together."""
    tiles = []
    for start, q_len, kv_len, seq in zip(q_starts, q_lens, kv_lens, seqs, strict=True):
        first, head = np.meshgrid(np.arange(0, q_len, shape.prefill_rows), np.arange(num_q_heads), indexing="ij")
        first, head = first.ravel(), head.ravel()
        count = np.minimum(shape.prefill_rows, q_len - first)
        pos = kv_len - q_len + first if causal else np.full_like(first, kv_len - 1)
        end = pos + count if causal else np.full_like(first, kv_len)
        tiles.append(
            rows(token=start + first, rows=count, head=head, kv_head=head // (num_q_heads // num_kv_heads), seq=seq,
                 pos=pos, begin=0, end=end, part=0, parts=1, slot=0, group=0)
        )  # fmt: skip
    tiles = np.concatenate(tiles)
    return tiles[np.argsort(-tiles[:, FIELDS.index("end")], kind="stable")]


def prefill_work(tiles: np.ndarray, shape: TileShape, splits: int = 1) -> WorkList:
    """Each tile cut into at most `splits` parts of whole key blocks."""
    if len(tiles) == 0:
        return empty()
    end = tiles[:, FIELDS.index("end")]
    blocks = -(-end // shape.prefill_keys)
    tile, part, slot, group, slots, groups = number_parts(np.minimum(splits, blocks))
    parts, n = np.minimum(splits, blocks)[tile], blocks[tile]
    work = tiles[tile].copy()
    cut = lambda i: np.minimum(n * i // parts * shape.prefill_keys, end[tile])  # noqa: E731
    columns = dict(begin=cut(part), end=cut(part + 1), part=part, parts=parts, slot=slot, group=group)
    for name, column in columns.items():
        work[:, FIELDS.index(name)] = column
    return WorkList(work, np.arange(len(work) + 1, dtype=np.int32), slots, groups)


def vanilla_splits(tiles: int, blocks: int, slots: int) -> int:
    """FlashDecoding's rule: the fewest parts whose last wave is nearly as full as the best choice's.

    `blocks` is how many key blocks the longest tile has, `slots` how many CTAs run at once.
    """
    if tiles >= 0.8 * slots:
        return 1
    counts = np.arange(1, min(MOST_PARTS, slots, blocks) + 1)
    waves = tiles * counts / slots
    full = waves / np.ceil(waves)
    return int(counts[np.argmax(full >= 0.85 * full.max())])


def limited_splits(tiles: int, blocks: int, slots: int, tile_time: float = 1.0, batch_time: float = 0.0) -> int:
    """The paper's limit (§4.2.4), at most two waves of prefill; and within it no more parts than the batch needs.

    Beside decode, prefill has the time that the whole batch takes: the fewest parts do whose longest (`tile_time` if
    uncut) ends well before `batch_time`. Without decode, batch_time = 0, FlashDecoding's rule decides.
    """
    most = max(1, min(2 * slots // max(1, tiles), blocks, MOST_PARTS))
    if batch_time == 0:
        return min(vanilla_splits(tiles, blocks, slots), most)
    return next((n for n in range(1, most) if tile_time / n <= 0.9 * batch_time), most)


# ----------------------------------------------------------------------------------------------------------- decode
def decode_lanes(num_q_heads: int, num_kv_heads: int) -> np.ndarray:
    """[lanes, 3]: first query head, KV head and heads of each pass over a KV head."""
    group = num_q_heads // num_kv_heads
    kv_head, first = np.meshgrid(np.arange(num_kv_heads), np.arange(0, group, DECODE_ROWS), indexing="ij")
    kv_head, first = kv_head.ravel(), first.ravel()
    return np.stack([kv_head * group + first, kv_head, np.minimum(DECODE_ROWS, group - first)], axis=1)


def choose_chunk(kv_lens: np.ndarray, lanes: int, workers: int) -> int:
    """Keys a decode piece should have, so that `workers` warps end at about the same time.

    Longer pieces cost less to start and merge, shorter ones leave less of the last wave idle; the model weighs both.
    """
    longest, total = int(kv_lens.max()), int(kv_lens.sum()) * lanes
    chunks = np.unique(np.ceil(longest / np.arange(1, MOST_PARTS + 1) / DECODE_KEYS).astype(int) * DECODE_KEYS)
    chunks = chunks[chunks >= min(256, chunks.max())]
    parts = -(-kv_lens[:, None] // chunks)  # [sequences, choices]
    pieces = parts.sum(0) * lanes
    mean = total / pieces + PIECE_OVERHEAD
    slowest = (-(-kv_lens[:, None] // parts)).max(0) + PIECE_OVERHEAD
    time = np.maximum(slowest, mean * np.ceil(pieces / workers))
    return int(chunks[::-1][np.argmin(time[::-1])])  # the longest of the best


def shrinking_chunks(kv_lens: np.ndarray, lanes: int, workers: int) -> np.ndarray:
    """Keys that the pieces of each request should have: a worker's share of what is left, but no fewer than SHORTEST.

    Nobody knows when beside prefill a slot becomes free. Long pieces first cost little, short ones last end together.
    """
    order = np.argsort(-kv_lens, kind="stable")
    left = np.empty_like(kv_lens)
    left[order] = np.cumsum(kv_lens[order][::-1])[::-1]
    return np.maximum(SHORTEST, -(-left * lanes // workers // DECODE_KEYS) * DECODE_KEYS)


CHUNKS = {"auto": choose_chunk, "shrinking": shrinking_chunks}


def decode_work(tokens, kv_lens, seqs, num_q_heads, num_kv_heads, workers, splits: int | str = "auto") -> WorkList:
    """One piece a (request, KV head, part), longest first.

    `splits`: parts a request; "auto", so that `workers` warps end together; or "shrinking", to be handed out to
    `workers` as slots become free.
    """
    kv_lens = np.asarray(kv_lens, np.int64)
    if len(kv_lens) == 0:
        return empty()
    lanes = decode_lanes(num_q_heads, num_kv_heads)
    blocks = -(-kv_lens // DECODE_KEYS)
    if splits in CHUNKS:
        parts = -(-kv_lens // CHUNKS[splits](kv_lens, len(lanes), workers))
    else:
        parts = np.full(len(kv_lens), splits)
    parts = np.minimum(np.minimum(parts, blocks), MOST_PARTS)

    # Units (request, lane) in order of the length of their parts, and within a unit its parts.
    request = np.repeat(np.argsort(-(blocks / parts), kind="stable"), len(lanes))
    lane = np.tile(np.arange(len(lanes)), len(kv_lens))
    tile, part, slot, group, slots, groups = number_parts(parts[request])
    # Lanes of the same part side by side: their K and V are neighbours in memory.
    order = np.lexsort((lane[tile], part, tile // len(lanes)))
    r, p, n = request[tile][order], part[order], blocks[request[tile][order]]
    cut = lambda i: np.minimum(n * i // parts[r] * DECODE_KEYS, kv_lens[r])  # noqa: E731
    head, kv_head, count = lanes[lane[tile][order]].T
    work = rows(token=np.asarray(tokens)[r], rows=count, head=head, kv_head=kv_head, seq=np.asarray(seqs)[r],
                pos=kv_lens[r] - 1, begin=cut(p), end=cut(p + 1), part=p, parts=parts[r], slot=slot[order],
                group=group[order])  # fmt: skip
    return WorkList(work, np.arange(len(work) + 1, dtype=np.int32), slots, groups)
