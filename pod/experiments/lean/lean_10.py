"""LeanAttention, Figure 10: ragged batches, from one long request among short ones to all equally long."""

from pod.data import read
from pod.experiments.lean import shared
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Ragged batches: speed-up of stream-K against average over longest context",
    chapter="11",
    method="32 heads of dimension 64, longest request 64K. The paper's tile, rebuilt; the Hopper kernel over its best "
    "fixed split.",
    data=("lean-sweep",),
)
COLUMNS = (*shared.PAPER, "over the best fixed split")


def table():
    """One row a batch: average over longest context, and the speed-ups."""
    df = shared.speedups(read("lean-sweep"))
    df = df[df.panel == "10"].assign(percent=lambda d: 100 * d.ratio)
    return df[["batch", "percent", "lean", "paper_lean", "best_split_parts", *COLUMNS]].reset_index(drop=True)


def draw(df):
    axes = style.axes(9.5, 3.4, columns=3)
    for ax, column in zip(axes, COLUMNS, strict=True):
        for (batch, part), colour in zip(df.groupby("batch"), style.WORKERS[:3], strict=False):
            ax.plot(part.percent, part[column], "o-", color=colour, markersize=4, label=f"batch {batch}")
        ax.axhline(1, color=style.FRAME, zorder=0)
        ax.set(xlabel="average over longest context, %", ylim=(0.9, None))
        whose = "paper's tile" if column in shared.PAPER else "Hopper kernel"
        ax.set_title(f"{whose} {column}", fontsize=10, loc="left")
    axes[0].set_ylabel("speed-up of equal ranges")
    top = max(ax.get_ylim()[1] for ax in axes)
    for ax in axes:
        ax.set_ylim(0.9, top)
    style.legend(axes[2], loc="upper right")
    return axes[0].figure


def batches() -> int:
    return len(table())


def trend() -> float:
    """Rank correlation of the speed-up over the rule of 2.5.6 and how ragged the batch is."""
    df = table()
    ranks = df[["over the rule of 2.5.6", "percent"]].rank()
    return -float(ranks.corr().iloc[0, 1])
