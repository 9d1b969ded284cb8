"""What the prompt feels against what the others feel, over chunk sizes: POD moves the whole curve."""

import pandas as pd

from pod.data import read
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.run import Run
from pod.simulate.scenarios import SYSTEMS, online_setup
from pod.simulate.workload import Workload

FIGURE = Figure(
    title="TTFT against TBT over chunk sizes on one H200",
    chapter="15",
    method="operators measured on one H200, calibrated by a real run; Llama-3-8B, the arXiv workload "
    "at one rate for all systems",
    data=("engine-pareto",),
    fitted=True,
)
COMPUTED = "engine-pareto"
KEYS, READS = ("system", "chunk"), ("operators", "engine-runs")
CHUNKLESS = 1024  # of vLLM, which cuts no prompt: any will do
CHUNKS, WORKLOAD, QPS, REQUESTS = (384, 512, 768, 1024, 1536, 2048, 3072), "arxiv", 1.3, 1024
TURN = "Sarathi, ours in turn"
CUTTING = {"Sarathi": SYSTEMS["Sarathi"], TURN: SYSTEMS["Sarathi"] | {"kernels": "hopper"},
           "Sarathi+POD": SYSTEMS["Sarathi+POD"]}  # fmt: skip


def cases() -> list[dict]:
    cut = [{"system": system, "chunk": chunk} for system in CUTTING for chunk in CHUNKS]
    return [{"system": "vLLM", "chunk": CHUNKLESS}, *cut]


def measure(case: dict) -> dict[str, float]:
    setup = online_setup(case["chunk"], **(CUTTING | {"vLLM": SYSTEMS["vLLM"]})[case["system"]])
    return Run(setup, Workload(WORKLOAD, REQUESTS, QPS)).metrics()


def table():
    """A row a system and chunk (vLLM has none): seconds to the first token and between tokens."""
    df = read("engine-pareto")
    df["chunk"] = df.chunk.mask(df.system == "vLLM")
    return df[["system", "chunk", "ttft_p50", "ttft_p99", "tbt_p50", "tbt_p99"]]


def draw(df):
    ax = style.axes(7.5, 3.9)
    looks = (("Sarathi", "Sarathi, two calls of FlashAttention-3", "-", style.WORKERS[1]),
             (TURN, "Sarathi, our kernel's halves in turn", "--", style.WORKERS[0]),
             ("Sarathi+POD", "Sarathi+POD", "-", style.WORKERS[0]))  # fmt: skip
    for system, words, line, colour in looks:
        mine, full = df[df.system == system], line == "-"
        ax.plot(1e3 * mine.tbt_p99, mine.ttft_p50, "o" + line, color=colour, markersize=7 if full else 5, label=words,
                markerfacecolor=colour if full else "white")  # fmt: skip
        for row in mine.itertuples() if full else ():
            ax.annotate(f"{row.chunk:.0f}", (1e3 * row.tbt_p99, row.ttft_p50),
                        (5, 5) if system == "Sarathi" else (-10, -15), textcoords="offset points",
                        fontsize=8.5, color=colour)  # fmt: skip
    vllm = df[df.system == "vLLM"].iloc[0]
    ax.plot(1e3 * vllm.tbt_p99, vllm.ttft_p50, "s", color=style.colour("linear"), markersize=8,
            label="vLLM: prompts first")  # fmt: skip
    ax.set(xscale="log", yscale="log", ylim=(0.33, None), xlabel="P99 TBT, ms: what the others feel",
           ylabel="median TTFT, s: what the prompt feels")  # fmt: skip
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
    style.legend(ax, loc="upper right")
    return ax.figure


def overlap(metric: str) -> pd.Series:
    """By chunk: of what Sarathi+POD takes off two calls of FlashAttention-3, how much it takes off ours in turn, %."""
    each = table().pivot(index="chunk", columns="system", values=metric)
    two, turn, once = (each[system] for system in CUTTING)
    return (100 * (turn - once) / (two - once)).dropna()
