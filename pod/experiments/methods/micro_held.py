"""What the 132 SMs of an H200 hold while the two loops of Figure 7 run, method by method.

Measured: SMs that hold compute, memory, both or nothing, at 50 moments of each run of Figure 7's loops.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from pod.data import a_card, read
from pod.experiments.pod import pod_07
from pod.kernels import fusion as micro
from pod.kernels.fusion import NAMES
from pod.kernels.trace import held
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title=f"Which SMs hold compute, memory, or both, while two loops run on {a_card()}",
    says="Three of eight ways keep compute and memory on nearly all SMs",
    chapter="06",
    method="Figure 7's loops at equal halves. %smid and %globaltimer of every CTA, one run, at 50 moments.",
    data=("micro-fusion-trace",),
)
RECORDING = "micro-fusion-trace"
KEYS, WHOLE = ("method", "moment"), ("method",)
UNITS = pod_07.UNITS
REPEATS = 1
TIMER, L2 = "%globaltimer at the start and the end of every CTA", "warm"
MOMENTS = 50
HELD = ("nothing", "compute", "memory", "both")


def cases() -> list[dict]:
    return [{"method": method, "moment": i} for method in micro.METHODS for i in range(MOMENTS)]


def measure(case: dict) -> dict:
    times, counts = _held(case["method"])
    i = int(case["moment"])
    return {"us": round(float(times[i]), 3), **dict(zip(HELD, map(int, counts[:, i]), strict=True))}


@lru_cache
def _held(method: str):
    times = pod_07.unrolled(pod_07.multiplications(pod_07.FIGURE7))
    work = replace(pod_07.work(pod_07.FIGURE7, method), multiplications=times)
    arrays = pod_07.data(work.compute, work.memory)
    for _ in range(3):  # the last of three: code and lists are warm
        trace = micro.spans(work, method, arrays)
    times = (np.arange(MOMENTS) + 0.5) * trace["end"].max() / MOMENTS
    return times, held(trace, times, micro.ALONE)


SHOWN = ("compute", "both", "memory", "nothing")


def table():
    """One row a method and moment: microseconds since the start, and the SMs that hold each kind of CTA."""
    return read("micro-fusion-trace")


def draw(df):
    """One panel a method on one time axis: SMs that hold compute (blue), both (green), memory (orange) or nothing."""
    tones = {"compute": style.PREFILL, "both": style.KINDS["hybrid"], "memory": style.DECODE, "nothing": style.IDLE}
    panels = style.axes(9.5, 4.6, columns=4, rows=2, sharex=True, sharey=True)
    for ax, method in zip(panels.flat, NAMES, strict=True):
        part = df[df.method == method]
        step = part.us.iloc[1] - part.us.iloc[0]
        edges = [*(part.us - step / 2), part.us.iloc[-1] + step / 2]
        bottom = 0 * part.us
        for what in SHOWN:
            ax.stairs([*(bottom + part[what])], edges, baseline=[*bottom], fill=True, color=tones[what], label=what)
            bottom = bottom + part[what]
        share = 100 * part.both.sum() / part[list(SHOWN)].to_numpy().sum()
        ax.set_title(f"{NAMES[method]}\n{share:.0f} % both", fontsize=9)
        ax.set(xlim=(0, 1.02 * df.us.max()), ylim=(0, part[list(SHOWN)].iloc[0].sum()))
    for ax in panels[:, 0]:
        ax.set_ylabel("SMs")
    for ax in panels[1]:
        ax.set_xlabel("time, µs")
    return style.legend_outside(panels[0, 0], "lower", 4)
