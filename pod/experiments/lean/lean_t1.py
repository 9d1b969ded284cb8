"""LeanAttention, Table I: the three operations of attention in prefill and in decode, read off real arrays."""

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

from pod.hardware import A100
from pod.lab.figure import Figure

FIGURE = Figure(
    title="The same three operations with N query rows and with one: fusing them helps only prefill",
    says="Fusing the three operations helps only prefill",
    chapter="03",
    method="Shapes, FLOPs and fp16 bytes counted on numpy arrays: one head, 4096 tokens, each array moved once.",
)
N, HEAD_DIM, FP16 = 4096, 128, 2
FUSED = "all three, fused"


def table():
    """Shape (rows x inner x columns), FLOPs, and bytes in and out of each operation alone, then of all three fused."""
    rows = []
    for phase, queries in (("prefill", N), ("decode", 1)):
        q, k, v = (np.empty((n, HEAD_DIM), np.float16) for n in (queries, N, N))
        scores = np.empty((len(q), len(k)), np.float16)
        alone = [_product("query x key", q, k.T), _softmax(scores), _product("score x value", scores, v)]
        flops = sum(row["flops"] for row in alone)
        fused = {"operation": FUSED, "flops": flops, "bytes": q.nbytes + k.nbytes + v.nbytes + q.nbytes}
        rows += [{"phase": phase} | row for row in (*alone, fused)]
    return pd.DataFrame(rows).assign(flops_per_byte=lambda t: t.flops / t.bytes)


def _product(name: str, a, b) -> dict:
    (rows, inner), columns = a.shape, b.shape[1]
    return {"operation": name, "shape": f"{rows} x {inner} x {columns}", "flops": 2 * rows * inner * columns,
            "bytes": a.nbytes + b.nbytes + rows * columns * FP16}  # fmt: skip


def _softmax(scores) -> dict:
    """Five FLOPs an element: compare, subtract, exponentiate, add, divide."""
    rows, columns = scores.shape
    return {"operation": "softmax", "shape": f"{rows} x {columns}", "flops": 5 * scores.size,
            "bytes": 2 * scores.nbytes}  # fmt: skip


def draw(df):
    """FLOPs per byte of each operation against the A100's ridge."""
    figure, ax = plt.subplots(figsize=(8.5, 3.6), dpi=110)
    ax.axvline(A100.ridge, color="#22303c", linestyle="--", linewidth=1)
    ax.text(A100.ridge * 1.08, -0.75, f"ridge of the A100: {A100.ridge:.0f}", fontsize=8.5, va="center")
    for y, row in enumerate(df.itertuples()):
        colour = {"prefill": "#4c78a8", "decode": "#f58518"}[row.phase]
        ax.barh(y, row.flops_per_byte, color=colour, height=0.64, alpha=1 if row.operation == FUSED else 0.55)
        bold = "bold" if row.operation == FUSED else "normal"
        value = f"{row.flops_per_byte:,.0f}" if row.flops_per_byte > 10 else f"{row.flops_per_byte:.2f}"
        ax.text(row.flops_per_byte * 1.12, y, value, va="center", fontsize=9, fontweight=bold, backgroundcolor="white")
    names = [f"{r.phase}: {r.operation}" + ("" if r.operation == FUSED else f"  {r.shape}") for r in df.itertuples()]
    ax.set_yticks(range(len(df)), names, fontsize=9)
    ax.set(xscale="log", xlim=(0.5, 6000), ylim=(len(df) - 0.4, -1.1), xlabel="FLOPs per byte moved")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    figure.tight_layout()
    return figure
