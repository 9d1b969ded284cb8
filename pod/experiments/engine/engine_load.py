"""How long the first token takes as the load grows: a faster kernel moves the whole curve to the right."""

from dataclasses import replace

import numpy as np
import pandas as pd

from pod.data import read
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate import calibrate
from pod.simulate.run import Run
from pod.simulate.scenarios import POD, SYSTEMS, online_setup
from pod.simulate.windows import CALM as load
from pod.simulate.workload import Workload

FIGURE = Figure(
    title="Time to the first token against the load, on one H200",
    chapter="15",
    method="operators measured on one H200, calibrated by a real run; Llama-3-8B, arXiv workload, "
    "chunk 1,024, 1,024 requests a point",
    data=("engine-load",),
    fitted=True,
)
COMPUTED = "engine-load"
KEYS, READS = ("of", "system", "qps"), ("operators", "engine-runs")
RATES, WORKLOAD, CHUNK, REQUESTS = (0.8, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9), "arxiv", 1024, 1024

FULL, IN_TURN, CALM = "full server", "ours in turn", "calm server"
SECONDS = 1.5  # a wait of the median user that every curve reaches


def cases() -> list[dict]:
    """The two systems, calibrated by full servers; Sarathi with our kernel's halves; and both as on a calm server."""
    systems = [(FULL, "Sarathi"), (FULL, "Sarathi+POD"), (IN_TURN, "Sarathi"), (CALM, "Sarathi"), (CALM, "Sarathi+POD")]
    return [{"of": of, "system": system, "qps": rate} for of, system in systems for rate in RATES]


def measure(case: dict) -> dict[str, float]:
    return Run(setup(case["of"], case["system"]), Workload(WORKLOAD, REQUESTS, case["qps"])).metrics()


def setup(of: str, system: str):
    if of == IN_TURN:
        return online_setup(CHUNK, **SYSTEMS[system], kernels="hopper")
    made = online_setup(CHUNK, **SYSTEMS[system])
    return replace(made, calibration=(calm(system), made.calibration[1])) if of == CALM else made


def calm(system: str) -> float:
    """How many times longer the hybrid iterations of the calm server took than their operators."""
    return calibrate.hybrid_slowdown(load, *(("pod", "hopper") if system == POD else ("serial", "fa3")))


# ---------------------------------------------------------------- what it shows


def table(of: str = FULL):
    """A row a system and rate: median and P99 TTFT, P99 TBT, in seconds."""
    df = read("engine-load")
    return df[df.of == of][["system", "qps", "ttft_p50", "ttft_p99", "tbt_p99"]].reset_index(drop=True)


def beside_our_halves():
    """The same, with our kernel's halves in turn in the place of FlashAttention-3's two calls."""
    full = table()
    return pd.concat([table(IN_TURN), full[full.system == POD]], ignore_index=True)


def draw(df):
    axes = style.axes(9.5, 3.6, 2)
    lines = (
        (df[df.system == "Sarathi"], "Sarathi, two calls of FlashAttention-3", "-", style.WORKERS[1]),
        (table(IN_TURN), "Sarathi, our kernel's halves in turn", "--", style.colour("both")),
        (df[df.system == "Sarathi+POD"], "Sarathi+POD", "-", style.colour("both")),
    )
    for mine, words, line, tone in lines:
        how = {"color": tone, "marker": "o", "markerfacecolor": "white" if line == "--" else tone, "label": words}
        axes[0].plot(mine.qps, mine.ttft_p50, line, **how)
        axes[1].plot(mine.qps, 1e3 * mine.tbt_p99, line, **how)
    _more_load(axes[0], df)
    axes[0].set(yscale="log", ylabel="median TTFT, s", xlabel="requests per second")
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[1].set(ylabel="P99 TBT, ms", xlabel="requests per second", ylim=(0, None))
    axes[0].set_title("One curve, moved to the right", fontsize=10.5, loc="left")
    axes[1].set_title("The gap between words, shorter at every load", fontsize=10.5, loc="left")
    style.legend(axes[0], loc="upper left")
    return axes[0].figure


def _more_load(ax, df) -> None:
    """An arrow between the outer curves, as long as what the faster system takes more for the same wait."""
    start, end = (_load(df, system) for system in ("Sarathi", "Sarathi+POD"))
    ax.annotate("", (end, SECONDS), (start, SECONDS), arrowprops={"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0})
    words = f"{shift(df):.0f} % more load\nfor the same wait"
    ax.text(start - 0.02, 1.15 * SECONDS, words, fontsize=9, ha="right", va="bottom")


def ratios(df):
    """Sarathi's median TTFT over that of Sarathi+POD, rate by rate."""
    wide = df.pivot(index="qps", columns="system", values="ttft_p50")
    return (wide["Sarathi"] / wide["Sarathi+POD"]).rename("TTFT ratio")


def shift(df, seconds: float = SECONDS) -> float:
    """How many percent more load Sarathi+POD takes until the median user waits `seconds`."""
    return float(100 * (_load(df, "Sarathi+POD", seconds) / _load(df, "Sarathi", seconds) - 1))


def _load(df, system: str, seconds: float = SECONDS) -> float:
    """Requests a second at which the median user waits so long, on straight lines between the rates."""
    mine = df[df.system == system]
    least, most = mine.ttft_p50.min(), mine.ttft_p50.max()
    if not least <= seconds <= most:
        raise ValueError(f"seconds: got {seconds:g}, allowed for {system} are {least:.2g} to {most:.3g}")
    return float(np.interp(seconds, mine.ttft_p50, mine.qps))
