"""The kernel as it was: how busy it keeps arithmetic and memory."""

from __future__ import annotations

from pod.data import card, read
from pod.figures import Figure

FIGURE = Figure(
    id="plus34-01",
    source="+34 % post, Figure 1",
    title="Single-query attention kernel: compute and memory utilisation",
    chapter="15",
    method="ncu, percent of each peak over one call. Rebuilt kernel, query in registers, bf16, 40 heads, pages of 16.",
    state="recorded",
    data=("single-query-counters",),
)
PEAKS = {"compute": "SM (compute)", "dram": "DRAM"}
STATED = {"compute": "plus34.f01.compute_util", "dram": "plus34.f01.memory_util"}


def table():
    """Percent of the peak, by place and what is busy: the post's A100, and each batch on an H200."""
    from pod import paper

    df = read("single-query-counters")
    before = df[df.kernel == "registers"].set_index("batch")
    out = before[list(PEAKS)].rename(index=lambda batch: f"{card()}, {batch}")
    out.loc["the post, A100"] = [paper.value(STATED[name]) for name in PEAKS]
    return out.iloc[[-1, *range(len(before))]].rename_axis("where").reset_index()


def memory_before() -> float:
    """DRAM utilisation on the run's batch, %."""
    from pod.figures import _plus34

    return float(table().set_index("where").dram[f"{card()}, {_plus34.CHATS}"])


def draw(df):
    from pod.show import style

    ax = style.axes(8.0, 0.8 + 0.5 * len(df))
    for i, row in enumerate(df.itertuples()):
        for j, (name, tone) in enumerate((("compute", style.PREFILL), ("dram", style.DECODE))):
            value, y = getattr(row, name), i + 0.2 * (2 * j - 1)
            ax.barh(y, value, 0.36, color=tone, alpha=0.55 if i == 0 else 1, label=PEAKS[name] if i else "")
            ax.text(value + 1, y, f"{value:.0f} %", va="center", fontsize=9)
    ax.set_yticks(range(len(df)), df["where"], fontsize=9)
    ax.set(xlim=(0, 108), ylim=(len(df) - 0.5, -0.5), xlabel="% of its peak, mean over the kernel")
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    return ax.figure
