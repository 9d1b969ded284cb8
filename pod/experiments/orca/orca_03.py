"""Continuous batching post, Figure 3: linear operations see one long list of tokens, attention sees each request."""

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.shapes import shape

FIGURE = Figure(
    title="Selective batching: linear operations together, attention apart",
    chapter="12",
    method="one iteration of the Orca scheduler with Llama-3-8B's shapes; tensors are [tokens, features]",
)
# two requests in decode and two prompts, as in the post
DECODES, PROMPTS = (("x1", 5), ("x2", 9)), (("x3", 4), ("x4", 7))
GAP = 0.4  # between requests


def table():
    """One row an operation and piece: which requests are in it, the shapes in and out."""
    s = shape("llama-3-8b")
    new = [(name, 1, context) for name, context in DECODES] + [(name, n, n) for name, n in PROMPTS]
    total = sum(n for _, n, _ in new)
    rows = [("QKV linear", "all", total, f"[{total}, {s.hidden}]", f"[{total}, {s.matrices[0][1]}]")]
    for name, n, kv in new:
        q, k = f"Q [{s.q_heads}, {n}, {s.head_dim}]", f"K, V [{s.kv_heads}, {kv}, {s.head_dim}]"
        rows.append(("attention", name, n, f"{q}; {k}", f"[{n}, {s.hidden}]"))
    rows += [(name, "all", total, *[f"[{total}, {s.hidden}]"] * 2) for name in ("output linear", "feed-forward")]
    return pd.DataFrame(rows, columns=["operation", "requests", "tokens", "in", "out"])


def draw(df):
    ax = style.axes(9.5, 3.4)
    parts = df[df.operation == "attention"]
    kinds = ["decode" if n == 1 else "prefill" for n in parts.tokens]
    names = list(dict.fromkeys(df.operation))
    starts = np.cumsum([0, *(n + GAP for n in parts.tokens)])
    for y, operation in enumerate(names):
        mine = df[df.operation == operation]
        for left, name, n, kind in zip(starts, parts.requests, parts.tokens, kinds, strict=False):
            ax.add_patch(Rectangle((left, y + 0.2), n, 0.6, facecolor=style.colour(kind), edgecolor="white"))
            ax.text(left + n / 2, y + 0.5, name, ha="center", va="center", fontsize=9, color=style.text_on(kind))
        apart = operation == "attention"
        calls = zip(starts, parts.tokens, strict=False) if apart else [(0, starts[-1] - GAP)]
        for left, width in calls:
            ax.add_patch(Rectangle((left - 0.1, y + 0.14), width + 0.2, 0.72, fill=False, edgecolor=style.INK))
        words = f"{len(mine)} calls, one after the other" if apart else f"one call for all, in {mine['in'].iloc[0]}"
        ax.text(16.4, y + 0.5, words, va="center", fontsize=9, color=style.INK)
    ax.set(xlim=(-0.2, 24), ylim=(len(names), 0), xticks=[], yticks=[i + 0.5 for i in range(len(names))])
    ax.set_yticklabels(names)
    ax.tick_params(axis="y", length=0)
    ax.spines[:].set_visible(False)
    words = "a frame is a call; width = tokens; orange: one new token (decode), blue: a prompt"
    ax.set_title(words, fontsize=9.5, loc="left")
    return ax.figure
