"""Work lists: which query rows meet which keys, in which order, in which pieces. One form for every kernel.

All lengths are in tokens, of queries and of keys. What a kernel wants in other units, its module in pod/kernels turns.
"""

from dataclasses import dataclass, field, fields
from functools import cache
from typing import NamedTuple

import numpy as np

from pod.batch import HybridBatch


# ---------------------------------------------------------------- the two sides of a batch
class Side(NamedTuple):
    """The sequences of prefill or of decode: arrays with an entry a sequence, in the order of the batch."""

    token: np.ndarray  # the first new one, counted through the batch
    q_len: np.ndarray
    kv_len: np.ndarray
    seq: np.ndarray  # its place in the batch
    q_heads: int
    kv_heads: int
    window: int | None = None

    @property
    def group(self) -> int:
        return self.q_heads // self.kv_heads

    @property
    def first(self) -> np.ndarray:
        """The first key that any new token sees."""
        return first_seen(self.kv_len - self.q_len, self.window)

    @property
    def seen(self) -> np.ndarray:
        """Keys that some new token sees."""
        return self.kv_len - self.first


def first_seen(pos: np.ndarray, window: int | None) -> np.ndarray:
    """By the token at `pos`."""
    return np.zeros(len(pos), int) if window is None else np.maximum(0, pos + 1 - window)


def sides(batch: HybridBatch, tokens: int = 1) -> tuple[Side, Side]:
    """Prefill and decode: sequences with more than so many new tokens, and those with as many or fewer."""
    q_lens, kv_lens = batch.lens
    columns = np.array([q_lens.cumsum() - q_lens, q_lens, kv_lens, np.arange(len(q_lens))])
    many, heads = q_lens > tokens, (batch.num_q_heads, batch.num_kv_heads, batch.window)
    which = many.nonzero()[0], ((q_lens > 0) != many).nonzero()[0]
    return tuple(Side(*columns.take(i, axis=1), *heads) for i in which)


def seeing(side: Side) -> Side:
    """Without sequences that see no key, for kernels that compute no padding."""
    if side.kv_len.all():
        return side
    return side._replace(**{name: getattr(side, name)[side.kv_len > 0] for name in ("token", "q_len", "kv_len", "seq")})


def by_token(side: Side, causal: bool) -> Side:
    """Each new token as a sequence of one, that sees the keys up to its own: for kernels whose decode has one token a
    row. They read keys once a token then, as prefill does once a query head."""
    draft = np.repeat(np.arange(len(side.seq)), side.q_len)
    token = np.arange(len(draft)) - np.repeat(np.cumsum(side.q_len) - side.q_len, side.q_len)
    kv_len = side.kv_len[draft] - (side.q_len[draft] - token - 1) * causal
    return side._replace(token=side.token[draft] + token, q_len=np.ones_like(token), kv_len=kv_len, seq=side.seq[draft])


def passes(side: Side, heads: int) -> np.ndarray:
    """First query head, number of heads, and KV head of each pass: several over one that more share than `heads`."""
    return _passes(side.q_heads, side.kv_heads, heads)


@cache
def _passes(q_heads: int, kv_heads: int, heads: int) -> np.ndarray:
    group = q_heads // kv_heads
    kv_head, first = np.meshgrid(np.arange(kv_heads), np.arange(0, group, heads), indexing="ij")
    kv_head, first = kv_head.ravel(), first.ravel()
    return np.array([kv_head * group + first, np.minimum(heads, group - first), kv_head])


