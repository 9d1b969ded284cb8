"""Stream-K: lay the key blocks of all decode requests on one line and cut it into equal ranges, one a worker.

A range may begin and end inside a request, so no worker idles in a last wave (LeanAttention). The parts of a request
are merged as those of a fixed split are.
"""

from __future__ import annotations

import numpy as np

from pod.schedule.fixed_split import WorkList, decode_lanes, empty, number_parts, rows

BLOCK = 64  # keys that are not cut apart


def segments(blocks: np.ndarray, workers: int) -> tuple[np.ndarray, ...]:
    """Cut units of `blocks` blocks, end to end, into equal ranges: each segment's worker, unit, first and end block."""
    ends = np.cumsum(blocks)
    workers = min(workers, int(ends[-1]))
    cuts = np.arange(1, workers + 1) * ends[-1] // workers
    borders = np.unique(np.concatenate([[0], ends, cuts]))
    unit = np.searchsorted(ends, borders[:-1], side="right")
    start = (ends - blocks)[unit]
    return np.searchsorted(cuts, borders[:-1], side="right"), unit, borders[:-1] - start, borders[1:] - start


def decode_work(tokens, kv_lens, seqs, num_q_heads, num_kv_heads, workers: int) -> WorkList:
    """Decode of all requests in at most `workers` pieces of equal length."""
    kv_lens = np.asarray(kv_lens, np.int64)
    if len(kv_lens) == 0:
        return empty()
    lanes = decode_lanes(num_q_heads, num_kv_heads)
    request, lane = np.repeat(np.arange(len(kv_lens)), len(lanes)), np.tile(np.arange(len(lanes)), len(kv_lens))
    worker, unit, begin, end = segments(-(-kv_lens // BLOCK)[request], workers)
    parts = np.bincount(unit)
    _, part, slot, group, slots, groups = number_parts(parts)
    r = request[unit]
    head, kv_head, count = lanes[lane[unit]].T
    work = rows(token=np.asarray(tokens)[r], rows=count, head=head, kv_head=kv_head, seq=np.asarray(seqs)[r],
                pos=kv_lens[r] - 1, begin=begin * BLOCK, end=np.minimum(end * BLOCK, kv_lens[r]),
                part=part, parts=parts[unit], slot=slot, group=group)  # fmt: skip
    pieces = np.searchsorted(worker, np.arange(worker[-1] + 2))
    return WorkList(work, pieces.astype(np.int32), slots, groups)
