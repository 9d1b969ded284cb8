"""POD-Attention, Figure 5: what a programmer launches, and where it runs."""

import pandas as pd
from matplotlib.patches import Rectangle

from pod.hardware import A100, H200
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="The GPU execution model: CTAs, warps, SMs",
    chapter="05",
    method="Counts from the data sheets and the CUDA programming guide.",
)


def table():
    """One row a level, from large to small: what is launched, where it runs, how many, and what it shares."""
    warp = int(paper.value("pod.s2.warp"))
    gpus = (A100, H200)

    def count(field, unit=1, word=""):
        return [f"{getattr(g, field) // unit:,}{word}" for g in gpus]

    rows = [
        ("kernel", "GPU", "many CTAs, none waits for another", "L2 cache and DRAM", *count("sms", word=" SMs")),
        ("CTA", "one SM, to its end", "warps that can wait for each other", "shared memory, registers of the SM",
         *count("smem_per_sm", 1024, " KiB")),
        ("warp", "a scheduler of the SM", f"{warp} threads, one instruction at a time",
         "the tensor core of that scheduler", *count("threads_per_sm", warp, " warps per SM")),
        ("thread", "a lane of the warp", "works on numbers of its own", "nothing: its registers are its own",
         *count("registers_per_sm", word=" registers per SM")),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["launched", "runs_on", "is_", "shares", *(g.key for g in gpus)])


def draw(df):
    """Boxes in boxes for the first SMs of a GPU, and the table's words beside their level."""
    ax = style.axes(9.5, 4.3)
    sms, dx = 3, 2.2
    _box(ax, 0, 0, sms * dx + 1.5, 5.4, "white", "GPU")
    for i in range(sms):
        x = 0.3 + i * dx
        _box(ax, x, 1.5, 2.0, 3.3, style.IDLE, f"SM {i}")
        for j, kind in enumerate((style.PREFILL, style.DECODE)):
            _cta(ax, x + 0.12 + 0.92 * j, 1.65, kind)
    ax.text(0.3 + sms * dx + 0.4, 3.1, "…", fontsize=16, ha="center")
    _box(ax, 0.3, 0.85, sms * dx + 0.9, 0.5, style.FRAME, "")
    _box(ax, 0.3, 0.2, sms * dx + 0.9, 0.5, style.FRAME, "")
    for y, words in ((1.1, "L2 cache"), (0.45, "DRAM")):
        ax.text(0.3 + (sms * dx + 0.9) / 2, y, words, ha="center", va="center", fontsize=9)
    for row, y in zip(df.itertuples(), (5.0, 3.7, 2.4, 1.1), strict=True):
        words = f"{row.is_}\nshare {row.shares}" if row.launched != "thread" else f"{row.is_}\nshares {row.shares}"
        ax.text(8.6, y, f"{row.launched}, on {row.runs_on}", fontsize=9.5, fontweight="bold", va="top")
        ax.text(8.6, y - 0.32, f"{words}\n{_counts(row)}", fontsize=8.5, va="top")
    ax.set(xlim=(-0.1, 13.2), ylim=(-0.1, 5.6))
    ax.axis("off")
    return ax.figure


def _counts(row) -> str:
    each = f"A100, H200: {row.a100}" if row.a100 == row.h200 else f"A100: {row.a100}, H200: {row.h200}"
    return f"{each} of shared memory" if row.launched == "CTA" else each


def _box(ax, x, y, width, height, colour, name) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=style.INK, linewidth=1))
    ax.text(x + 0.1, y + height - 0.12, name, fontsize=9, va="top", color=style.INK)


def _cta(ax, x, y, colour) -> None:
    """A CTA of four warps."""
    ax.add_patch(Rectangle((x, y), 0.84, 2.6, facecolor=colour, linewidth=0))
    ax.text(x + 0.42, y + 2.4, "CTA", ha="center", va="center", fontsize=8.5, color=style.letters_on(colour))
    for warp in range(4):
        corner = x + 0.08, y + 0.1 + 0.53 * warp
        ax.add_patch(Rectangle(corner, 0.68, 0.42, facecolor="white", alpha=0.85, linewidth=0))
        ax.text(x + 0.42, y + 0.31 + 0.53 * warp, f"warp {3 - warp}", ha="center", va="center", fontsize=8.5)
