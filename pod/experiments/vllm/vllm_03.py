"""PagedAttention post: when the pool runs dry, the latest request gives way with all its blocks."""

import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show.serving import request_grids
from pod.simulate.scenarios import CROWD, crowded

FIGURE = Figure(
    title="Preemption by recompute and by swap when the pool runs dry",
    chapter="12",
    method="four requests in a pool of 24 tokens, blocks of 2, vLLM's scheduler, one tick an iteration",
)


def table():
    """One row an iteration and request: tokens computed there, or how it was preempted."""
    rows = []
    for mode, log in crowded().items():
        for tick, event in enumerate(log.iterations):
            rows += [(mode, tick, i, "preempted", 0) for i, _ in event.preempted]
            rows += [(mode, tick, i, "swapped in", 0) for i in event.swapped_in]
            rows += [(mode, tick, i, "prefill", tokens) for i, tokens, *_ in event.prefills]
            rows += [(mode, tick, i, "decode", 1) for i in event.decodes]
    return pd.DataFrame(rows, columns=["preemption", "iteration", "request", "what", "tokens"])


def draw(df):
    titles = {"recompute": "drop and recompute", "swap": "swap to host memory"}
    tokens = df.groupby("preemption").tokens.sum()
    return request_grids({f"{titles[k]}, {tokens[k]} tokens computed": log for k, log in crowded().items()})


def latest_share() -> float:
    """Share of the preemptions that took the latest of those who ran, with all that it had in the pool."""
    df = table()
    right = total = 0
    for _, mine in df[df.what != "swapped in"].groupby(["preemption", "iteration"]):
        gone = mine.request[mine.what == "preempted"]
        left = mine.request[mine.what != "preempted"]
        total += len(gone)
        right += sum(request > left.max() for request in gone)
    back = df[(df.preemption == "recompute") & (df.what == "prefill") & (df.iteration > 0)]
    whole = (back.tokens > back.request.map({i: prompt for i, (prompt, _) in enumerate(CROWD)})).all()
    return right / total if whole else 0.0
