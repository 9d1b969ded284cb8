"""What pod/gpusim.py is fitted to: bare reads, and prefill and decode alone, over the number of CTAs."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure

FIGURE = Figure(
    id="gpu-calibration",
    source="This repository",
    title="The microbenchmarks behind the model: reads, prefill alone and decode alone, from one CTA on",
    chapter="09",
    method="Dots: equal CTAs, cold L2, medians. Lines: pod/gpusim.py, which is fitted to a few of the dots.",
    state="recorded",
    data=("gpusim-calibrate", "gpusim"),
    fitted=True,
)
KB = 1024


def table():
    """One row a probe: milliseconds measured, and by the model."""

    from pod.figures._gpusim import Case, milliseconds
    from pod.measure.suites.gpusim_calibrate import even_batch

    df = read("gpusim-calibrate")
    df = df[df.probe.isin(["read", "prefill", "decode"]) & (df["size"] > 0)].copy()
    df["shape"] = df["shape"].astype(int)
    whole = (("prefill_splits", "none"), ("decode_splits", 1))
    kernel = df[df.probe != "read"]
    cases = [
        Case(even_batch(r.probe, r.shape, r.ctas, r.keys), "h200", choice=(("ctas_per_sm", r.shape), *whole))
        for r in kernel.rename(columns={"size": "keys"}).itertuples()
    ]
    df.loc[kernel.index, "model"] = milliseconds(cases)
    reads = df[df.probe == "read"]
    df.loc[reads.index, "model"] = [_read(r.shape, r.ctas, r.bytes) for r in reads.itertuples()]
    return df[["probe", "shape", "ctas", "size", "flops", "bytes", "ms", "model"]].reset_index(drop=True)


def _read(ahead: int, ctas: int, nbytes: int) -> float:
    """Little's law: what is under way arrives every time memory answers, and all together no faster than DRAM."""
    from pod import gpusim
    from pod.hardware import H200

    c = gpusim.calibration()
    return 1e3 * nbytes / min(ctas * ahead * 4 * KB / c.miss, c.chip(H200).dram)


def parameters():
    """All that is fitted: value, meaning, and the probe that it is read off."""
    import pandas as pd

    from pod import gpusim

    c, us = gpusim.calibration(), 1e6
    rows = {
        "dram": (f"{c.dram:.0%}", "of the data sheet's bytes/s, when enough is under way", "read"),
        "l2": (f"{c.l2:,.0f} B", "that L2 delivers in a clock cycle", "read again"),
        "miss": (f"{c.miss * us:.2f} µs", "from asking DRAM to having, nobody else asking", "read, 1 CTA"),
        "hit": (f"{c.hit * us:.2f} µs", "the same from L2", "read again, 1 CTA"),
        "mma": (f"{c.mma:.0%}", "of Hopper's tensor rate is what mma.sync reaches; of Ampere's, all", "multiply"),
        "launch": (f"{c.launch['cta'] * us:.1f} µs", "before the first CTA starts, of one kernel", "empty"),
        "start": (f"{c.start * us:.1f} µs", "of a CTA before its first key and after its last", "empty"),
        "merge": (", ".join(f"{x * us:.1f}" for x in c.merge) + " µs", "to write or read a part", "split"),
    }
    for name, e in c.efficiency.items():
        whose = "FlashAttention-2" if name == "flash2" else f"{name.replace(' ', ', ')} CTAs an SM"
        meaning = f"of an SM's mma rate, SM full and one worker: {whose}"
        rows[name] = (f"{e.full:.0%}, {e.alone:.0%}", meaning, "longest runs")
    return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "what it means", "probe"])


def draw(df):
    from pod.show import style

    axes = style.axes(11, 3.6, columns=3)
    reads = df[df.probe == "read"].assign(under_way=lambda d: d.ctas * d["shape"] * 4 / 132).sort_values("under_way")
    _panel(axes[0], reads, "under_way", "bytes", 1e6, style.WORKERS[5], "bare reads")
    axes[0].set(xlabel="KB under way on each SM (mean)", ylabel="GB/s", title="bare reads: the wait, then DRAM")
    for ax, probe, column, scale, unit in (
        (axes[1], "prefill", "flops", 1e9, "TFLOP/s"),
        (axes[2], "decode", "bytes", 1e6, "GB/s"),
    ):
        longest = df[(df.probe == probe) & (df["size"] > 4000)]
        for (shape, mine), colour in zip(longest.groupby("shape"), (style.colour(probe), style.INK), strict=True):
            _panel(ax, mine.sort_values("ctas"), "ctas", column, scale, colour, f"{shape} CTAs an SM")
        ax.set(xlabel="CTAs", ylabel=unit, title=f"{probe} alone")
        style.legend(ax, loc="lower right")
    for ax in axes:
        ax.set(xscale="log", yscale="log")
    return axes[0].figure


def _panel(ax, df, x: str, column: str, scale: float, colour: str, label: str) -> None:
    ax.plot(df[x], df[column] / df.ms / scale, "o", color=colour, markersize=5, label=label)
    ax.plot(df[x], df[column] / df.model / scale, "-", color=colour, linewidth=1.2)
