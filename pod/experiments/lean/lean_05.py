"""LeanAttention, Figure 5: what a CTA does from the first tile of its range to the last, recorded."""

from pod.data import card, read
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="A few neighbouring CTAs: parts of heads, and who merges them",
    chapter="11",
    method=f"lean.cu with the paper's tile, 56 heads, one request, {card()}; time stamps of every part of one launch.",
    data=("lean-trace",),
)
RUNS = {"paper_host": "as printed: the host, which has a head's first tile, waits and merges",
        "paper_last": "who arrives last merges: nobody waits"}  # fmt: skip
FIRST, COUNT = 14, 10  # the CTAs shown


def table():
    """One row a part of a head: its CTA, when it was computed, and when it was stored or merged, microseconds."""
    df = read("lean-trace")
    df = df[df.run.isin(RUNS)].astype({name: int for name in ("worker", "sm", "head", "part", "parts", "merges")})
    columns = ["run", "worker", "sm", "head", "part", "parts", "begin_token", "end_token", "merges", "start_us",
               "computed_us", "end_us"]  # fmt: skip
    return df[columns].reset_index(drop=True)


def merging(df):
    """How many CTAs merge a head, and the microseconds that they take for it after their last tile (under hosts with
    the wait for others): mean and largest, by run."""
    mine = df[df.merges == 1]
    return (mine.end_us - mine.computed_us).groupby(mine.run).agg(["size", "mean", "max"])


def draw(df):
    axes = style.axes(9.5, 5.2, rows=2, sharex=True)
    for ax, (run, words) in zip(axes, RUNS.items(), strict=True):
        mine = df[(df.run == run) & df.worker.between(FIRST, FIRST + COUNT - 1)]
        for row in mine.itertuples():
            y, tone = row.worker, ("#f9b36b" if row.head % 2 else style.DECODE)
            ax.barh(y, row.computed_us - row.start_us, 0.8, left=row.start_us, color=tone, edgecolor="white")
            if row.computed_us - row.start_us > 12:
                ax.text((row.start_us + row.computed_us) / 2, y, f"head {row.head}, part {row.part + 1} of {row.parts}",
                        ha="center", va="center", fontsize=8.5, color=style.INK)  # fmt: skip
            kind = "merge" if row.merges else "load"
            ax.barh(y, row.end_us - row.computed_us, 0.8, left=row.computed_us, color=style.colour(kind), linewidth=0)
        ax.set(ylabel="CTA", ylim=(FIRST + COUNT - 0.4, FIRST - 0.6), yticks=range(FIRST, FIRST + COUNT, 3))
        count, mean, most = merging(df).loc[run]
        after = f"{count:.0f} of {df.worker.nunique()} CTAs, {mean:.1f} µs after their last tile, {most:.1f} at most"
        ax.set_title(f"{words} ({after})", fontsize=10, loc="left")
    axes[1].set_xlabel("time, µs")
    for label, colour in (("compute", style.DECODE), ("store a part", style.colour("load")),
                          ("merge (hosts: wait, then merge)", style.colour("merge"))):  # fmt: skip
        axes[0].barh(0, 0, color=colour, label=label)
    return style.legend_outside(axes[0], "upper", 3)
