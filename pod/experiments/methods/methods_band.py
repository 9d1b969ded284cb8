"""The band of chapter 00, filled with the five methods: every batch between its longer part and the sum."""

from matplotlib import pyplot as plt

from pod.data import a_card
from pod.experiments.hopper import hopper_band
from pod.experiments.methods.shared import METHODS, TONES
from pod.experiments.pod import pod_11
from pod.lab.figure import Figure
from pod.lab.show import band, style

FIGURE = Figure(
    title=f"Every batch of the sweep between its longer part and the sum, method by method, on {a_card()}",
    chapter="09",
    method="Parts alone: our own prefill and decode. Line: median of the batches of about the same ratio.",
    data=("methods-sweep",),
)
RATIOS = (1 / 16, 8)
SHOWN = ("streams", "cta", "warp", "pod")


def table():
    """One row a batch and method: prefill over decode, time over the longer part, and the place in the band."""
    return hopper_band.places(pod_11.table(), {METHODS[way]: way for way in SHOWN})


def draw(df):
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(9.5, 3.3), dpi=100, layout="constrained", sharey=True)
    for ax, way in zip(axes, SHOWN, strict=True):
        part = df[df.method == METHODS[way]]
        band({}, ratios=RATIOS, words=False, ax=ax)
        ax.plot(part.ratio, part.time, ".", color=TONES[way], alpha=0.4, markersize=3.5, zorder=2)
        line = hopper_band.middle(part, RATIOS)
        ax.plot(line.ratio, line["median"], color=style.INK, linewidth=2.5, zorder=3)
        ax.set(ylim=(0.9, max(2.12, df.time.quantile(0.995))), xlabel="prefill / decode, each alone", ylabel="")
        ax.set_title(METHODS[way], fontsize=10)
    axes[0].set_ylabel("time / the longer part alone")
    return figure
