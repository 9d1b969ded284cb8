"""LeanAttention, Figure 13: the energy of a decode against FlashDecoding's."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure, _lean

FIGURE = Figure(
    id="lean-13",
    source="LeanAttention, Figure 13",
    title="Energy of a decode over that of FlashDecoding's split: 56 heads, one request",
    chapter="10",
    method="NVML's counter over 5 s of calls; head dimension 64, fp16. Each tile against its split by rule 2.5.6.",
    state="recorded",
    data=("lean-energy",),
)
WAYS = {"paper's tile, stream-K": ("paper_lean", "paper_rule_256"), "ours, stream-K": ("lean", "rule_256"),
        "ours, today's rule": ("rule_now", "rule_256"), "FlashAttention-3": ("fa3", "rule_256")}  # fmt: skip


def table():
    """One row a context and way: millijoules, watts, and energy over that of the split; net is without idle power."""
    import pandas as pd

    df = read("lean-energy").set_index(["context", "way"])
    net = df.millijoules - df.idle_watts * df.ms
    rows = []
    for context in df.index.unique("context"):
        for name, (way, base) in WAYS.items():
            one, other = (context, way), (context, base)
            ratios = df.millijoules[one] / df.millijoules[other], net[one] / net[other]
            rows.append((context, name, df.millijoules[one], df.watts[one], df.sm_clock_mhz[one], *ratios))
    columns = ["context", "way", "millijoules", "watts", "sm_clock_mhz", "ratio", "net_ratio"]
    return pd.DataFrame(rows, columns=columns)


def gap_growth() -> float:
    """FlashDecoding's energy over stream-K's with the paper's tile, at 512K over the same at 128K."""
    df = table()
    ratio = df[df.way == "paper's tile, stream-K"].set_index("context").ratio
    return float(ratio[128 << 10] / ratio[512 << 10])


def draw(df):
    from pod.show import style

    ax = style.axes(8.5, 3.4)
    contexts, colours = sorted(df.context.unique()), (style.DECODE, "#54a24b", style.INK, "#b279a2")
    for i, (way, colour) in enumerate(zip(WAYS, colours, strict=True)):
        part = df[df.way == way].set_index("context")
        x = [c + (i - 1.5) * 0.2 for c in range(len(contexts))]
        ax.bar(x, part.ratio[contexts], 0.18, color=colour, label=way)
        ax.plot(x, part.net_ratio[contexts], "_", color="#e45756", markersize=13, markeredgewidth=1.5,
                label="idle power subtracted" if i == len(WAYS) - 1 else None)  # fmt: skip
        for at, context in zip(x, contexts, strict=True):
            words = f"{part.ratio[context]:.2f}\n{part.watts[context]:.0f} W"
            top = max(1, part.ratio[context], part.net_ratio[context])
            ax.text(at, top + 0.05, words, ha="center", fontsize=8)
    ax.axhline(1, color=style.INK, linewidth=0.8, zorder=0)
    ax.set_xticks(range(len(contexts)), [_lean.in_k(n) for n in contexts])
    ax.set(xlabel="context", ylabel="energy over FlashDecoding's", ylim=(0, 3.2))
    style.legend(ax, loc="upper center", ncols=5, bbox_to_anchor=(0.5, 1.18), columnspacing=1.2)
    return ax.figure
