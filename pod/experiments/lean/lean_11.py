"""LeanAttention, Figure 11: head dimension 128, three model shapes, three batches."""

import math
from itertools import product

from pod.data import read
from pod.experiments.lean import shared
from pod.experiments.lean.lean_08 import BATCHES
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Head dimension 128, batches of 1, 4 and 16: stream-K for three model shapes",
    chapter="11",
    method="Our decode, bf16, against the same code cut by FlashDecoding's rules and uncut, and against two peers. The "
    "paper does not name its batches; ours are 1, 4 and 16.",
    data=("lean-sweep",),
    says="Where heads are few, any cut gains much; between cuts little differs",
)
MODELS = {(32, 32): "Llama-2-like, 32/32 heads", (32, 8): "Mistral-like, 32/8", (40, 10): "Phi-3-like, 40/10"}
OTHERS = {"no split": "single", "the rule of 2.5.6": "rule_256", "today's rule": "rule_now",
          "best fixed split": "best_split", "FlashAttention-3": "fa3", "FlashInfer": "flashinfer"}  # fmt: skip

TOP = 2.45  # of a panel


def table():
    """One row a batch, model and context: the time of each other way over that of stream-K; FlashInfer's is the faster
    of its two decodes."""
    df = shared.with_faster_flashinfer(read("lean-sweep"))
    df = df[df.panel == "11"].sort_values(["batch", "kv_heads", "context"], kind="stable").reset_index(drop=True)
    out = df[["batch", "q_heads", "kv_heads", "context", "lean"]]
    return out.assign(**{name: df[column] / df.lean for name, column in OTHERS.items()})


def draw(df):
    axes = style.axes(9.5, 7.2, columns=len(MODELS), rows=len(BATCHES), sharex=True, sharey=True)
    colours = (style.WORKERS[2], style.WORKERS[3], style.INK, *style.WORKERS[:2], style.WORKERS[4])
    for ax, (batch, heads) in zip(axes.flat, product(BATCHES, MODELS), strict=True):
        part = df[(df.batch == batch) & (df.q_heads == heads[0]) & (df.kv_heads == heads[1])]
        for name, colour in zip(OTHERS, colours, strict=True):
            dash = "--" if name in ("FlashAttention-3", "FlashInfer") else "-"
            ax.plot(part.context, part[name], dash, color=colour, marker="o", markersize=3.5, label=name)
        ax.axhline(1, color=style.FRAME, zorder=0)
        ax.set(xscale="log", ylim=(0.8, TOP))
        style.ticks(ax, part.context, [shared.in_k(n) for n in part.context], fontsize=8)
        if (most := part["no split"].max()) > TOP:
            ax.text(0.97, 0.95, f"no split: up to {most:.1f}", transform=ax.transAxes, ha="right", va="top",
                    fontsize=8.5, color=style.WORKERS[2])  # fmt: skip
    for ax, words in zip(axes[0], MODELS.values(), strict=True):
        ax.set_title(words, fontsize=10)
    for ax, batch in zip(axes[:, 0], BATCHES, strict=True):
        ax.set_ylabel(f"time over stream-K's\nbatch {batch}")
    for ax in axes[-1]:
        ax.set_xlabel("context")
    return style.legend_outside(axes[0, 0], "upper", 6)


def gain(kilotokens: int) -> float:
    """Largest over the rule of 2.5.6 at this context, over batches and models; of one batch alone it says nothing."""
    df = table()
    gains = df[df.context == kilotokens << 10]["the rule of 2.5.6"]
    return float(gains.max()) if set(df.batch) == set(BATCHES) else math.nan
