"""Prefill: the tiles of all chunks, the order in which they are drawn, and how their keys are cut."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np

from pod.schedule.work import Side, WorkList, number_parts

L2_SHARE = 32 << 20  # bytes of K and V that the tiles in flight may spread over, of the H200's 50 MB


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
    end: np.ndarray

    def in_order(self, order: np.ndarray) -> Tiles:
        return Tiles(*(column[order] for column in self))


def pack(group: int) -> int:
    """Query heads that share a tile of the Hopper kernel: the largest power of two in the group, 8 at most.

    A tile of 128 rows is then 16 tokens of 8 heads, so that a chunk pads its tail to 16 tokens instead of 128.
    """
    return gcd(group, 8)


def tiles(side: Side, rows: int, heads: int = 1, causal: bool = True) -> Tiles:
    """Tiles of `rows` rows, so many heads of some tokens. Heads run fastest: those of one KV head run together then,
    and read the same K and V."""
    # Blocks of tokens: all of the first chunk, of the second, and so on.
    step = rows // heads
    counts = -(-side.q_len // step)
    chunk = np.repeat(np.arange(len(counts)), counts)
    first = (np.arange(len(chunk)) - (np.cumsum(counts) - counts)[chunk]) * step
    tokens = np.minimum(step, side.q_len[chunk] - first)
    pos = (side.kv_len - side.q_len)[chunk] + first
    end = pos + tokens if causal else side.kv_len[chunk]
    # Each for every group of heads.
    firsts = np.arange(0, side.q_heads, heads)
    block = np.repeat(np.arange(len(chunk)), len(firsts))
    columns = (side.token[chunk] + first, tokens, side.seq[chunk], pos, side.kv_len[chunk], end)
    token, tokens, seq, pos, kv_len, end = (column[block] for column in columns)
    head = np.tile(firsts, len(chunk))
    kv_head = head // (side.q_heads // side.kv_heads)
    return Tiles(token, tokens, head, np.full(len(head), heads), kv_head, seq, pos, kv_len, end)


# ---------------------------------------------------------------- in which order
def longest_first(made: Tiles) -> Tiles:
    return made.in_order(np.argsort(-made.end, kind="stable"))


def in_sections(made: Tiles, side: Side, head_dim: int, block: int) -> Tiles:
    """Longest first, so that the last to be drawn are short, but head by head within as many KV heads as have room for
    their K and V in L2 together: DRAM is decode's."""
    together = np.clip(L2_SHARE // (made.kv_len * head_dim * 4), 1, side.kv_heads)
    section, blocks = made.kv_head // together, -(-made.end // block)
    return made.in_order(np.lexsort((made.head, made.seq, -blocks, section)))


# ---------------------------------------------------------------- in how many parts
def cut(made: Tiles, splits: int, block: int) -> WorkList:
    """Each tile in at most `splits` parts of whole blocks of keys. Every part is a piece."""
    blocks = -(-made.end // block)
    parts = np.minimum(splits, blocks)
    tile, part, partial, group, partials, groups = number_parts(parts)
    *columns, end = made.in_order(tile) if groups else made
    n, p = blocks[tile], parts[tile]
    keys = (n * part // p * block, np.minimum(n * (part + 1) // p * block, end))
    pieces = np.arange(len(tile) + 1)
    return WorkList(*columns, *keys, part, p, partial, group, pieces, partials, groups)
