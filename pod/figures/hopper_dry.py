"""When one side runs dry: does the other go on at its full speed, and what could its idle warps still bring?"""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure

FIGURE = Figure(
    id="hopper-dry",
    source="This repository",
    title="When one side of the fused kernel runs dry, the other goes on at the speed that it has alone",
    chapter="16",
    method="32/8 heads, bf16, context 8K, decodes of 4K; medians, cold L2. Who works when: time stamps of each SM.",
    state="recorded",
    data=("hopper-dry",),
)
SIDES = ("prefill", "decode")
WORK = {"prefill": "flops", "decode": "kv_bytes"}
PANELS = {  # what grows: the column, in words
    "decode": ("decodes", "decodes of 4K beside a chunk of 2K"),
    "prefill": ("chunk", "tokens of the chunk, beside 96 decodes"),
}


def table():
    """One row a batch: times in ms; the mean share of the time in which an SM works on both sides, on one, on none."""
    import numpy as np

    df = read("hopper-dry")
    end = df[["prefill_last_us", "decode_last_us"]].max(axis=1)
    first, last = (f(df.prefill_mean_us, df.decode_mean_us) for f in (np.minimum, np.maximum))
    shares = {"both": first / end, "one": (last - first) / end, "none": df.idle_us / end}
    return df.assign(**shares, left=np.where(df.decode_mean_us > df.prefill_mean_us, "decode", "prefill"))


def tail(df, side: str):
    """The batches where every SM is through with the other side before the first one is through with this one."""
    other = SIDES[side == "prefill"]
    return df[(df.grows == side) & (df[f"{side}_first_us"] > df[f"{other}_last_us"])]


def rates(side: str) -> tuple[float, float]:
    """Work a second of `side`, TFLOP/s or TB/s: alone, and in the fused kernel after the other side has ended."""
    import numpy as np

    part = tail(table(), side)
    work = part[WORK[side]] / 1e9  # TFLOP or TB a millisecond
    return tuple(1 / np.polyfit(work, part[name], 1)[0] for name in (side, "ours"))


def tail_over_alone(side: str) -> float:
    alone, fused = rates(side)
    return float(fused / alone)


def decode_tail() -> float:
    return tail_over_alone("decode")


def prefill_tail() -> float:
    return tail_over_alone("prefill")


def idle_most() -> float:
    """The largest share of the time, %, that equal ends on all SMs could win."""
    return 100 * float(table().none.max())


def draw(df):
    from matplotlib import pyplot as plt

    from pod.show import style

    figure, axes = plt.subplots(2, 2, figsize=(9.5, 5.4), dpi=style.DPI, layout="constrained", sharex="col",
                                height_ratios=(3, 2))  # fmt: skip
    for (upper, lower), (side, (x, words)) in zip(axes.T, PANELS.items(), strict=True):
        part = df[df.grows == side].sort_values(x)
        _times(upper, part, x)
        _shares(lower, part, x)
        lower.set(xlabel=words, xlim=(part[x].min(), part[x].max()))
        if x == "chunk":
            lower.set_xticks(range(1024, 8193, 1024), [f"{i}K" for i in range(1, 9)])
    axes[0, 0].set_ylabel("ms")
    axes[1, 0].set_ylabel("% of the time,\nmean of the SMs")
    style.legend(axes[0, 0], loc="upper left")
    handles, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _times(ax, df, x: str) -> None:
    from pod.show import style

    ax.plot(df[x], df.prefill + df.decode, ":", color=style.INK, label="one after the other")
    for side in SIDES:
        ax.plot(df[x], df[side], "--", color=style.colour(side), label=f"{side} alone")
    ax.plot(df[x], df.ours, "o-", color=style.colour("both"), markersize=4, label="fused")
    ax.set_ylim(0, None)
    style.tidy(ax)


def _shares(ax, df, x: str) -> None:
    """Stacked: both sides at work, then the one that is left, then none."""
    from pod.show import style

    only = {side: df.one.where(df.left == side, 0) for side in SIDES}
    layers = [("both sides at work", df.both, style.colour("both")), ("none", df.none, style.INK)]
    layers[1:1] = [(f"only {side}", only[side], style.colour(side)) for side in SIDES]
    lower = 0 * df.both
    for name, share, tone in layers:
        ax.fill_between(df[x], 100 * lower, 100 * (lower + share), color=tone, linewidth=0, label=name)
        lower = lower + share
    ax.set_ylim(0, 100)
    style.tidy(ax)
