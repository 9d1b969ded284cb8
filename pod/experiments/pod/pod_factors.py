"""POD-Attention, Tables 4 and 5: how far off we are, and how much of it one factor on every iteration would explain."""

from functools import cache

import numpy as np
import pandas as pd

from pod.experiments.pod import online, pod_t4, pod_t5
from pod.experiments.pod.shared import of
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.scenarios import SYSTEMS

FIGURE = Figure(
    id="pod-factors",
    title="Distance to the paper's latencies, were every iteration so many times as long",
    chapter="15",
    method="analytical A100, no number of the paper in the costs; root mean square of log(ours / paper) over six "
    "latencies and two loads",
    data=("online",),
)
METRICS, WIDE = pod_t5.METRICS[:6], 0.25  # the latencies; a cell is off where the larger is that much more
FEW = (online.PACES["faster"], 1.0, online.PACES["slower"])
PANELS = {
    "Table 5, the artifact's requests": (pod_t5, pod_t5.LISTED, online.FACTORS),
    "Table 5, fitted lengths": (pod_t5, pod_t5.WORKLOAD, FEW),
    "Table 4, a stand-in": (pod_t4, pod_t4.WORKLOAD, FEW),
}


@cache
def logs(panel: str, system: str, factor: float) -> np.ndarray:
    """log(ours / paper) of the twelve latencies."""
    page, workload, _ = PANELS[panel]
    key = "t4" if page is pod_t4 else page.TABLE
    return np.array([np.log(of(workload, float(load), page.CHUNK, system, slowdown=factor)[metric]
                            / paper.value(f"pod.{key}.{load}.{pod_t5.SYSTEMS[system]}.{metric}"))
                     for load in page.LOADS for metric in METRICS])  # fmt: skip


def table():
    """One row a workload, system and factor: the distance, and how many of twelve latencies are off by a quarter."""
    rows = [(panel, system, factor, float(np.sqrt(np.mean(off**2))), int((np.exp(abs(off)) > 1 + WIDE).sum()))
            for panel in PANELS for system in SYSTEMS for factor in PANELS[panel][2]
            for off in [logs(panel, system, factor)]]  # fmt: skip
    return pd.DataFrame(rows, columns=["requests", "system", "factor", "rms_log", "cells_off"])


def draw(df):
    axes = style.axes(9.5, 3.2, len(PANELS))
    tones = (style.colour("linear"), style.WORKERS[1], style.WORKERS[0])
    for ax, (panel, mine) in zip(axes, df.groupby("requests", sort=False), strict=True):
        for (system, line), colour in zip(mine.groupby("system", sort=False), tones, strict=True):
            ax.plot(line.factor, line.rms_log, "o-", markersize=4, color=colour, label=system)
        ax.set(xlabel="factor on every iteration", ylim=(0, 1.6))
        ax.set_title(panel, fontsize=10)
    axes[0].set_ylabel("rms of log(ours / paper)")
    style.legend(axes[0], loc="upper right")
    return axes[0].figure


def best():
    """The distance as it is, and with the factor that suits a system best."""
    df = table()
    plain = df[df.factor == 1].set_index(["requests", "system"])
    least = df.loc[df.groupby(["requests", "system"], sort=False).rms_log.idxmin()].set_index(["requests", "system"])
    return plain[["rms_log", "cells_off"]].join(least, rsuffix="_with_it")
