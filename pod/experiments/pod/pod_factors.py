"""POD-Attention, Tables 4 to 6: how far off we are, and how much of it one factor on every iteration would explain."""

from functools import cache

import numpy as np
import pandas as pd

from pod.experiments.pod import online, pod_t4, pod_t5, pod_t6
from pod.experiments.pod.shared import of
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.scenarios import POD, SYSTEMS, VLLM

FIGURE = Figure(
    title="Distance to the paper's latencies, were every iteration so many times as long",
    says="One factor, 1.12, takes Sarathi and POD near Table 5, but not vLLM",
    chapter="15",
    method="analytical A100, no number of the paper in the costs; root mean square of log(ours / paper) over six "
    "latencies and two loads (Table 6: four latencies, one load)",
    data=("online",),
)
METRICS, WIDE = pod_t5.METRICS[:6], 0.25  # the latencies; a cell is off where the larger is that much more
FEW = (online.PACES["faster"], 1.0, online.PACES["slower"])
TABLE6 = "Table 6, a stand-in"
PANELS = {
    "Table 5, the artifact's requests": (pod_t5, pod_t5.LISTED, online.FACTORS),
    "Table 5, fitted lengths": (pod_t5, pod_t5.WORKLOAD, FEW),
    "Table 4, a stand-in": (pod_t4, pod_t4.WORKLOAD, FEW),
    TABLE6: (pod_t6, pod_t6.WORKLOAD, FEW),
}
# of Table 6: the key in its cells, and what runs with which chunk, which is no matter to vLLM's scheduler
CHUNKS = {VLLM: ("vllm", VLLM, pod_t4.CHUNK)} | {f"{POD}, {c}": (str(c), POD, c) for c in pod_t6.CHUNKS}


def systems(panel: str) -> tuple[str, ...]:
    return tuple(CHUNKS if panel == TABLE6 else SYSTEMS)


@cache
def logs(panel: str, system: str, factor: float) -> np.ndarray:
    """log(ours / paper) of a system's latencies."""
    page, workload, _ = PANELS[panel]
    if panel == TABLE6:
        key, kind, chunk = CHUNKS[system]
        cells = [(f"pod.t6.{key}", page.QPS, chunk, kind, page.METRICS)]
    else:
        table, key = "t4" if page is pod_t4 else page.TABLE, pod_t5.SYSTEMS[system]
        cells = [(f"pod.{table}.{load}.{key}", float(load), page.CHUNK, system, METRICS) for load in page.LOADS]
    return np.array([np.log(of(workload, qps, chunk, kind, slowdown=factor)[metric] / paper.value(f"{id_}.{metric}"))
                     for id_, qps, chunk, kind, metrics in cells for metric in metrics])  # fmt: skip


def table():
    """One row a workload, system and factor: the distance, and how many of its latencies are off by a quarter."""
    rows = [(panel, system, factor, float(np.sqrt(np.mean(off**2))), int((np.exp(abs(off)) > 1 + WIDE).sum()))
            for panel in PANELS for system in systems(panel) for factor in PANELS[panel][2]
            for off in [logs(panel, system, factor)]]  # fmt: skip
    return pd.DataFrame(rows, columns=["requests", "system", "factor", "rms_log", "cells_off"])


def draw(df):
    panels = df.requests.nunique()
    axes = np.atleast_1d(style.axes(max(6.0, 2.6 * panels), 3.2, panels))
    tones = {system: style.WORKERS[0] for system in systems(TABLE6)} | {
        "vLLM": style.colour("linear"), "Sarathi": style.WORKERS[1], POD: style.WORKERS[0]}  # fmt: skip
    marks = dict(zip(systems(TABLE6), "osD^", strict=True))
    for ax, (panel, mine) in zip(axes, df.groupby("requests", sort=False), strict=True):
        for system, line in mine.groupby("system", sort=False):
            ax.plot(line.factor, line.rms_log, marks.get(system, "o") + "-", markersize=4, color=tones[system],
                    label=system)  # fmt: skip
        ax.set(xlabel="factor on every iteration", ylim=(0, 1.6))
        ax.set_title(panel, fontsize=9.5)
    axes[0].set_ylabel("distance: rms of log(ours / paper)")
    if panels == 1:
        _name_lines(axes[0])
    for ax in (axes[1], axes[-1]) if panels > 1 else ():  # the first three have the same lines, the second has room
        style.legend(ax, loc="upper right")
    return axes[0].figure


def _name_lines(ax) -> None:
    """Each beside its first point."""
    for line in ax.lines:
        ax.annotate(line.get_label(), line.get_xydata()[0], (-7, 0), textcoords="offset points", ha="right",
                    va="center", fontsize=9, color=line.get_color())  # fmt: skip
    low, high = ax.get_xlim()
    ax.set_xlim(low - 0.2 * (high - low), high)


def best():
    """The distance as it is, and with the factor that suits a system best."""
    df = table()
    plain = df[df.factor == 1].set_index(["requests", "system"])
    least = df.loc[df.groupby(["requests", "system"], sort=False).rms_log.idxmin()].set_index(["requests", "system"])
    return plain[["rms_log", "cells_off"]].join(least, rsuffix="_with_it")
