"""Where in the program warps stand: the loads that stall."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure

FIGURE = Figure(
    id="plus34-03",
    source="+34 % post, Figure 3",
    title="The loads that stall",
    chapter="15",
    method="ncu's samples of where warps are, by instruction; the 40 most frequent. 144 chats, bf16.",
    state="recorded",
    data=("single-query-stalls",),
)
PARTS = {"scores": "#f58518", "softmax": "#9aa7b4", "values": "#4c78a8", "last sums": "#b279a2"}
LAST_BARRIERS = (0, 4, 5)  # barriers before the end of scores, softmax and values, without that of a shared query


def table():
    """One row an instruction: its place in the program, the share of samples there, and the part it is of."""
    from pod.figures import _plus34

    df = read("single-query-stalls")
    barriers = df.barriers - (df.kernel == "shared")
    part = [list(PARTS)[sum(b > last for last in LAST_BARRIERS)] for b in barriers]
    return df.assign(part=part, label=df.kernel.map(_plus34.KERNELS))


def draw(df):
    from matplotlib import pyplot as plt

    from pod.show import style

    kernels = list(dict.fromkeys(df.kernel))
    size = 9.5, 2.0 * len(kernels) + 0.4
    figure, axes = plt.subplots(len(kernels), 1, figsize=size, dpi=style.DPI, layout="constrained", sharey=True,
                                squeeze=False)  # fmt: skip
    for ax, kernel in zip(axes.flat, kernels, strict=True):
        style.tidy(ax)
        mine = df[df.kernel == kernel]
        for name, tone in PARTS.items():
            rows = mine[mine.part == name]
            share = f"{name}: {rows.share.sum():.0f} %"
            ax.bar(rows.place, rows.share, 2.5, color=tone, label=share)
        for row in mine.nlargest(3, "share").itertuples():
            ax.annotate(_opcode(row.sass), (row.place, row.share), (3, 2), textcoords="offset points", fontsize=8)
        ax.set(xlim=(0, mine.instructions.max()), ylabel="% of samples")
        ax.set_title(mine.label.iloc[0], fontsize=10, loc="left")
        style.legend(ax, loc="upper right")
    axes[-1, 0].set_xlabel("place in the program, instructions")
    return figure


def _opcode(sass: str) -> str:
    """The instruction's name, without the predicate before it."""
    return next(word for word in sass.split() if not word.startswith("@"))
