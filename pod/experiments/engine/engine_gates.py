"""What the simulator has to show before it is believed: recorded runs of the engine, gate by gate."""

from functools import partial

import numpy as np
import pandas as pd

from pod.experiments.engine.shared import of_runs
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate import calibrate
from pod.simulate.windows import CALM, RUNS

FIGURE = Figure(
    title="The simulator against the real engine",
    says="Every offline run stays within its bounds; the calm server does not",
    chapter="15",
    method="points between the grid's, and recorded runs of 9 to 64 s, on H200s. What the host costs and how far "
    "clocks fall is learned from the first half of each run, and run, gain, P50 and P99 are of the whole window; "
    "unseen: it is learned from other runs, offline or online alike, and nothing of the judged one is given",
    data=("operators", "engine-runs", "engine-gates"),
)
COMPUTED = "engine-gates"
KEYS, READS = ("taught_by", "gate", "case"), ("operators", "engine-runs")
OPERATORS = ("linear", "prefill_fa3", "prefill_hopper", "decode_fa3", "decode_hopper", "attention_hopper")
# gate: (what is bounded, its bound)
BOUNDS = {
    "batches": ("batches that differ", 0), "operators": ("median error, %", 3), "operators, worst": ("p95 error, %", 8),
    "iterations": ("median error, %", 3), "run": ("error of the time, %", 3), "P50": ("error, %", 5),
    "P99": ("error, %", 10), "gain": ("error over the gain, %", 25),
}  # fmt: skip
NOBODY = "nobody"
LEARNED = ("iterations", "run", "gain", "P50", "P99")  # gates for which something is learned from a run
UNTAUGHT, LATER, UNSEEN, TOGETHER = ", untaught", ", second half", ", unseen", ", together"
BOUNDS |= {gate + UNSEEN: BOUNDS[gate] for gate in LEARNED}


def cases() -> list[dict]:
    """From which runs it is learned what the host costs and how far clocks fall."""
    return [{"taught_by": who} for who in (NOBODY, calibrate.ITSELF, calibrate.KIND, calibrate.ALL)]


def measure(case: dict) -> list[dict]:
    gates = _gates(case["taught_by"])
    return [{"gate": gate, "case": which, "value": float(value)} for gate, which, value in gates]


def _gates(by: str):
    if by == NOBODY:
        yield from (*_operators(), *_batches(), *_whole_runs(_uncalibrated, UNTAUGHT))
    if by == calibrate.ITSELF:
        yield from (*_runs(by), *_whole_runs(_second_half, LATER))
    if by == calibrate.KIND:
        yield from _runs(by, UNSEEN)
        for model in _offline().values():
            yield f"fusing{UNSEEN}", model, _gain_error(model, _simulated(by), "hopper-serial")
    if by == calibrate.ALL:
        yield from _whole_runs(_simulated(by), TOGETHER)


def _operators():
    for operator in OPERATORS:
        errors = 100 * abs(calibrate.operator_errors(operator))
        yield "operators", operator, np.median(errors)
        yield "operators, worst", operator, np.percentile(errors, 95)


def _batches():
    for run in RUNS:
        yield "batches", run, calibrate.differing(run)


def _runs(by: str, ending: str = ""):
    for run in RUNS:
        yield f"iterations{ending}", run, 100 * calibrate.iteration_error(run, by)
    yield from _whole_runs(_simulated(by), ending)
    for run in (run for run in RUNS if run.startswith(CALM)):
        real, ours = calibrate.latencies(run, by)
        for key in ("ttft_p50", "ttft_p99", "tbt_p50", "tbt_p99"):
            metric, _, percentile = key.upper().partition("_")
            yield f"{percentile}{ending}", f"{metric}, {run}", 100 * abs(ours[key] / real[key] - 1)


def _whole_runs(seconds, ending: str = ""):
    """The gates of offline runs: seconds, and what one system gains over another. `seconds`: run -> recorded, ours."""
    for run, model in _offline().items():
        real, ours = seconds(run)
        yield f"run{ending}", run, 100 * abs(ours / real - 1)
        if RUNS[run][1] == "hopper":
            yield f"gain{ending}", model, _gain_error(model, seconds)


def _offline() -> dict[str, str]:
    """Model by run, of the offline runs."""
    return {run: load.model for run, (load, _) in RUNS.items() if not load.qps}


def _gain_error(model: str, seconds, over: str = "fa3") -> float:
    """Of the ratio between the two systems, over the gain that was measured."""
    theirs, ours = (seconds(f"{model}, {name}") for name in (over, "hopper"))
    real, simulated = (other / mine for other, mine in zip(theirs, ours, strict=True))
    return 100 * abs(simulated - real) / (real - 1)


