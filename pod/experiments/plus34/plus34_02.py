"""How often an SM's schedulers have nothing to issue, and why that says little about a kernel that waits for memory."""

import pandas as pd

from pod.data import read
from pod.experiments.plus34 import shared
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Cycles in which no warp issues",
    chapter="16",
    method="ncu, over one call on 144 chats of a 13B model (40 heads, mean 400 tokens), bf16.",
    data=("single-query-counters",),
)


def table():
    """By kernel, percent: cycles without an issue, warps that are resident, DRAM; and why an idle warp stands."""
    df = read("single-query-counters")
    df = df[df.batch == shared.CHATS].assign(no_issue=lambda d: 100 - d.issue)
    stalls = [column for column in df if column.startswith("stall_")]
    waits = 100 * df.stall_long_scoreboard / df[stalls].sum(axis=1)
    out = df[["kernel", "no_issue", "occupancy", "dram"]].assign(memory_stalls=waits)
    post = {"kernel": "the post", "no_issue": 100 * paper.value("plus34.f02.idle_cycles") / 6}
    post["dram"] = paper.value("plus34.f01.memory_util")
    return pd.concat([pd.DataFrame([post]), out], ignore_index=True)


def draw(df):
    axes = style.axes(9.5, 0.9 + 0.42 * len(df), columns=3, sharey=True)
    panels = (("no_issue", "cycles without an issue"), ("occupancy", "room for warps that is taken"),
              ("dram", "DRAM rate"))  # fmt: skip
    names = ["the post, A100: registers", *(shared.KERNELS[k] for k in df.kernel[1:])]
    for ax, (column, title) in zip(axes, panels, strict=True):
        for i, value in enumerate(df[column]):
            if value != value:
                ax.text(1.5, i, "not told", va="center", fontsize=9)
            else:
                ax.barh(i, value, 0.66, color=shared.COLOURS.get(df.kernel[i], style.FRAME))
                ax.text(value + 1.5, i, f"{value:.0f} %", va="center", fontsize=9)
        ax.set(xlim=(0, 118), title=title)
        ax.title.set_fontsize(10)
        ax.set_xticks([0, 50, 100], ["0", "50", "100 %"])
    axes[0].set_yticks(range(len(df)), names, fontsize=9)
    axes[0].set_ylim(len(df) - 0.5, -0.5)
    return axes[0].figure
