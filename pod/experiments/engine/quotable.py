"""What may be quoted of the simulator: each kind of number with its worst error, those with a queue in them apart."""

import pandas as pd

from pod.experiments.engine import engine_chunks, engine_gates, engine_served
from pod.experiments.pod import pod_t5
from pod.lab.show import style
from pod.simulate import calibrate
from pod.simulate.windows import RUNS

TIMES, GAPS, QUEUED = "times and gains", "gaps between words", "a queue is in it"
LARGE, TICKS = 1.5, (1, 1.2, 1.5, 2, 3, 5, 10)  # a factor that is not said in percent; of the axis


def errors() -> pd.DataFrame:
    """A row a number: its worst error in percent, of what was measured or of what the paper states; and as a
    factor, in which too short by half weighs as much as twice too long. `ratio`: simulated over real, where both are
    at hand; gates know no sign, so theirs is 1 + the error."""
    calm, (sarathi, vllm), (others, theirs) = _calm(), _real(), _paper()
    rows = [
        (TIMES, "batches that differ, given its times", _too_long(engine_gates.worst("batches"))),
        (TIMES, "an operator, 95 of 100", _too_long(engine_gates.worst("operators, worst"))),
        (TIMES, "an offline run, unseen", _too_long(engine_gates.unseen("run"))),
        (TIMES, "our kernel's gain in it", _gain("fa3")),
        (TIMES, "the gain of overlap alone", _gain("hopper-serial")),
        (GAPS, "P99 gap, calm server, unseen", calm["TBT"]),
        (GAPS, "P99 gap, real server, Sarathi", sarathi["tbt_p99"]),
        (GAPS, "P99 gap, Table 5, Sarathi", others["tbt_p99"]),
        (GAPS, "median gap, real server, Sarathi", sarathi["tbt_p50"]),
        (GAPS, "median gap, real server, vLLM", vllm["tbt_p50"]),
        (GAPS, "median gap, the paper's Table 5", _further(others, theirs, "tbt_p50")),
        (QUEUED, "P99 gap, real server, vLLM", vllm["tbt_p99"]),
        (QUEUED, "P99 gap, Table 5, vLLM", theirs["tbt_p99"]),
        (QUEUED, "P99 wait, calm server, unseen", calm["TTFT"]),
        (QUEUED, "P99 wait, real server, Sarathi", sarathi["ttft_p99"]),
        (QUEUED, "P99 wait, real server, vLLM", vllm["ttft_p99"]),
        (QUEUED, "median wait, real server, vLLM", vllm["ttft_p50"]),
        (QUEUED, "P99 wait, the paper's Table 5", _further(others, theirs, "ttft_p99")),
        (QUEUED, "median wait, the paper's Table 5", _further(others, theirs, "ttft_p50")),
    ]
    df = pd.DataFrame(rows, columns=["kind", "number", "ratio"])
    return df.assign(worst_percent=100 * (df.ratio - 1).abs(), factor=df.ratio.map(_factor))


def _gain(over: str) -> float:
    """Simulated over measured, what our kernel gains over other attention in the unseen offline run it is worst in."""
    models = dict.fromkeys(load.model for load, _ in RUNS.values() if not load.qps)
    gains = [calibrate.gain(model, over, calibrate.KIND) for model in models]
    return max(((simulated - 1) / (measured - 1) for measured, simulated in gains), key=_factor)


def _calm() -> pd.Series:
    df = engine_gates.values().query("gate == 'P99, unseen'")
    return _too_long(df.groupby(df.case.str.partition(",")[0]).value.max())


def _too_long(percent):
    return 1 + percent / 100


def _real() -> tuple[pd.Series, pd.Series]:
    """By metric, of the real server under Sarathi and under vLLM's scheduler."""
    df = pd.concat([engine_served.table(), engine_chunks.table()]).dropna(subset="foretold")
    return _worst(df.assign(ratio=df.foretold / df.measured))


def _paper() -> tuple[pd.Series, pd.Series]:
    """The same, beside the paper's Table 5."""
    df = pod_t5.table()
    return _worst(df.assign(ratio=df.ours_listed / df.paper))


def _worst(df: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Of simulated over real, the ratios furthest from 1: without vLLM's scheduler, and with it. Stalls may be none."""
    df = df[~df.metric.str.startswith("stalls")]
    far = df.groupby([df.system == "vLLM", df.metric]).ratio.agg(lambda each: max(each, key=_factor))
    return far[False], far[True]


def _further(some: pd.Series, others: pd.Series, metric: str) -> float:
    return max(some[metric], others[metric], key=_factor)


def _factor(ratio: float) -> float:
    return max(ratio, 1 / ratio)


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
        ax.bar_label(bars, [_said(row) for row in mine.itertuples()], padding=4, fontsize=9)
    ax.invert_yaxis()
    ax.set(xlabel="worst error, as a factor (1 is right)", xscale="log", xlim=(1, 2.5 * df.factor.max()))
    ax.set_xticks(TICKS, TICKS)
    ax.minorticks_off()
    style.legend(ax, loc="upper right")
    return ax.figure


def _said(row) -> str:
    """What is too short by a fifth is off by a factor of 1.25, so it says that it is too short."""
    short = ", too short" if row.ratio < 1 else ""
    return f"{row.worst_percent:.0f} %{short}" if row.factor < LARGE else f"{row.factor:.1f} times{short}"
