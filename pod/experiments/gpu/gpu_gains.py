"""Who gains more from POD: the same kernels and batches on an A100 and on an H200, by the model."""

import numpy as np
import pandas as pd

from pod.experiments.gpu import gpu_a100
from pod.experiments.gpu.gpu_a100 import gains, sample
from pod.experiments.gpu.gpu_model import gain_error
from pod.experiments.gpu.shared import Case, milliseconds
from pod.hardware import A100
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.schedule.binding import OPS
from pod.simulate.gpusim import trace

FIGURE = Figure(
    title="What POD gains over serial, the same kernels one after the other, by the model: A100 and H200",
    chapter="10",
    method="pod/simulate/gpusim.py on 60 batches of Figure 11 that pass its filter; our tiles on both GPUs.",
    state="simulated",  # the measured batches give the error of its bar
    data=("gpusim", "gpusim-sample", "methods-sweep"),
    fitted=True,
)
GPUS = {"a100": "A100", "h200": "H200"}


def table():
    """One row a batch and GPU: prefill over decode, each alone, and the gain in percent."""
    parts = []
    for gpu in GPUS:
        prefill, decode = (milliseconds(Case(getattr(b, side), gpu) for b in sample()) for side in OPS)
        ratio = [p / d for p, d in zip(prefill, decode, strict=True)]
        parts.append(pd.DataFrame({"gpu": gpu, "ratio": ratio, "gain": gains(gpu, "pod", "ours", "ours")}))
    return pd.concat(parts, ignore_index=True)


def draw(df):
    ax = style.axes(9, 4)
    ratios = np.geomspace(0.1, 10, 200)
    free = 100 * np.minimum(ratios, 1 / ratios)
    ax.plot(ratios, free, color=style.FRAME, linewidth=2, label="the shorter part for free")
    for (gpu, words), colour, mark in zip(GPUS.items(), (style.WORKERS[0], style.WORKERS[1]), "os", strict=True):
        mine = df[df.gpu == gpu]
        label = f"{words}: {mine.gain.mean():.0f} % on average"
        ax.plot(mine.ratio, mine.gain, mark, color=colour, markersize=5, label=label)
    error = gain_error()
    words = f"nine of ten gains, where checked, within {error:.0f} points"
    ax.errorbar(0.13, 45, yerr=error, fmt="none", ecolor="black", capsize=3, label=words)
    ax.set(xscale="log", xlabel="time of prefill / time of decode, each alone", ylabel="gain of POD, %", ylim=(0, 105))
    ax.set(xticks=[0.1, 0.25, 0.5, 1, 2, 4, 10], xticklabels=["0.1", "0.25", "0.5", "1", "2", "4", "10"])
    ax.text(0.76, 7.5, "nine of the A100's", fontsize=9, ha="center", va="top")  # cuts(0.6, 1) tells what they are
    style.legend(ax, loc="upper left")
    return ax.figure


def by_window(windows) -> pd.DataFrame:
    """Mean gains, %, of the batches whose ratio lies between two numbers, which may be chosen one way or another."""
    df = table()
    rows = {f"{low:.2f} to {high:.2f}": df[df.ratio.between(low, high)].groupby("gpu").gain.mean()
            for low, high in windows}  # fmt: skip
    return pd.DataFrame(rows).T.rename(columns=GPUS).rename_axis("ratio of the parts")


def recut() -> pd.DataFrame:
    """table() with gains, %, by how each prefill tile is cut. rule: our kernel's own. two parts: POD's, serial's as
    before. best: the fastest of the rule, two and four parts, for POD and for serial."""
    parts = []
    for gpu, mine in table().groupby("gpu"):
        serial, pod = (np.array(gpu_a100.recut(sample(), gpu, method)) for method in ("serial", "pod"))
        ways = {"rule": (serial[:, 0], pod[:, 0]), "two parts": (serial[:, 0], pod[:, 1])}
        ways["best"] = serial.min(axis=1), pod.min(axis=1)
        parts.append(mine.assign(**{way: 100 * (slow / fast - 1) for way, (slow, fast) in ways.items()}))
    return pd.concat(parts, ignore_index=True)


def by_cut(windows) -> pd.DataFrame:
    """Mean gains, %, of all batches and of those whose ratio lies between two numbers, by cut and GPU."""
    df, rows = recut(), {}
    for low, high in ((0, np.inf), *windows):
        mine = df[df.ratio.between(low, high)].groupby("gpu")[["rule", "two parts", "best"]].mean()
        words = f"{low:.2f} to {high:.2f}" if low else f"all {len(df) // len(GPUS)}"
        rows[words] = {(cut, GPUS[gpu]): mine.loc[gpu, cut] for cut in mine for gpu in GPUS}
    return pd.DataFrame(rows).T.rename_axis("ratio of the parts")


def cuts(low: float, high: float) -> pd.DataFrame:
    """The A100's batches whose ratio lies between two numbers: tiles of prefill (128 rows a head), the CTAs into which
    they are cut, and when the last CTA of each part ends, ms."""
    df, batches = table().query("gpu == 'a100'").reset_index(drop=True), sample()
    rows = {}
    for i in df.index[df.ratio.between(low, high)]:
        ran = trace(batches[i], A100, "pod")
        ends = {op: 1e3 * max(r.end for r in ran if r.op == op) for op in OPS}
        ctas = len({r.id for r in ran if r.op == OPS[0]})
        rows[i] = {"tiles": -(-batches[i].q_lens[0] // 128) * batches[i].num_q_heads, "ctas": ctas} | ends
    return df[["ratio", "gain"]].join(pd.DataFrame.from_dict(rows, orient="index"), how="right")


def means() -> dict[str, float]:
    """Mean gain in percent, by GPU."""
    return table().groupby("gpu").gain.mean().to_dict()
