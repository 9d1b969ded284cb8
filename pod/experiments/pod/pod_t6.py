"""POD-Attention, Table 6: a larger chunk answers the prompt sooner and the others later."""

import numpy as np
import pandas as pd

from pod.data import read
from pod.experiments.pod.pod_12 import overlap_hidden
from pod.experiments.pod.pod_t4 import WORKLOAD
from pod.experiments.pod.pod_t5 import plain_ticks
from pod.experiments.pod.shared import of
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.cost import Efficiency
from pod.simulate.scenarios import POD, VLLM, online

FIGURE = Figure(
    title="Chunk size: TTFT against TBT",
    chapter="15",
    method="analytical A100, the synthetic workload of pod-t4 at 1.1 requests per second",
    data=("online", "pod-t6"),
)
COMPUTED = "pod-t6"
READS, KEYS = ("methods-sweep",), ("qps", "chunk")
CHUNKS, QPS, METRICS = (1024, 1536, 2048), 1.1, ("ttft_p50", "ttft_p99", "tbt_p50", "tbt_p99")
LOADS = (1.14, 1.15, 1.16, 1.17, 1.18, 1.19)  # around the one where a chunk of 1,024 has the paper's median TTFT


def cases() -> list[dict]:
    return [{"qps": qps, "chunk": chunk} for qps in LOADS for chunk in (CHUNKS[0], CHUNKS[-1])]


def measure(case: dict) -> dict[str, float]:
    run = online(WORKLOAD, case["qps"], case["chunk"])[POD].but(efficiency=Efficiency(overlap=overlap_hidden()))
    return run.metrics()


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
        ax.plot(chunks.tbt_p99, chunks.ttft_p50, marker + line, color=style.WORKERS[0], markersize=8,
                label=f"Sarathi+POD, {source}")  # fmt: skip
        ax.plot(wide.tbt_p99["vLLM"], wide.ttft_p50["vLLM"], marker, color=style.colour("linear"), markersize=8,
                label=f"vLLM, {source}")  # fmt: skip
        for chunk, row in zip(CHUNKS, chunks.itertuples(), strict=True):
            ax.annotate(str(chunk), (row.tbt_p99, row.ttft_p50), (6, 6), textcoords="offset points", fontsize=8.5)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        plain_ticks(axis)
    ax.set(xlabel="P99 TBT, s: what the others feel", ylabel="median TTFT, s: what the prompt feels")
    style.legend(ax, loc="upper right")
    return ax.figure


def tbt_p99(chunk: int = 2048) -> float:
    return float(table().set_index(["system", "metric"]).ours[f"chunk {chunk}", "tbt_p99"])


def load() -> float:
    """Requests a second at which a chunk of 1,024 has the paper's median TTFT."""
    return float(np.interp(paper.value("pod.s533.chunk_ttft_from"), ttft(CHUNKS[0]), LOADS))


def chunk_ttft() -> float:
    """Median TTFT with a chunk of 2,048 there, seconds."""
    return float(np.interp(load(), LOADS, ttft(CHUNKS[-1])))


def ttft(chunk: int) -> list[float]:
    """Median TTFT at each of the loads, seconds."""
    return read("pod-t6").set_index(list(KEYS)).ttft_p50[[(qps, chunk) for qps in LOADS]].to_list()
