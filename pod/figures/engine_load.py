"""How long the first token takes as the load grows: a faster kernel moves the whole curve to the right."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure

FIGURE = Figure(
    id="engine-load",
    source="This repository",
    title="Time to the first token against the load, on one H200",
    chapter="14",
    method="operators measured on one H200, calibrated by a real run; Llama-3-8B, arXiv workload, "
    "chunk 1,024, 1,024 requests a point",
    state="simulated",
    data=("engine-load",),
    fitted=True,
)
KEYS, READS = ("system", "qps"), ("operators", "engine-runs")
RATES, WORKLOAD, CHUNK, REQUESTS = (0.8, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9), "arxiv", 1024, 1024


def cases() -> list[dict]:
    return [{"system": system, "qps": rate} for system in ("Sarathi", "Sarathi+POD") for rate in RATES]


def measure(case: dict) -> dict[str, float]:
    from pod.serving.experiments import SYSTEMS, online_setup

    return served(online_setup(CHUNK, **SYSTEMS[case["system"]]), case["qps"])


def served(setup, rate: float) -> dict[str, float]:
    """The metrics of the load, as this setup serves it."""
    from pod.serving.simulate import Run
    from pod.serving.workload import Workload

    return Run(setup, Workload(WORKLOAD, REQUESTS, rate)).metrics()


def table():
    """A row a system and rate: median and P99 TTFT, P99 TBT, in seconds."""
    return read("engine-load")[["system", "qps", "ttft_p50", "ttft_p99", "tbt_p99"]]


def draw(df):
    from pod.show import style

    axes = style.axes(9.5, 3.3, 2)
    for system, colour in (("Sarathi", style.DECODE), ("Sarathi+POD", style.PREFILL)):
        mine = df[df.system == system]
        axes[0].plot(mine.qps, mine.ttft_p50, "o-", color=colour, label=system)
        axes[1].plot(mine.qps, 1e3 * mine.tbt_p99, "o-", color=colour, label=system)
    axes[0].set(yscale="log", ylabel="median TTFT, s", xlabel="requests per second")
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[1].set(ylabel="P99 TBT, ms", xlabel="requests per second", ylim=(0, None))
    for ax in axes:
        style.legend(ax, loc="upper left" if ax is axes[0] else "lower right")
    return axes[0].figure


def ratios(df):
    """Sarathi's median TTFT over that of Sarathi+POD, rate by rate."""
    wide = df.pivot(index="qps", columns="system", values="ttft_p50")
    return (wide["Sarathi"] / wide["Sarathi+POD"]).rename("TTFT ratio")


def shift(df, seconds: float = 2.0) -> float:
    """How many percent more load Sarathi+POD takes until the median user waits `seconds`."""
    import numpy as np

    rate = {s: np.interp(seconds, m.ttft_p50, m.qps) for s, m in df.groupby("system")}
    return float(100 * (rate["Sarathi+POD"] / rate["Sarathi"] - 1))
