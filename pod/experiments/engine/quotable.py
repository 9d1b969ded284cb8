"""What may be quoted of the simulator: each kind of number with its worst error, those with a queue in them apart."""

import numpy as np
import pandas as pd

from pod.experiments.engine import engine_chunks, engine_gates, engine_served
from pod.experiments.pod import pod_t5
from pod.lab.show import style

TIMES, GAPS, QUEUED = "times and gains", "gaps between words", "a queue is in it"
LARGE, TICKS = 1.5, (1, 1.2, 1.5, 2, 3, 5, 10)  # a factor that is not said in percent; of the axis


def errors() -> pd.DataFrame:
    """A row a number: its worst error in percent, of what was measured, of a gain, or of what the paper states; and as
    a factor, in which too short by half weighs as much as twice too long. Gates know no sign: theirs counts as too
    long."""
    worst, calm, paper = engine_gates.worst, _calm(), _paper()
    sarathi, vllm = _real()
    rows = [
        (TIMES, "batches that differ, given its times", worst("batches")),
        (TIMES, "an operator, 95 of 100", worst("operators, worst")),
        (TIMES, "an offline run, unseen", engine_gates.unseen("run")),
        (TIMES, "our kernel's gain in it", engine_gates.unseen("gain")),
        (TIMES, "the gain of overlap alone", engine_gates.fusing_unseen()),
        (GAPS, "P99 gap, calm server, unseen", calm["TBT"]),
        (GAPS, "P99 gap, real server, Sarathi", sarathi["tbt_p99"]),
        (GAPS, "P99 gap, the paper's Table 5", paper["tbt_p99"]),
        (GAPS, "median gap, real server, Sarathi", sarathi["tbt_p50"]),
        (GAPS, "median gap, the paper's Table 5", paper["tbt_p50"]),
        (QUEUED, "P99 gap, real server, vLLM", vllm["tbt_p99"]),
        (QUEUED, "P99 wait, calm server, unseen", calm["TTFT"]),
        (QUEUED, "P99 wait, real server, Sarathi", sarathi["ttft_p99"]),
        (QUEUED, "P99 wait, real server, vLLM", vllm["ttft_p99"]),
        (QUEUED, "median wait, real server, vLLM", vllm["ttft_p50"]),
        (QUEUED, "P99 wait, the paper's Table 5", paper["ttft_p99"]),
        (QUEUED, "median wait, the paper's Table 5", paper["ttft_p50"]),
    ]
    rows = [(*row, off) if isinstance(off, tuple) else (*row, (off, 1 + off / 100)) for *row, off in rows]
    return pd.DataFrame([(*row, *off) for *row, off in rows], columns=["kind", "number", "worst_percent", "factor"])


def _calm() -> pd.Series:
    df = engine_gates.values().query("gate == 'P99, unseen'")
    return df.groupby(df.case.str.partition(",")[0]).value.max()


def _real() -> tuple[pd.Series, pd.Series]:
    """By metric, of the real server under Sarathi and under vLLM's scheduler."""
    df = pd.concat([engine_served.table(), engine_chunks.table()]).dropna(subset="foretold")
    off = _worst(df.foretold / df.measured, [df.system == "vLLM", df.metric])
    return off[False], off[True]


def _paper() -> pd.Series:
    df = pod_t5.table()
    return _worst(df.ours_listed / df.paper, df.metric)


def _worst(ratio: pd.Series, by) -> pd.Series:
    """Of simulated numbers over real ones: percent and factor of the worst."""
    percent = (100 * (ratio - 1).abs()).groupby(by).max()
    factor = np.maximum(ratio, 1 / ratio).groupby(by).max()
    return pd.Series(list(zip(percent, factor, strict=True)), percent.index)


ABOUT = {
    "engine-runs": "throughput, measured", "engine-windows": "throughput, measured",
    "engine-sm80": "throughput, measured", "engine-ratios": "throughput, measured",
    "pod-12": "throughput, simulated", "pod-15": "throughput, simulated", "engine-served": "a real server",
    "engine-chunks": "a real server", "pod-t4": "Tables 4 and 5", "pod-t5": "Tables 4 and 5", "pod-t6": "Table 6",
    "pod-02": "Figure 2",
}  # fmt: skip


def draw(df):
    ax = style.axes(8.5, 4.4)
    for (kind, mine), colour in zip(df.groupby("kind", sort=False), style.WORKERS, strict=False):
        bars = ax.barh(mine.number, mine.factor - 1, left=1, color=colour, label=kind)
        said = [f"{row.worst_percent:.0f} %" if row.factor < LARGE else f"{row.factor:.1f} times"
                for row in mine.itertuples()]  # fmt: skip
        ax.bar_label(bars, said, padding=4, fontsize=9)
    ax.invert_yaxis()
    ax.set(xlabel="worst error, as a factor (1 is right)", xscale="log", xlim=(1, 1.5 * df.factor.max()))
    ax.set_xticks(TICKS, TICKS)
    ax.minorticks_off()
    style.legend(ax, loc="upper right")
    return ax.figure
