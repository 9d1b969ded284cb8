"""The running example: a chat server on one GPU, and what a long prompt does to everybody else."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt

from pod.batch import MODELS, HybridBatch
from pod.hardware import A100
from pod.lab.figure import Figure
from pod.lab.show import lanes, style
from pod.lab.show.lanes import longest_gap
from pod.serving.shapes import SHAPES
from pod.simulate.cost import AnalyticalCost, Work

FIGURE = Figure(
    id="stutter",
    title="A long prompt arrives while others are being answered",
    chapter="00",
    method="Yi-6B on one A100: 80 chats at 8K tokens, a prompt of 12,288. Analytical GPU times per iteration, no host.",
    state="simulated",
)
CHATS, CONTEXT, PROMPT, CHUNK = 80, 8192, 12288, 1024
WHOLE, CHUNKS, OVERLAP = "whole prompt first", "in chunks", "in chunks, perfect overlap"
BEFORE, AFTER = 4, 3  # iterations around the prompt that are shown
ROWS = ["long prompt", "each chat"]


def iterations(way: str) -> list[tuple[int, int, bool]]:
    """Of each iteration: new prompt tokens, prompt tokens before them, and whether the chats take part."""
    idle = (0, 0, True)
    prompt = [(PROMPT, 0, False)] if way == WHOLE else [(CHUNK, at, True) for at in range(0, PROMPT, CHUNK)]
    return [idle] * BEFORE + prompt + [idle] * AFTER


def seconds(way: str) -> list[float]:
    """GPU time of each iteration."""
    cost = AnalyticalCost(SHAPES["yi-6b"], A100, attention="oracle" if way == OVERLAP else "serial", host="none",
                          kernels="fa2")  # fmt: skip
    works = (Work(((n, before),) if n else (), CHATS * chats, CHATS * CONTEXT * chats)
             for n, before, chats in iterations(way))  # fmt: skip
    return [sum(cost.parts(work).values()) for work in works]


def table():
    """One row an iteration and row of the picture: when it began and ended, in seconds."""
    rows = []
    for way in (WHOLE, CHUNKS, OVERLAP):
        now = 0.0
        for (n, _, chats), length in zip(iterations(way), seconds(way), strict=True):
            rows += [(way, ROWS[0], now, now + length, "prefill")] * bool(n)
            rows += [(way, ROWS[1], now, now + length, "decode")] * chats
            now += length
    return pd.DataFrame(rows, columns=["way", "row", "start", "end", "kind"])


def gaps(df) -> dict[str, float]:
    """Longest wait of a chat between two tokens, in seconds, by way."""
    ends = df[df.row == ROWS[1]].groupby("way", sort=False).end
    return {way: stop - start for way, (start, stop) in ends.apply(lambda x: longest_gap(list(x))).items()}


def draw(df):
    figure, axes = plt.subplots(3, 1, figsize=(9.5, 5.2), dpi=style.DPI, layout="constrained", sharex=True)
    for ax, (way, part) in zip(axes, df.groupby("way", sort=False), strict=True):
        tokens = {ROWS[1]: list(part[part.row == ROWS[1]].end), ROWS[0]: [part[part.row == ROWS[0]].end.max()]}
        arrival = {ROWS[0]: part[part.row == ROWS[0]].start.min()}
        bars = part[["row", "start", "end", "kind"]]
        lanes(bars, tokens, arrival, rows=ROWS, unit="s", ax=ax)
        ax.get_legend().remove()
        ax.set_title(f"{way}: a chat waits up to {1000 * gaps(part)[way]:.0f} ms", fontsize=10, loc="right")
        ax.set_xlabel("time, s" if ax is axes[-1] else "")
    axes[0].set_xlim(0, 1.02 * df.end.max())
    style.legend(axes[0], loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2)
    return figure


def batch(chunk_end: int = PROMPT) -> HybridBatch:
    """The hybrid batch of the iteration whose chunk ends at token `chunk_end` of the prompt."""
    return HybridBatch.of(CHUNK, chunk_end, CHATS, CONTEXT, **MODELS["yi-6b"].heads())
