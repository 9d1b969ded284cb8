"""Prefill: the tiles of all chunks, the order in which they are drawn, and how their keys are cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pod.schedule.decode import segments
from pod.schedule.work import Pack, Side, WorkList, first_seen, number_parts, passes

NOWHERE = np.iinfo(np.int64).max
L2_SHARE = 32 << 20  # bytes of K and V that the tiles in flight may spread over, of the H200's 60 MB


class Tiles(NamedTuple):
    """Rows of a work list, as they are before any keys are cut. Each is a block of tokens by the heads of a pass; what
    many tiles share is kept once."""

    columns: np.ndarray  # of each block of tokens: token, tokens, seq, pos, kv_len, begin and end of the keys it sees
    heads: np.ndarray  # of each pass: head, heads, kv_head
    order: np.ndarray  # of the tiles: a number is block of tokens * passes + pass

    @property
    def block(self) -> np.ndarray:
        return self.order // self.heads.shape[1]

    @property
    def end(self) -> np.ndarray:
        return self.columns[-1].take(self.block)

    def blocks(self, keys: int) -> np.ndarray:
        return blocks(self.columns, keys).take(self.block)

    def in_order(self, order: np.ndarray) -> Tiles:
        return self._replace(order=self.order.take(order))

    def rows(self) -> tuple[np.ndarray, ...]:
        """token to kv_len of a work list, and the keys that are seen."""
        block = self.block
        token, tokens, *rest = self.columns.take(block, axis=1, mode="wrap")
        of = self.order - block * self.heads.shape[1]
        return token, tokens, *self.heads.take(of, axis=1, mode="wrap"), *rest


def blocks(columns: np.ndarray, keys: int) -> np.ndarray:
    *_, begin, end = columns
    return -(-end // keys) - begin // keys


def tiles(side: Side, pack: Pack, causal: bool = True) -> Tiles:
    """Heads run fastest: those of one KV head run together then, and read the same K and V."""
    # Blocks of tokens: all of the first chunk, of the second, and so on.
    step = pack.tokens
    counts = -(-side.q_len // step)
    chunk = np.arange(len(counts)).repeat(counts)
    begins = counts.cumsum() - counts
    of_chunk = np.array([side.token, side.q_len, side.seq, side.kv_len - side.q_len, side.kv_len, begins])
    token, tokens, seq, pos, kv_len, begins = of_chunk.take(chunk, axis=1)
    first = (np.arange(len(chunk)) - begins) * step
    tokens, pos = np.minimum(step, tokens - first), pos + first
    end = np.maximum(1, pos + tokens if causal else kv_len)  # padding sees nothing, and is a tile
    columns = np.array([token + first, tokens, seq, pos, kv_len, first_seen(pos, side.window), end])
    # Each for every group of heads.
    heads = passes(side, pack.heads)
    return Tiles(columns, heads, np.arange(len(chunk) * heads.shape[1]))


# ---------------------------------------------------------------- in which order
def longest_first(made: Tiles) -> Tiles:
    return made.in_order(np.argsort(-made.end, kind="stable"))


def l2_tokens(head_dim: int) -> int:
    """Of a KV head, whose K and V have room in prefill's share of L2."""
    return L2_SHARE // (head_dim * 4)


def read_again(made: Tiles, side: Side, block: int) -> tuple[int, int]:
    """Blocks of keys that are read after another tile has read them, and how many there are in all heads of which."""
    _, _, seq, *_ = made.columns
    read = np.bincount(seq, blocks(made.columns, block)).astype(int)[side.seq] * made.heads.shape[1]
    there = -(-side.kv_len // block) * side.kv_heads
    again = np.maximum(read - there, 0)
    return int(again.sum()), int(there[again > 0].sum())


def in_sections(made: Tiles, side: Side, head_dim: int, block: int) -> Tiles:
    """Longest first, so that the last to be drawn are short. But a sequence whose K and V have no room in L2 comes as a
    whole, some of its KV heads at a time that do have room: DRAM is decode's. Such sequences come first, they are the
    longest."""
    (_, _, seq, _, kv_len, *_), (head, _, kv_head) = made.columns, made.heads
    length, sequences = blocks(made.columns, block), int(seq[-1]) + 1
    order = ((int(length.max()) - length) * sequences + seq) * side.q_heads
    order = (order[:, None] + head).ravel()
    room, longest = l2_tokens(head_dim), int(side.kv_len.max())
    if longest * side.kv_heads <= room:
        return made.in_order(order.argsort(kind="stable"))
    together = np.minimum(np.maximum(room // np.maximum(kv_len, 1), 1), side.kv_heads)
    place = ((longest - kv_len) * sequences + seq) * side.kv_heads  # no two sequences have the same
    place = np.where(together == side.kv_heads, NOWHERE, place)[:, None] + kv_head // together[:, None]
    return made.in_order(np.lexsort((order, place.ravel())))


# ---------------------------------------------------------------- in how many parts
def cut(made: Tiles, splits: int | np.ndarray, block: int, length: np.ndarray | None = None) -> WorkList:
    """Each tile in at most `splits` parts of whole blocks of keys, all alike or each as it says. Every part is a
    piece. length: made.blocks(block), of who has them."""
    length = made.blocks(block) if length is None else length
    parts = np.minimum(splits, length)
    tile, part, partial, group, partials, groups = number_parts(parts)
    if groups:
        made, length, parts = made.in_order(tile), length[tile], parts[tile]
    *columns, begin, end = made.rows()
    first = begin // block
    keys = first * block, end
    if groups:
        borders = (first + length * part // parts, first + length * (part + 1) // parts)
        keys = borders[0] * block, np.minimum(borders[1] * block, end)
    return WorkList(*columns, *keys, part, parts, partial, group, np.arange(len(tile) + 1), partials, groups)


def in_ranges(made: Tiles, cuts: np.ndarray, block: int, length: np.ndarray) -> WorkList:
    """The line of all tiles, end to end, cut where `cuts` says, in blocks, into a range for each worker. Pieces are
    drawn one by one all the same: in the order in which ranges come to them. So whoever is through with a range's piece
    finds the next of a range that is as far. length: made.blocks(block)."""
    ranges, tile, begin, end = segments(length, cuts)
    parts = np.bincount(tile)
    _, part, partial, group, partials, groups = number_parts(parts)
    *columns, first, last = made.in_order(tile).rows()
    first = first // block
    keys = (first + begin) * block, np.minimum((first + end) * block, last)
    columns = np.array([*columns, *keys, part, parts[tile], partial, group])
    at = (length.cumsum() - length)[tile] + begin
    order = (at - np.append(0, cuts)[ranges]).argsort(kind="stable")
    return WorkList(*columns.take(order, axis=1), np.arange(len(tile) + 1), partials, groups)
