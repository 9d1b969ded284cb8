"""Why CTAs by index are sometimes as good as POD: what they gain, by how many CTAs the prefill has."""

import pandas as pd

from pod.data import a_card, hardware
from pod.experiments.hopper.hopper_sweep import batch_of
from pod.experiments.methods.shared import METHODS, TONES, gain
from pod.experiments.pod import pod_11
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.schedule import decide

FIGURE = Figure(
    title=f"Co-location by accident and by design: gain over serial by the number of prefill CTAs, on {a_card()}",
    chapter="09",
    method="The filtered sweep. CTAs of prefill as the planner cuts it, splits included; two CTAs fit on an SM.",
    data=("methods-sweep",),
)
SHOWN = ("cta", "warp", "pod")
GPU = hardware()
CLASSES = {"at most one an SM": (0, GPU.sms), "at most two": (GPU.sms, 2 * GPU.sms), "more": (2 * GPU.sms, 10**9)}


def table():
    """One row a batch: how many CTAs its prefill has, its place among CLASSES, the gains of three methods and that of a
    perfect overlap (`larger`), %."""
    df = pod_11.filtered(pod_11.table())
    out = df[[*pod_11.BATCH, "ratio"]].assign(prefill_ctas=[prefill_ctas(row._asdict()) for row in df.itertuples()])
    edges = [low for low, _ in CLASSES.values()] + [10**9]
    gains = {way: gain(df.serial, df[way]) for way in (*SHOWN, "larger")}
    return out.assign(place=pd.cut(out.prefill_ctas, edges, labels=list(CLASSES)), **gains)


def prefill_ctas(case: dict) -> int:
    """CTAs of the batch's prefill beside decode, as pod.plan cuts it for this GPU."""
    return len(decide.hybrid(batch_of(case), GPU, GPU.sms, ctas_per_sm=2).prefill)


def draw(df):
    axes = style.axes(9.5, 3.5, columns=len(SHOWN), sharey=True)
    for ax, way in zip(axes, SHOWN, strict=True):
        ax.plot(df.prefill_ctas, df[way], ".", color=TONES[way], alpha=0.5)
        for (low, high), (_, part) in zip(CLASSES.values(), df.groupby("place", observed=True), strict=False):
            ends = max(low, df.prefill_ctas.min()), min(high, df.prefill_ctas.max())
            ax.hlines(part[way].mean(), *ends, color=style.INK, linewidth=2.5)
            ax.text((ends[0] * ends[1]) ** 0.5, 55, f"{part[way].mean():.0f} %", ha="center", fontweight="bold")
        for slots in (GPU.sms, 2 * GPU.sms):
            ax.axvline(slots, color=style.FRAME, linewidth=1, zorder=0)
        ax.axhline(0, color=style.INK, linewidth=0.8)
        ax.set(xscale="log", xlim=(40, 800), ylim=(-25, 62), xlabel="CTAs of prefill (lines: 132 and 264)")
        style.ticks(ax, (64, 128, 256, 512))
        ax.set_title(METHODS[way], fontsize=10)
    axes[0].set_ylabel("gain over our serial, %")
    return axes[0].figure


def means(df):
    """Mean gains by place, %, and of how many batches."""
    grouped = df.groupby("place", observed=True)
    names = METHODS | {"larger": "perfect overlap"}
    return grouped[[*SHOWN, "larger"]].mean().round(1).rename(columns=names).assign(batches=grouped.size())
