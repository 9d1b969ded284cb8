"""LeanAttention, Figure 9: the heads shared by several GPUs, one process a GPU."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure, _lean

FIGURE = Figure(
    id="lean-09",
    source="LeanAttention, Figure 9",
    title="Heads shared by several GPUs: stream-K over FlashDecoding by context, heads and batch",
    chapter="10",
    method="As many heads a GPU as in the paper, head dimension 64, fp16; the time is that of the slowest GPU.",
    state="recorded",
    data=("lean-parallel",),
)
PANELS = {"9a": ("context", "context, 32 heads a GPU, batch 4"), "9b": ("heads", "heads of all GPUs, batch 4, 256K"),
          "9c": ("batch", "batch, 32 heads a GPU, 64K")}  # fmt: skip


def table():
    """One row a batch: the rebuilt tile's time under FlashDecoding's split over that under stream-K, and ours."""
    df = read("lean-parallel")
    keys = ["panel", "gpus", "heads", "batch", "context", "lean", "paper_lean"]
    gains = {"paper's tile over the rule of 2.5.6": df.paper_rule_256 / df.paper_lean}
    gains |= {"ours over the rule of 2.5.6": df.rule_256 / df.lean, "ours over today's rule": df.rule_now / df.lean}
    return df[keys].assign(**gains)


def least_gain() -> float:
    df = table()
    return float(df[df.panel == "9a"]["paper's tile over the rule of 2.5.6"].min())


def draw(df):
    from pod.show import style

    axes = style.axes(9.8, 3.5, columns=3, sharey=True)
    for ax, (panel, (x, words)) in zip(axes, PANELS.items(), strict=True):
        part = df[df.panel == panel].sort_values(x)
        for name, colour in zip(df.columns[-3:], (style.DECODE, "#54a24b", style.INK), strict=True):
            ax.plot(part[x], part[name], "o-", color=colour, markersize=4, label=name)
        ax.axhline(1, color=style.FRAME, zorder=0)
        if x == "context":
            ax.set_xscale("log", base=2)
            ax.set_xticks(part[x], [_lean.in_k(n) for n in part[x]], fontsize=8)
        ax.set(xlabel=words)
    axes[0].set_ylabel(f"speed-up on {df.gpus.iloc[0]} GPUs")
    figure = axes[0].figure
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure
