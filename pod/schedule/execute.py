"""Work lists of any kernel, executed: every row as the kernel computes it, in float64, one after the other."""

import numpy as np

from pod.reference import State
from pod.schedule.work import WorkList

Row = dict[str, int]  # of a work list, by the names of its columns


def rows(work: WorkList) -> list[Row]:
    columns = {name: column.tolist() for name, column in work.columns.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def queries(row: Row) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token, query head and position in its sequence of each query of a row."""
    token, head = np.divmod(np.arange(row["tokens"] * row["heads"]), row["heads"])
    return row["token"] + token, row["head"] + head, row["pos"] + token


def execute(q, k, v, prefill: WorkList, decode: WorkList, causal: bool = True, order=None):
    """Attention by two work lists: q [tokens, Hq, D], caches [sequences, slots, Hkv, D] -> output, log-sum-exp.

    Parts of one result wait as partial results; whoever comes last adds them up in the order of the parts. `order`, a
    random generator, lets the rows run in any order. A query that is computed twice is refused; one that nobody
    computes stays NaN.
    """
    out, lse = np.full(q.shape, np.nan), np.full(q.shape[:2], np.nan)
    for side, work in (("prefill", prefill), ("decode", decode)):
        partials: list[State | None] = [None] * work.partials
        arrived = [0] * work.groups
        todo = rows(work)
        for row in todo if order is None else [todo[i] for i in order.permutation(len(todo))]:
            state = _compute(row, q, k, v, causal)
            if row["parts"] > 1:
                state = _arrive(row, state, partials, arrived)
            if state is None:
                continue
            tokens, heads, _ = queries(row)
            if not np.isnan(lse[tokens, heads]).all():
                raise ValueError(f"{side}: got a second result for token {tokens[0]}, allowed is one a query row")
            out[tokens, heads], lse[tokens, heads] = state.finish()
    return out, lse


def _compute(row: Row, q, k, v, causal: bool) -> State:
    tokens, heads, positions = queries(row)
    kv_head, seen = row["kv_head"], np.arange(row["begin"], row["end"])
    scores = q[tokens, heads] @ k[row["seq"], seen, kv_head].T * q.shape[2] ** -0.5
    if causal:
        scores = np.where(seen > positions[:, None], -np.inf, scores)
    return State.of(scores, v[row["seq"], seen, kv_head])


def _arrive(row: Row, state: State, partials: list, arrived: list[int]) -> State | None:
    """Leave a part as a partial result. The last to come gets the whole, all others nothing."""
    first = row["partial"]
    partials[first + row["part"]] = state
    arrived[row["group"]] += 1
    if arrived[row["group"]] < row["parts"]:
        return None
    whole, *rest = partials[first : first + row["parts"]]
    for part in rest:
        whole = whole.merge(part)
    return whole
