"""POD-Attention, Table 6: a larger chunk answers the prompt sooner and the others later."""

from __future__ import annotations

import pandas as pd

from pod.experiments.pod.pod_t4 import WORKLOAD
from pod.experiments.pod.shared import of
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.scenarios import POD, VLLM

FIGURE = Figure(
    id="pod-t6",
    title="Chunk size: TTFT against TBT",
    chapter="15",
    method="analytical A100, the synthetic workload of pod-t4 at 1.1 requests per second",
    data=("online",),
)
CHUNKS, QPS, METRICS = (1024, 1536, 2048), 1.1, ("ttft_p50", "ttft_p99", "tbt_p50", "tbt_p99")


def table():
    """One row a system and metric; the systems are vLLM and Sarathi+POD at three chunks."""
    runs = {"vLLM": of(WORKLOAD, QPS, CHUNKS[0], VLLM)}
    runs |= {f"chunk {chunk}": of(WORKLOAD, QPS, chunk, POD) for chunk in CHUNKS}
    rows = []
    for system, done in runs.items():
        key = system.removeprefix("chunk ").lower()
        rows += [(system, metric, paper.value(f"pod.t6.{key}.{metric}"), done[metric]) for metric in METRICS]
    return pd.DataFrame(rows, columns=["system", "metric", "paper", "ours"])


def draw(df):
    ax = style.axes(7.5, 3.4)
    for source, marker, line in (("paper", "X", ":"), ("ours", "o", "-")):
        wide = df.pivot(index="system", columns="metric", values=source)
        chunks = wide.loc[[f"chunk {chunk}" for chunk in CHUNKS]]
        ax.plot(chunks.tbt_p99, chunks.ttft_p50, marker + line, color=style.PREFILL, markersize=8,
                label=f"Sarathi+POD, {source}")  # fmt: skip
        ax.plot(wide.tbt_p99["vLLM"], wide.ttft_p50["vLLM"], marker, color=style.DECODE, markersize=8,
                label=f"vLLM, {source}")  # fmt: skip
        for chunk, row in zip(CHUNKS, chunks.itertuples(), strict=True):
            ax.annotate(str(chunk), (row.tbt_p99, row.ttft_p50), (6, 6), textcoords="offset points", fontsize=8.5)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set(xlabel="P99 TBT, s: what the others feel", ylabel="median TTFT, s: what the prompt feels")
    style.legend(ax, loc="upper right")
    return ax.figure


# ---------------------------------------------------------------- what claims ask for


def tbt_p99(chunk: int = 2048) -> float:
    return float(table().set_index(["system", "metric"]).ours[f"chunk {chunk}", "tbt_p99"])
