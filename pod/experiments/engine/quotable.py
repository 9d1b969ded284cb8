"""What may be quoted of the simulator: each kind of number with its worst error, those with a queue in them apart."""

import pandas as pd

from pod.experiments.engine import engine_gates, engine_offline, engine_windows, trust
from pod.experiments.pod import pod_t5
from pod.lab.show import style
from pod.simulate import calibrate
from pod.simulate.windows import RUNS

TIMES, GAPS, QUEUED = "times and gains", "gaps between words", "a queue is in it"
LARGE = 1.5  # a factor that is not said in percent
GAIN, OVERLAP = "gain of our kernel, offline", "gain of overlap alone, offline"
OURS, SERVED, STATED = "our engine's runs", "the real server", "the paper's Table 5"
# what is drawn, and whether it may be quoted
ANSWERS = {
    "time of an offline run": "yes", "P99 gap, Sarathi": "yes", GAIN: "roughly", OVERLAP: "no", "median gap": "no",
    "P99 gap, vLLM's scheduler": "no", "P99 wait": "no", "median wait": "no",
}  # fmt: skip


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
    return max(_gains(over), key=_factor)


def _gains(over: str) -> list[float]:
    models = dict.fromkeys(load.model for load, _ in RUNS.values() if not load.qps)
    gains = [calibrate.gain(model, over, calibrate.KIND) for model in models]
    return [(simulated - 1) / (measured - 1) for measured, simulated in gains]


def _calm() -> pd.Series:
    df = engine_gates.values().query("gate == 'P99, unseen'")
    return _too_long(df.groupby(df.case.str.partition(",")[0]).value.max())


def _too_long(percent):
    return 1 + percent / 100


def _real() -> tuple[pd.Series, pd.Series]:
    """By metric, of the real server under Sarathi and under vLLM's scheduler."""
    return _worst(trust.foretold())


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


# ---------------------------------------------------------------- the picture: every number, not the worst alone


def every() -> pd.DataFrame:
    """A row a number that was simulated and is known: simulated over real, whose it is, and whether it is of vLLM's
    scheduler. Rows of ANSWERS, from what may be quoted to what may not."""
    rows = [(row.number.removesuffix(", calm server"), row.ratio, OURS, False) for row in trust.unseen().itertuples()]
    for name, over, system in (
        (GAIN, "fa3", engine_offline.SARATHI),
        (OVERLAP, "hopper-serial", engine_offline.IN_TURN),
    ):
        rows += [(name, ratio, OURS, False) for ratio in (*_gains(over), *_beside_windows(over, system))]
    paper = pod_t5.table()
    for df, whose in ((trust.foretold(), SERVED), (paper.assign(ratio=paper.ours_listed / paper.paper), STATED)):
        rows += [(trust.NAMES[row.metric], row.ratio, whose, row.system == "vLLM")
                 for row in df.query("metric in @trust.NAMES").itertuples()]  # fmt: skip
    df = pd.DataFrame(rows, columns=["number", "ratio", "whose", "vllm"])
    gaps = df.number == "P99 gap"
    df.loc[gaps, "number"] = df.vllm[gaps].map({False: "P99 gap, Sarathi", True: "P99 gap, vLLM's scheduler"})
    return df.sort_values("number", key=lambda each: each.map(list(ANSWERS).index), kind="stable", ignore_index=True)


def _beside_windows(over: str, system: str) -> list[float]:
    """Simulated over measured, what our kernel gains over other attention at the paper's ratios of prompt to answer."""
    measured = engine_windows.table().set_index(["model", "system"]).pod_gain
    simulated = engine_offline.table().set_index(["model", "pd", "system"]).pod_gain
    name = engine_windows.NAMES[f"Sarathi, {over}"]
    return [float(simulated[model, ratio, system] / measured[model, name])
            for model, (_, ratio, _) in engine_offline.MODELS.items()]  # fmt: skip


def draw(df):
    """Numbers as rows, on the axis of the tests' pictures: 1 is right. Shaded rows may be quoted."""
    numbers = list(dict.fromkeys(df.number))
    ax = style.axes(9.0, 4.2)
    for y, number in enumerate(numbers):
        if ANSWERS[number] != "no":
            ax.axhspan(y - 0.5, y + 0.5, color=style.colour("hybrid"), alpha=0.18 if ANSWERS[number] == "yes" else 0.08,
                       linewidth=0)  # fmt: skip
        ax.text(1.01, y, ANSWERS[number], transform=ax.get_yaxis_transform(), va="center", fontsize=9.5)
    for whose, tone, shift in ((OURS, style.INK, -0.2), (SERVED, style.WORKERS[0], 0), (STATED, style.WORKERS[2], 0.2)):
        for vllm, mark in ((False, "o"), (True, "x")):
            mine = df[(df.whose == whose) & (df.vllm == vllm)]
            if mine.empty:
                continue
            ax.plot(mine.ratio, mine.number.map(numbers.index) + shift, mark, color=tone, markersize=6, alpha=0.8,
                    label=whose + (", vLLM's scheduler" if vllm else ""))  # fmt: skip
    ax.axvline(1, color=style.INK, linewidth=1.2, zorder=1)
    ax.text(1.01, -0.75, "quote it?", transform=ax.get_yaxis_transform(), va="center", fontsize=9.5)
    ax.set(yticks=range(len(numbers)), ylim=(len(numbers) - 0.5, -0.5), xscale="log", xlim=(0.06, 4),
           xlabel="simulated over real")  # fmt: skip
    ax.set_yticklabels(numbers)
    style.ticks(ax, (0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 3))
    return style.legend_outside(ax, "lower", 3)


def listed() -> str:
    """The worst error of each kind of number, as lines."""
    df = errors()
    return "\n".join(f"{row.kind:20}  {row.number:36}  {_said(row)}" for row in df.itertuples())


def _said(row) -> str:
    """What is too short by a fifth is off by a factor of 1.25, so it says that it is too short."""
    short = ", too short" if row.ratio < 1 else ""
    return f"{row.worst_percent:.0f} %{short}" if row.factor < LARGE else f"{row.factor:.1f} times{short}"
