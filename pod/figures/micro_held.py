"""What the 132 SMs of an H200 hold while the two loops of Figure 7 run, method by method."""

from __future__ import annotations

from pod.data import a_card, read
from pod.figures import Figure
from pod.micro import NAMES

FIGURE = Figure(
    id="micro-held",
    source="This repository",
    title=f"Which SMs hold compute, memory, or both, while two loops run on {a_card()}",
    chapter="05",
    method="Figure 7's loops at equal halves. %smid and %globaltimer of every CTA, one run, at 50 moments.",
    state="recorded",
    data=("micro-fusion-trace",),
)
HELD = ("compute", "both", "memory", "nothing")


def table():
    """One row a method and moment: microseconds since the start, and the SMs that hold each kind of CTA."""
    return read("micro-fusion-trace")


def draw(df):
    """One panel a method on one time axis: SMs that hold compute (blue), both (green), memory (orange) or nothing."""
    from pod.show import style

    tones = {"compute": style.PREFILL, "both": style.KINDS["hybrid"], "memory": style.DECODE, "nothing": style.IDLE}
    panels = style.axes(9.5, 4.6, columns=4, rows=2, sharex=True, sharey=True)
    for ax, method in zip(panels.flat, NAMES, strict=True):
        part = df[df.method == method]
        step = part.us.iloc[1] - part.us.iloc[0]
        edges = [*(part.us - step / 2), part.us.iloc[-1] + step / 2]
        bottom = 0 * part.us
        for what in HELD:
            ax.stairs([*(bottom + part[what])], edges, baseline=[*bottom], fill=True, color=tones[what], label=what)
            bottom = bottom + part[what]
        share = 100 * part.both.sum() / part[list(HELD)].to_numpy().sum()
        ax.set_title(f"{NAMES[method]}: {share:.0f} % both", fontsize=9)
        ax.set(xlim=(0, 1.02 * df.us.max()), ylim=(0, part[list(HELD)].iloc[0].sum()))
    for ax in panels[:, 0]:
        ax.set_ylabel("SMs")
    for ax in panels[1]:
        ax.set_xlabel("time, µs")
    panels[0, 0].figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4,
                               frameon=False, fontsize=9)  # fmt: skip
    return panels[0, 0].figure
