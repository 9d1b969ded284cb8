"""One hybrid iteration of the real engine on an H200: what the host does, what the GPU does, and who waits."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure

FIGURE = Figure(
    id="engine-timeline",
    source="This repository",
    title="One hybrid iteration of Llama-3-8B on the host and on the GPU",
    chapter="13",
    method="CUDA events around every piece; a chunk of 967 tokens beside 57 chats of 12K tokens, random weights, "
    "on a host that was not quiet",
    state="recorded",
    data=("engine-timeline",),
)
NAMES = {"fa3": "attention by FlashAttention-3, two calls", "hopper": "attention by our kernel, one call"}


def table():
    """Milliseconds since the scheduler was asked, one row a piece; layer -1 is around the layers."""
    df = read("engine-timeline")
    return df[df.run.isin(NAMES)].assign(run=df.run.map(NAMES))


def draw(df):
    from pod.show.engine import timeline

    return timeline(df)


def summary(df):
    """A row a run: the iteration until the next one begins, its attention, when all was launched, and the share of it
    in which the GPU had no work."""
    import pandas as pd

    rows = {}
    for run, mine in df.groupby("run", sort=False):
        gpu, host = mine[mine.gpu_end_ms > 0], mine.set_index("piece")
        total, busy = host.host_end_ms["finish"], gpu.gpu_end_ms.max() - gpu.gpu_start_ms.min()
        attention = gpu[gpu.piece == "attention"]
        rows[run] = {"iteration ms": total, "attention ms": (attention.gpu_end_ms - attention.gpu_start_ms).sum(),
                     "launched after ms": host.host_end_ms["head"], "GPU idle %": 100 * (1 - busy / total)}  # fmt: skip
    return pd.DataFrame(rows).T
