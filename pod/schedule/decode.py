"""Decode: the keys of all requests and KV heads, cut into pieces. Two ways to cut them.

`split_k`: each request into so many parts (FlashDecoding). Its last wave may be nearly empty (wave quantization).
`stream_k`: all key blocks lie on one line, which is cut into ranges (LeanAttention). A range may begin and end inside a
request, so no worker idles in a last wave. Where the line is cut is all that tells the methods apart: at equal
distances, at the end of every head (FlashAttention-2), or at fixed parts of every head.
"""

from collections.abc import Callable
from math import gcd

import numpy as np

from pod.schedule.work import Shape, Side, WorkList, empty, number_parts, pass_count, passes

MOST_PARTS = 128  # of one tile


# ---------------------------------------------------------------- split-K
def split_k(side: Side, parts: np.ndarray | int, keys: int, heads: int) -> WorkList:
    """Each request in so many `parts`, as far as it has blocks of `keys`. A part is a piece; longest first."""
    if len(side.seq) == 0:
        return empty()
    blocks, skipped = _blocks(side, keys)
    head = passes(side, heads)
    parts = np.clip(parts, 1, np.minimum(blocks, MOST_PARTS))

    # Units (request, pass) in order of the length of their parts, and within a unit its parts.
    request = np.repeat(np.argsort(-(blocks / parts), kind="stable"), len(head[0]))
    unit, part, partial, group, partials, groups = number_parts(parts[request])
    # Passes of the same part side by side: their K and V are neighbours in memory.
    of = unit % len(head[0])
    order = np.lexsort((of, part, unit // len(head[0])))
    r, of, part = request[unit][order], of[order], part[order]
    n, p, kv_len = blocks[r], parts[r], side.kv_len[r]
    borders = (np.minimum((skipped[r] + n * i // p) * keys, kv_len) for i in (part, part + 1))
    columns = _columns(side, r, head, of)
    pieces = np.arange(len(r) + 1)
    return WorkList(*columns, *borders, part, p, partial[order], group[order], pieces, partials, groups)


def _blocks(side: Side, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each request: blocks that it reads, one at least, and those before them, which no window reaches."""
    blocks = -(-side.kv_len // keys)
    if side.window is None:
        return np.maximum(1, blocks), np.zeros(len(blocks), int)
    skipped = side.first // keys
    return np.maximum(1, blocks - skipped), skipped


def tiles(side: Side, shape: Shape) -> int:
    """Blocks that all requests read, in all passes."""
    return int(_blocks(side, shape.decode_keys)[0].sum()) * pass_count(side, shape.decode_rows)


def _columns(side: Side, request: np.ndarray, made: tuple, of: np.ndarray) -> tuple[np.ndarray, ...]:
    """token to kv_len of a work list: of each row its request, and which of the passes."""
    heads, kv_len = (column[of] for column in made), side.kv_len[request]
    tokens = side.q_len[request]
    return side.token[request], tokens, *heads, side.seq[request], kv_len - tokens, kv_len


# ---------------------------------------------------------------- stream-K: where to cut
# The end of each range, in blocks.
def equal_cuts(blocks: np.ndarray, workers: int) -> np.ndarray:
    """As many ranges as workers, equally long to within one block."""
    total = int(np.sum(blocks))
    workers = min(workers, total)
    return np.arange(1, workers + 1) * total // workers


def weighted_cuts(blocks: np.ndarray, weights: np.ndarray, pad: int = 0) -> np.ndarray:
    """A range for each weight, as long as it says, where beginning a unit counts as `pad` blocks."""
    ends, shares = blocks.cumsum(), weights.cumsum()
    padded = ends + np.arange(pad, pad * len(blocks) + 1, pad) if pad else ends
    if shares.dtype.kind == "f":
        at = np.rint(shares / shares[-1] * padded[-1]).astype(int)
    else:  # as the plan on the device has it
        at = shares * padded[-1] // shares[-1]
    unit = padded.searchsorted(at)
    left = np.minimum(padded[unit] - at, blocks[unit])  # of the unit, behind the cut
    return distinct(ends[unit] - left, above=0)


def distinct(ascending: np.ndarray, above: int = -1) -> np.ndarray:
    """Each of the numbers once, if it is above that."""
    new = np.empty(len(ascending), bool)
    new[0] = ascending[0] > above
    np.greater(ascending[1:], ascending[:-1], out=new[1:])
    return ascending[new]


def split_cuts(blocks: np.ndarray, splits: int) -> np.ndarray:
    """Every unit in parts of a length that cuts the longest into `splits`; a short one fills fewer. 1: whole units."""
    blocks = np.asarray(blocks, np.int64)
    part = -(-int(blocks.max()) // splits)
    parts = -(-blocks // part)
    starts = np.repeat(np.cumsum(blocks) - blocks, parts)
    number = np.arange(len(starts)) - np.repeat(np.cumsum(parts) - parts, parts)
    return np.minimum(starts + (number + 1) * part, np.repeat(np.cumsum(blocks), parts))


# ---------------------------------------------------------------- stream-K: what lies between the cuts
def segments(blocks: np.ndarray, cuts: np.ndarray) -> tuple[np.ndarray, ...]:
    """Units of `blocks` blocks, end to end, cut at `cuts`: each segment's range, unit, first and end block."""
    starts, parts, begin, end = _cut_up(blocks, cuts)
    return np.arange(len(cuts)).repeat(np.diff(starts)), np.arange(len(blocks)).repeat(parts), begin, end


def _cut_up(blocks: np.ndarray, cuts: np.ndarray) -> tuple[np.ndarray, ...]:
    """The first segment of each range, and the end; segments of each unit; first and end block of each segment."""
    ends = blocks.cumsum()
    unit = ends.searchsorted(cuts)  # that a cut lies in, or at the end of
    inside = cuts < ends[unit]
    starts = np.zeros(len(cuts) + 1, int)
    starts[1:] = unit + 1 + inside.cumsum() - inside  # a unit begins a segment, and so does a cut inside of one
    unit, first = unit[inside], starts[1:][inside]
    parts = np.bincount(unit, minlength=len(blocks)) + 1
    begin, end = np.zeros(len(blocks) + len(unit), int), blocks.repeat(parts)
    begin[first] = end[first - 1] = cuts[inside] - (ends - blocks)[unit]
    return starts, parts, begin, end


def alike_for(passes: int, workers: int = 0) -> int:
    """Neighbouring passes that stream_k may cut alike: a power of two, so that ranges fall evenly on the workers."""
    return gcd(passes & -passes, workers)


def stream_k(side: Side, cut: Callable[[np.ndarray], np.ndarray], block: int, heads: int, alike: int = 1) -> WorkList:
    """The line of all requests and passes, cut where `cut` says, which is given the blocks of each unit of the line.

    alike: so many neighbouring passes, whose keys and values lie side by side in memory, are one unit and are cut at
    the same places, each for a piece of its own, so that neighbouring workers read them at the same time.
    """
    if len(side.seq) == 0:
        return empty()
    # The line: requests, and in each its passes, `alike` at a time.
    line, skipped = _blocks(side, block)
    head = passes(side, heads)
    each = len(head[0]) // alike
    blocks = line.repeat(each)
    cuts = cut(blocks)
    starts, parts, begin, end = _cut_up(blocks, cuts)
    unit, part, partial, group, partials, groups = number_parts(parts)
    request = unit // each
    first = (unit - request * each) * alike  # of its passes
    of_request = np.array([side.token, side.q_len, side.seq, side.kv_len - side.q_len, side.kv_len, skipped])
    *of_request, kv_len, before = of_request.take(request, axis=1)
    keys = (np.minimum((before + x) * block, kv_len) for x in (begin, end))
    columns = np.array([*of_request, kv_len, *keys, part, parts[unit], partial * alike, group * alike, first])

    # Every segment once for each of the passes that are cut alike: piece at * alike + i has those of the i-th.
    sizes = (starts[1:] - starts[:-1]).repeat(alike)
    pieces = np.zeros(len(sizes) + 1, int)
    sizes.cumsum(out=pieces[1:])
    i = (np.arange(len(sizes)) % alike).repeat(sizes)
    segment = (starts[:-1].repeat(alike) - pieces[:-1]).repeat(sizes) + np.arange(len(i))
    *columns, part, parts, partial, group, of = columns.take(segment, axis=1, mode="wrap")  # which looks for no error
    of += i  # in place: new memory costs more than what is done with it
    partial += i * parts
    group += i
    token, tokens, *rest = columns
    columns = (token, tokens, *head.take(of, axis=1, mode="wrap"), *rest, part, parts, partial, group)
    return WorkList(*columns, pieces, partials * alike, groups * alike)