def pass_count(side: Side, heads: int) -> int:
    return side.kv_heads * -(-side.q_heads // side.kv_heads // heads)


# ---------------------------------------------------------------- a work list
@dataclass(frozen=True, eq=False)
class WorkList:
    """A row is a tile of queries, some tokens by some heads, against a range of keys. A piece is the rows that one
    worker computes: a tile's part in prefill, a range of one or more rows in decode.

    The keys of a tile may be cut into parts (split-K, as FlashDecoding does). Each part leaves a partial result, and
    whoever comes last merges those of its group in the order of the parts.
    """

    token: np.ndarray  # first token, counted through the batch
    tokens: np.ndarray
    head: np.ndarray  # first query head
    heads: np.ndarray
    kv_head: np.ndarray  # that all of them share
    seq: np.ndarray
    pos: np.ndarray  # of the first token in its sequence: under the causal mask it sees the keys up to this one
    kv_len: np.ndarray
    begin: np.ndarray  # first key
    end: np.ndarray  # and the one after the last
    part: np.ndarray
    parts: np.ndarray
    partial: np.ndarray  # number of the partial result of the group's first part
    group: np.ndarray  # number of the tile, of those that are in parts
    pieces: np.ndarray = field(default_factory=lambda: np.zeros(1, int))  # first row of each, and the end
    partials: int = 0  # in all
    groups: int = 0

    def __len__(self) -> int:
        return len(self.token)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in COLUMNS}

    @property
    def costs(self) -> np.ndarray:
        """Keys that each piece reads."""
        keys = np.append(0, np.cumsum(self.end - self.begin))
        return np.diff(keys[self.pieces])

    def blocks(self, keys: int) -> np.ndarray:
        """Blocks of so many keys that each row reads: one at least, where padding sees nothing."""
        return np.maximum(1, -(-self.end // keys) - self.begin // keys)


COLUMNS = tuple(f.name for f in fields(WorkList))[:14]


@cache
def empty() -> WorkList:
    return WorkList(*(np.zeros(0, int) for _ in COLUMNS))


def number_parts(parts: np.ndarray) -> tuple[np.ndarray, ...]:
    """For tiles in so many `parts`, of each part: its tile, its number, its group's first partial result, its group;
    and all partial results and groups."""
    tile, split = np.arange(len(parts)), parts > 1
    if not split.any():
        return tile, *np.zeros((3, len(parts)), int), 0, 0
    tile = tile.repeat(parts)
    kept = parts * split
    partials, groups = kept.cumsum(), split.cumsum()
    before = np.array([parts.cumsum() - parts, partials - kept, groups - split])
    before, partial, group = before.take(tile, axis=1, mode="wrap")
    return tile, np.arange(len(tile)) - before, partial, group, int(partials[-1]), int(groups[-1])


# ---------------------------------------------------------------- the tiles of the kernels, as their sources have them
class Pack(NamedTuple):
    """What a tile of prefill holds: some tokens by some query heads of one KV head, so that a chunk pads its tail to 16
    tokens, say, instead of 128. Of the Hopper kernel's, each warpgroup has the next tokens or the next heads."""

    tokens: int
    heads: int


@dataclass(frozen=True)
class Shape:
    """What a CTA computes at a time."""

    prefill_rows: int  # of a tile: tokens x heads
    prefill_keys: int  # of a block
    decode_rows: int  # tokens x query heads that one pass over a KV head serves
    decode_keys: int  # that decode never cuts apart
    virtual: int = 1  # decode pieces side by side, one a warp (virtual CTAs)


# Of csrc/sm80/hybrid.cu, by CTAs an SM.
SHAPES = {2: Shape(128, 64, 16, 16, 4), 4: Shape(64, 32, 16, 16, 2), 8: Shape(32, 16, 16, 16)}
PERSISTENT = Shape(128, 128, 8, 64)  # of csrc/sm90
WIDE = Shape(192, 128, 8, 64)  # with a third warpgroup of prefill: at head_dim 64, where there is no decode
NARROW = Shape(128, 128, 1, 64)  # for tiles of few rows, where there is no decode
WARPGROUP = 64  # rows of a tile of either that one warpgroup computes
# That decode may pack there. With 32 nothing was faster; nor in a kernel without prefill, with all of an SM's room. Nor
# were two to four CTAs of decode alone an SM, by more than 1.3 % on average.
DECODE_ROWS = (8, 16)


WHOLE = Pack(PERSISTENT.prefill_rows, 1)


# ---------------------------------------------------------------- the whole
@dataclass(frozen=True, eq=False)
class Schedule:
    """What a kernel is told of one batch: the work of both sides, and in which order CTAs take it."""

    batch: HybridBatch
    causal: bool
    sms: int
    method: str
    shape: Shape
    prefill: WorkList
    decode: WorkList
    ctas_per_sm: int = 1
    deal: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))  # of the method pod: see binding.py
    yields: bool = False  # of the method hopper: prefill leaves the tensor cores to decode between two turns
    pack: Pack = WHOLE  # of its tiles of prefill