def _simulated(by: str):
    return lambda run: calibrate.seconds(run, by)


def _second_half(run: str) -> tuple[float, float]:
    """Seconds of a run's second half, recorded and by the cost model, which learned from the first."""
    return _later(calibrate.iteration_seconds(run)), _later(calibrate.predicted(run))


def _later(values) -> float:
    return float(values[len(values) // 2 :].sum())


def _uncalibrated(run: str) -> tuple[float, float]:
    """Seconds of a run, recorded and of its operators one by one, with nothing learned from it."""
    return float(calibrate.iteration_seconds(run).sum()), sum(calibrate.alone(run))


# ---------------------------------------------------------------- what it shows


def values() -> pd.DataFrame:
    """A row a gate and case."""
    return of_runs(COMPUTED)


def table() -> pd.DataFrame:
    """A row a gate and case that is bounded: the value, the bound, and whether it holds."""
    df = values()
    df = df[df.gate.isin(BOUNDS)][["gate", "case", "value"]].reset_index(drop=True)
    df = df.assign(bound=[BOUNDS[gate][1] for gate in df.gate])
    return df.assign(holds=df.value <= df.bound)


def draw(df):
    """Each case as a dot, its value in units of the bound."""
    shown = df[df.bound > 0]
    gates = list(dict.fromkeys(shown.gate))
    ax = style.axes(8.5, 0.9 + 0.42 * len(gates))
    for i, gate in enumerate(gates):
        mine = shown[shown.gate == gate]
        colours = [style.colour("hybrid") if ok else style.ALARM for ok in mine.holds]
        ax.scatter(mine.value / mine.bound, [i] * len(mine), c=colours, s=36, zorder=3)
    _name_the_late(ax, shown[~shown.holds].case)
    ax.axvline(1, color=style.INK, linewidth=1.2)
    first = next(i for i, gate in enumerate(gates) if gate.endswith(UNSEEN))
    ax.axhline(first - 0.5, color=style.INK, linewidth=0.8, linestyle=":")
    for row, taught in ((0, "its own first half has taught, or nothing"), (first, "other runs have taught")):
        ax.text(0.99, row - 0.1, taught, transform=ax.get_yaxis_transform(), ha="right", fontsize=10, style="italic")
    ax.set(yticks=range(len(gates)), ylim=(len(gates) - 0.5, -0.5), xlim=(0, None),
           xlabel="error in units of what is allowed (line)")  # fmt: skip
    ax.set_yticklabels([f"{gate.removesuffix(', worst')}, {what.removesuffix(', %')}: {most} %"
                        for gate in gates for what, most in [BOUNDS[gate]]])  # fmt: skip
    return ax.figure


def _name_the_late(ax, cases) -> None:
    """Whose dots are beyond the line."""
    whose = sorted({(2 * case.split(", "))[-2] for case in cases})  # of "TTFT, a run, its attention" the run
    ax.scatter([], [], color=style.colour("hybrid"), s=36, label="within its bound")
    if whose:
        ax.scatter([], [], color=style.ALARM, s=36, label=f"not: {', '.join(whose)}")
    style.legend(ax, loc="center right")


def text(df) -> str:
    """The gates as lines, each with its worst case."""
    lines = []
    for gate, mine in df.groupby("gate", sort=False):
        worst = mine.loc[mine.value.idxmax()]
        words = f"worst {worst.value:.1f} ({worst.case})" if worst.value else "no exception"
        what, most = BOUNDS[gate]
        lines.append(f"{gate:<18} {what:<23} at most {most:>2}: {mine.holds.sum()} of {len(mine)} hold, {words}")
    return "\n".join(lines)


# ---------------------------------------------------------------- what claims ask for


def worst(gate: str) -> float:
    """Of all cases of a gate, the largest value."""
    df = values()
    return float(df.value[df.gate == gate].max())


operators_worst = partial(worst, "operators, worst")


def unseen(gate: str) -> float:
    """The worst case of a gate where everything is learned from other runs."""
    return worst(gate + UNSEEN)


# Of what fusing alone gains, our halves in turn over both at once: the error over that gain, %
fusing_unseen = partial(unseen, "fusing")


def taught_by_all(gate: str) -> float:
    """The same of "run" and "gain" where offline and online runs teach each other."""
    return worst(gate + TOGETHER)


run_second_half = partial(worst, "run" + LATER)  # of the half from which nothing was learned
gain_second_half = partial(worst, "gain" + LATER)
run_uncalibrated = partial(worst, "run" + UNTAUGHT)
gain_uncalibrated = partial(worst, "gain" + UNTAUGHT)
