"""What Tables 4 and 5 of POD-Attention say when each system is divided by the one before it."""

import pandas as pd
from matplotlib import pyplot as plt

from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="What chunking costs and what POD wins back, in the paper's own Tables 4 and 5",
    says="In the paper's own tables chunks trade waits for gaps, and POD shortens the waits",
    chapter="15",
    method="Ratios of the printed latencies, nothing measured here. Left of 1 the later system is faster.",
)
LOADS = {
    "internal, QPS 1.1": "t4.1.1",
    "internal, QPS 1.2": "t4.1.2",
    "arXiv, QPS 0.85": "t5.0.85",
    "arXiv, QPS 0.95": "t5.0.95",
}
METRICS = {"ttft_p50": "TTFT, median", "ttft_p99": "TTFT, P99", "tbt_p50": "TBT, median", "tbt_p99": "TBT, P99",
           "latency_p50": "request latency, median", "latency_p99": "request latency, P99"}  # fmt: skip
STEPS = {"Sarathi / vLLM": ("sarathi", "vllm"), "Sarathi+POD / Sarathi": ("pod", "sarathi")}


def table():
    """One row a step, metric and load."""
    rows = []
    for step, (later, earlier) in STEPS.items():
        for metric, name in METRICS.items():
            for load, key in LOADS.items():
                after, before = (paper.value(f"pod.{key}.{system}.{metric}") for system in (later, earlier))
                rows.append((step, name, load, before, after, after / before))
    return pd.DataFrame(rows, columns=["step", "metric", "load", "before_s", "after_s", "ratio"])


def draw(df):
    """Two panels of dots on one logarithmic axis; hollow is the lower load, filled the one nearer to capacity."""
    styles = {"internal, QPS 1.1": (style.WORKERS[1], False), "internal, QPS 1.2": (style.WORKERS[1], True),
              "arXiv, QPS 0.85": (style.WORKERS[0], False), "arXiv, QPS 0.95": (style.WORKERS[0], True)}  # fmt: skip
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.4), sharey=True, dpi=110, layout="constrained")
    rows = {name: y for y, name in enumerate(METRICS.values())}
    for ax, step in zip(axes, STEPS, strict=True):
        for offset, (load, (colour, filled)) in zip((-0.18, -0.06, 0.06, 0.18), styles.items(), strict=True):
            part = df[(df.step == step) & (df.load == load)]
            ax.scatter(part.ratio, part.metric.map(rows) + offset, s=46, label=load, zorder=3, linewidth=1.6,
                       facecolor=colour if filled else "white", edgecolor=colour)  # fmt: skip
        ax.axvline(1, color="#22303c", linewidth=1)
        ax.set(xscale="log", xlim=(0.07, 100), title=step, ylim=(len(rows) - 0.5, -0.5))
        words = ("÷10", "÷5", "÷2", "1", "×2", "×5", "×10", "×50")
        style.ticks(ax, (0.1, 0.2, 0.5, 1, 2, 5, 10, 50), words, fontsize=8)
        ax.grid(axis="x", color="#e9edf0")
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(rows)), list(rows), fontsize=9)
    axes[1].legend(frameon=False, fontsize=8.5, loc="lower right", title="filled: nearer to capacity",
                   title_fontsize=8.5)  # fmt: skip
    return figure
