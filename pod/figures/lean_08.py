"""LeanAttention, Figure 8, on an H200 (as many SMs as the paper's H100): stream-K over context, heads and batch."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure, _lean

FIGURE = Figure(
    id="lean-08",
    source="LeanAttention, Figure 8",
    title="Stream-K over fixed splits on 132 SMs: by context, heads and batch",
    chapter="10",
    method="Head dimension 64, fp16. Full lines: the paper's tile, rebuilt, cut both ways. Dashed: our decode kernel.",
    state="recorded",
    data=("lean-sweep",),
)
PANELS = {"8a": ("context", "context, 48 heads, batch 6"), "8b": ("q_heads", "heads, batch 6, 64K"),
          "8c": ("batch", "batch, 48 heads, 64K")}  # fmt: skip
COLUMNS = (*_lean.PAPER, *_lean.OURS)


def table():
    """One row a batch: milliseconds of both decodes and the speed-ups."""
    df = _lean.speedups(read("lean-sweep"))
    df = df[df.panel.isin(PANELS)]
    keys = ["panel", "q_heads", "batch", "context", "lean", "paper_lean", "paper_host", "best_split_parts"]
    return df[[*keys, *COLUMNS]].reset_index(drop=True)


def _multi_head():
    """All batches of one length whose query heads have their own keys, at head dimension 64: figures 7 and 8."""
    df = _lean.speedups(read("lean-sweep"))
    return df[(df.head_dim == 64) & (df.ratio == 1)]


def batches() -> int:
    return len(_multi_head())


def swept() -> int:
    return len(read("lean-sweep"))


def mean_gain() -> float:
    return float(_multi_head()["over the rule of 2.5.6"].mean())


def mean_gain_now() -> float:
    return float(_multi_head()["over today's rule"].mean())


def mean_gain_best() -> float:
    return float(_multi_head()["over the best fixed split"].mean())


def mean_gain_fa3() -> float:
    return float(_multi_head()["over FlashAttention-3"].mean())


def largest_gain_now() -> float:
    return float(_multi_head()["over today's rule"].max())


def largest_gain_best() -> float:
    return float(_multi_head()["over the best fixed split"].max())


def largest_gain_fa3() -> float:
    return float(_multi_head()["over FlashAttention-3"].max())


def gain_at_64k() -> float:
    df = table()
    return float(df[(df.panel == "8a") & (df.context == 64 << 10)]["over the rule of 2.5.6"].iloc[0])


def least_beyond_4k() -> float:
    df = table()
    return float(df[(df.panel == "8a") & (df.context > 4096)]["over the rule of 2.5.6"].min())


def never_slower() -> float:
    """Least speed-up of ours over the best fixed split of the same tile code, over the whole sweep."""
    df = _lean.speedups(read("lean-sweep"))
    return float(df["over the best fixed split"].min())


def plan_never_slower() -> float:
    """The same of what the plan chooses: equal ranges, or parts of every head where they end first."""
    df = read("lean-sweep")
    return float((df.best_split / df.auto).min())


def draw(df):
    from pod.show import style

    axes = style.axes(9.8, 3.7, columns=3, sharey=True)
    for ax, (panel, (x, words)) in zip(axes, PANELS.items(), strict=True):
        part = df[df.panel == panel].sort_values(x)
        _lean.lines(ax, part, x, COLUMNS)
        if x == "context":
            ax.set_xscale("log", base=2)
            ax.set_xticks(part[x], [_lean.in_k(n) for n in part[x]], fontsize=8)
        else:
            ax.set_xticks(part[x], part[x], fontsize=8)
        ax.set(xlabel=words, ylim=(0.8, 2.7))
    axes[0].set_ylabel("speed-up of stream-K")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return axes[0].figure
