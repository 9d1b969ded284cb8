"""The same offline window of Llama-3-8B on one H200 and on two that share every layer."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure, engine_host
from pod.figures.engine_runs import WAYS

FIGURE = Figure(
    id="engine-tp",
    source="This repository",
    title="One GPU and two: the same batches, every layer shared",
    chapter="13",
    method="hybrid iterations out of a long offline run of Llama-3-8B, random weights, NCCL; GPU time by CUDA events, "
    "waiting for the other GPU included",
    state="recorded",
    data=("engine-runs", "engine-tp"),
)


def table():
    """A row a run: GPUs, attention, iterations, and their medians: milliseconds to the next decision, the GPU's, and
    the share in which the GPU waited for the host."""
    import pandas as pd

    rows = []
    for gpus, suite, load in ((1, "engine-runs", "llama-3-8b"), (2, "engine-tp", "llama-3-8b tp2")):
        runs = read(suite).groupby("run")
        for attention, name in WAYS.items():
            mine = runs.get_group(f"{load}, {attention}")
            taken = mine.scheduled_ms.shift(-1) - mine.scheduled_ms
            rows.append((gpus, name, len(mine), taken.median(), mine.gpu_ms[taken.notna()].median()))
    df = pd.DataFrame(rows, columns=["gpus", "attention", "iterations", "ms", "gpu_ms"])
    return df.assign(host_percent=100 * (1 - df.gpu_ms / df.ms))


def draw(df):
    names = [f"{r.gpus} GPU{'s' * (r.gpus > 1)}, {r.attention}" for r in df.itertuples()]
    return engine_host.shares(df, names, [f"{ms:.1f}" for ms in df.ms])


def speedup() -> float:
    """How many times as fast two GPUs are with our kernel."""
    df = table()
    ms = df[df.attention == WAYS["hopper"]].set_index("gpus").ms
    return float(ms[1] / ms[2])
