"""Prefill: the tiles of all chunks, the order in which they are drawn, and how their keys are cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pod.schedule.work import Pack, Side, WorkList, first_seen, number_parts, passes

NOWHERE = np.iinfo(np.int64).max
L2_SHARE = 32 << 20  # bytes of K and V that the tiles in flight may spread over, of the H200's 60 MB


class Tiles(NamedTuple):
    """Columns of a work list, as it is before any keys are cut."""

    token: np.ndarray
    tokens: np.ndarray
    head: np.ndarray
    heads: np.ndarray
    kv_head: np.ndarray
    seq: np.ndarray
    pos: np.ndarray
    kv_len: np.ndarray
    begin: np.ndarray  # the first key that a row sees
    end: np.ndarray

    def blocks(self, keys: int) -> np.ndarray:
        return -(-self.end // keys) - self.begin // keys

    def in_order(self, order: np.ndarray) -> Tiles:
        return Tiles(*(column[order] for column in self))


def tiles(side: Side, pack: Pack, causal: bool = True) -> Tiles:
    """Heads run fastest: those of one KV head run together then, and read the same K and V."""
    # Blocks of tokens: all of the first chunk, of the second, and so on.
    step = pack.tokens
    counts = -(-side.q_len // step)
    chunk = np.arange(len(counts)).repeat(counts)
    first = (np.arange(len(chunk)) - (counts.cumsum() - counts)[chunk]) * step
    tokens = np.minimum(step, side.q_len[chunk] - first)
    pos = (side.kv_len - side.q_len)[chunk] + first
    end = np.maximum(1, pos + tokens if causal else side.kv_len[chunk])  # padding sees nothing, and is a tile
    # Each for every group of heads.
    head, heads, kv_head = passes(side, pack.heads)
    of = np.arange(len(chunk) * len(head)) % len(head)
    begin = first_seen(pos, side.window)
    columns = np.array([side.token[chunk] + first, tokens, side.seq[chunk], pos, side.kv_len[chunk], begin, end])
    token, tokens, seq, pos, kv_len, begin, end = columns.repeat(len(head), axis=1)
    return Tiles(token, tokens, head[of], heads[of], kv_head[of], seq, pos, kv_len, begin, end)


# ---------------------------------------------------------------- in which order
def longest_first(made: Tiles) -> Tiles:
    return made.in_order(np.argsort(-made.end, kind="stable"))


def in_sections(made: Tiles, side: Side, head_dim: int, block: int) -> Tiles:
    """Longest first, so that the last to be drawn are short. But a sequence whose K and V have no room in L2 comes as a
    whole, some of its KV heads at a time that do have room: DRAM is decode's. Such sequences come first, they are the
    longest."""
    blocks, sequences = made.blocks(block), int(made.seq[-1]) + 1
    order = ((int(blocks.max()) - blocks) * sequences + made.seq) * side.q_heads + made.head
    room, longest = L2_SHARE // (head_dim * 4), int(side.kv_len.max())  # tokens of a KV head
    if longest * side.kv_heads > room:
        together = np.minimum(np.maximum(room // np.maximum(made.kv_len, 1), 1), side.kv_heads)
        place = (longest - made.kv_len) * sequences + made.seq  # no two sequences have the same
        place = place * side.kv_heads + made.kv_head // together
        return made.in_order(np.lexsort((order, np.where(together == side.kv_heads, NOWHERE, place))))
    return made.in_order(order.argsort(kind="stable"))


# ---------------------------------------------------------------- in how many parts
def cut(made: Tiles, splits: int | np.ndarray, block: int) -> WorkList:
    """Each tile in at most `splits` parts of whole blocks of keys, all alike or each as it says. Every part is a
    piece."""
    blocks = made.blocks(block)
    parts = np.minimum(splits, blocks)
    tile, part, partial, group, partials, groups = number_parts(parts)
    *columns, begin, end = made.in_order(tile) if groups else made
    n, p, first, pieces = blocks[tile], parts[tile], begin // block, np.arange(len(tile) + 1)
    keys = first * block, end
    if groups:
        keys = (first + n * part // p) * block, np.minimum((first + n * (part + 1) // p) * block, end)
    return WorkList(*columns, *keys, part, p, partial, group, pieces, partials, groups)
