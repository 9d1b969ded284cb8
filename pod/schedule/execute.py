"""Work lists, executed: every piece as the kernel computes it, in float64, one after the other."""

from __future__ import annotations

import numpy as np

from pod.reference import State
from pod.schedule.hopper import DECODE_TILE, FIELDS, PREFILL_TILE, WorkList, pack_shift


def rows_of(
    piece: dict[str, int], side: str, num_q_heads: int, shift: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token, query head and context position of each query row of a piece."""
    if side == "decode":
        row = piece["q_row"] + np.arange(piece["rows"])
        return row // num_q_heads, row % num_q_heads, np.full(len(row), piece["kv_len"] - 1)
    row = np.arange(piece["rows"])
    return piece["q_row"] + (row >> shift), piece["head"] + (row & ((1 << shift) - 1)), piece["pos0"] + (row >> shift)


def tokens_of(piece: dict[str, int], side: str) -> np.ndarray:
    """The KV tokens that a piece reads, before any mask."""
    tile = DECODE_TILE if side == "decode" else PREFILL_TILE
    return np.arange(piece["begin"] * tile, min(piece["end"] * tile, piece["kv_len"]))


def execute(q, k, v, prefill: WorkList, decode: WorkList, causal: bool = True, order=None):
    """Attention by two work lists: q [tokens, Hq, D], caches [sequences, slots, Hkv, D] -> output, log-sum-exp.

    Parts of one result wait in their slots; whoever comes last adds them up in slot order. `order`, a random generator,
    lets the pieces run in any order. A query row that is computed twice is refused; one that nobody computes stays NaN.
    """
    num_q_heads, num_kv_heads = q.shape[1], k.shape[2]
    out, lse = np.full(q.shape, np.nan), np.full(q.shape[:2], np.nan)
    for side, lists in (("prefill", prefill), ("decode", decode)):
        slots: list[State | None] = [None] * lists.slots
        arrived = [0] * lists.groups
        work = lists.work if order is None else order.permutation(lists.work)
        for row in work:
            piece = dict(zip(FIELDS, map(int, row), strict=True))
            at = rows_of(piece, side, num_q_heads, pack_shift(num_q_heads, num_kv_heads))
            state = _compute(piece, side, q, k, v, at, causal)
            if piece["parts"] > 1:
                state = _arrive(piece, state, slots, arrived)
            if state is None:
                continue
            tokens, heads, _ = at
            if not np.isnan(lse[tokens, heads]).all():
                raise ValueError(f"{side}: got a second result for token {tokens[0]}, allowed is one a query row")
            out[tokens, heads], lse[tokens, heads] = state.finish()
    return out, lse


def _compute(piece, side, q, k, v, at, causal) -> State:
    tokens, heads, positions = at
    kv_head = piece["head"] if side == "decode" else piece["head"] // (q.shape[1] // k.shape[2])
    seen = tokens_of(piece, side)
    scores = q[tokens, heads] @ k[piece["seq"], seen, kv_head].T * q.shape[2] ** -0.5
    if causal:
        scores = np.where(seen > positions[:, None], -np.inf, scores)
    return State.of(scores, v[piece["seq"], seen, kv_head])


def _arrive(piece, state, slots, arrived) -> State | None:
    """Leave a part in its slot. The last to come gets the whole, all others nothing."""
    slots[piece["slot"] + piece["part"]] = state
    arrived[piece["group"]] += 1
    if arrived[piece["group"]] < piece["parts"]:
        return None
    whole, *rest = slots[piece["slot"] : piece["slot"] + piece["parts"]]
    for part in rest:
        whole = whole.merge(part)
    return whole
