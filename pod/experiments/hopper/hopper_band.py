"""The band of chapter 00, filled with measurements: every batch of the sweep between its longer part and the sum."""

import numpy as np
import pandas as pd

from pod.data import a_card
from pod.experiments.hopper.hopper_sweep import table as sweep
from pod.lab.figure import Figure
from pod.lab.show import band, style

FIGURE = Figure(
    title=f"Every batch of the sweep between its longer part and the sum, on {a_card()}",
    says="Where both parts are equally long most is gained, and most is left",
    chapter="17",
    method="Parts alone: the faster FlashAttention-3 call. Line: median of the batches of about the same ratio. "
    "Batches of a ratio under 1/16 are not drawn.",
    data=("hopper-sweep",),
)
RATIOS = (1 / 16, 4)
METHODS = {"FlashAttention-3, one after the other": "fa3_serial", "this kernel": "ours"}


def table():
    """One row a batch and method: prefill over decode, time over the longer part, and the place in the band (0 is the
    sum, 1 the longer part)."""
    return places(sweep(), METHODS)


def places(df, methods: dict[str, str]):
    """The same for any sweep with both parts alone; `methods` {name: its column of times}."""
    parts = []
    for method, column in methods.items():
        place = (df.prefill + df.decode - df[column]) / df[["prefill", "decode"]].min(axis=1)
        columns = {"method": method, "ratio": df.ratio, "time": df[column] / df.larger, "place": place}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def middle(df, ratios: tuple[float, float] = RATIOS):
    """Median time over the longer part, in bins of equal width on a logarithmic scale."""
    edges = np.geomspace(*ratios, 13)
    bins = pd.cut(df.ratio, edges, labels=np.sqrt(edges[1:] * edges[:-1]))
    medians = df.groupby(bins, observed=True).time.agg(["median", "size"]).reset_index()
    return medians[medians["size"] >= 5].astype({"ratio": float})


def hump() -> float:
    """The largest of these medians of our kernel."""
    df = table()
    return float(middle(df[df.method == "this kernel"])["median"].max())


def draw(df):
    ax = band({}, ratios=RATIOS, words=False, ax=style.axes(9, 4.2))
    for (method, part), tone in zip(df.groupby("method", sort=False), ("#b4bec8", "#a3cf9d"), strict=True):
        ax.plot(part.ratio, part.time, ".", color=tone, markersize=3.5, zorder=2, label=method)
    line = middle(df[df.method == "this kernel"])
    ax.plot(line.ratio, line["median"], color=style.INK, linewidth=4, zorder=3)
    ax.plot(line.ratio, line["median"], color=style.colour("hybrid"), linewidth=2.5, zorder=3, label="its median")
    ax.set(ylim=(0.7, 2.12), ylabel="time / the longer part alone")
    ax.text(1.8, 1.6, "the sum", fontsize=9)
    ax.text(RATIOS[1] / 1.05, 0.985, "the longer part", ha="right", va="top", fontsize=9)
    style.legend(ax, loc="upper left", markerscale=2.5)
    return ax.figure
