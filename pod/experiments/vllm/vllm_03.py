"""PagedAttention post: when the pool runs dry, the latest request gives way with all its blocks."""

import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show.serving import request_grids
from pod.serving.blocks import PagedPool
from pod.serving.loop import serve
from pod.serving.schedulers import VLLM
from pod.serving.schedulers.published import PublishedPool
from pod.simulate.metrics import metrics
from pod.simulate.run import Run, Setup, description
from pod.simulate.scenarios import CROWD, crowded
from pod.simulate.workload import Workload

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
    logs = {f"{titles[k]}, {tokens[k]} tokens computed": log for k, log in crowded().items()}
    return request_grids(logs, waits="waits:\nprompts\nfirst")


TIGHT = Workload("uniform", 400, low=128, high=512, pd=1)  # on 1,150 blocks, which are far too few
DETAILS = {"ours, but asking": (PublishedPool, 1), "ours, but rounding down": (PagedPool, -1)}


def real_systems() -> pd.DataFrame:
    """vLLM's policy on a pool that is far too small: with our details, with those of two systems (`Setup(like=...)`),
    and with one of theirs at a time."""
    setup = Setup(scheduler="vllm", blocks=1150, max_tokens=4096)
    likes = {"ours": None, "sarathi-serve": "sarathi-serve", "vllm-0.2.7": "vllm-0.2.7"}
    rows = {name: Run(setup, TIGHT).but(like=like).metrics() for name, like in likes.items()}
    for name, (kind, more) in DETAILS.items():
        pool = kind(setup.blocks)
        pool.kept_free += more
        lane = VLLM(pool, setup.max_batch, max_tokens=setup.max_tokens)
        rows[name] = metrics(serve(TIGHT.requests(), [lane], setup.executor(), **description(setup, {})))
    table = pd.DataFrame(rows).T.rename_axis("vLLM's policy as in")
    table = table[["iterations", "preemptions", "ttft_p50", "requests_per_minute"]]
    return table.astype({"iterations": int, "preemptions": int})


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
