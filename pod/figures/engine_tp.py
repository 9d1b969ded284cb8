"""The same offline window of Llama-3-8B on one H200 and on two that share every layer."""

from __future__ import annotations

from pod.figures import Figure

FIGURE = Figure(
    id="engine-tp",
    source="This repository",
    title="One GPU and two: the same batches, every layer shared",
    chapter="13",
    method="hybrid iterations out of a long offline run of Llama-3-8B, random weights, NCCL; GPU time by CUDA events, "
    "waiting for the other GPU included",
    state="recorded",
    data=("h200/engine-runs.csv", "h200/engine-tp.csv"),
)
NAMES = {"fa3": "FlashAttention-3", "hopper": "ours"}


def table():
    """A row a run: GPUs, attention, iterations, and their medians: milliseconds to the next decision, the GPU's, and
    the share in which the GPU waited for the host."""
    import pandas as pd

    from pod.measure.provenance import RECORDED

    rows = []
    for gpus, path in zip((1, 2), FIGURE.data, strict=True):
        for run, mine in pd.read_csv(RECORDED / path).groupby("run", sort=False):
            load, _, attention = run.partition(", ")
            if load in ("llama-3-8b", "llama-3-8b tp2") and attention in NAMES:
                taken = mine.scheduled_ms.shift(-1) - mine.scheduled_ms
                rows.append((gpus, NAMES[attention], len(mine), taken.median(), mine.gpu_ms[taken.notna()].median()))
    df = pd.DataFrame(rows, columns=["gpus", "attention", "iterations", "ms", "gpu_ms"])
    return df.assign(host_percent=100 * (1 - df.gpu_ms / df.ms))


def draw(df):
    from pod.show import style

    ax = style.axes(9.5, 0.9 + 0.36 * len(df))
    y = range(len(df))
    ax.barh(y, df.gpu_ms, color=style.colour("hybrid"), label="GPU works")
    ax.barh(y, df.ms - df.gpu_ms, left=df.gpu_ms, color=style.colour("host"), label="GPU waits for the host")
    for i, row in zip(y, df.itertuples(), strict=True):
        ax.text(row.ms, i, f" {row.ms:.1f}", va="center", fontsize=9)
    ax.set(yticks=list(y), ylim=(len(df) - 0.4, -0.6), xlabel="ms an iteration, median", xlim=(0, 1.12 * df.ms.max()))
    ax.set_yticklabels([f"{r.gpus} GPU{'s' * (r.gpus > 1)}, {r.attention}" for r in df.itertuples()], fontsize=9)
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    return ax.figure


def speedup(attention: str = "ours") -> float:
    """How many times as fast two GPUs are."""
    df = table()
    ms = df[df.attention == attention].set_index("gpus").ms
    return float(ms[1] / ms[2])
