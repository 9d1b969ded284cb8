"""Simulated over real: what a simulator says of runs that it has not seen, beside what came."""

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from pod.experiments.engine import engine_chunks, engine_gates, engine_served
from pod.experiments.pod import pod_factors, pod_t5
from pod.lab.show import style
from pod.simulate import calibrate
from pod.simulate.windows import CALM, RUNS

NAMES = {"tbt_p50": "median gap", "tbt_p99": "P99 gap", "ttft_p50": "median wait", "ttft_p99": "P99 wait"}
WITHIN, BEYOND = "within its bound (grey)", "beyond it"
TURN, POD, VLLM = "Sarathi, our halves in turn", "Sarathi+POD", "vLLM's scheduler"
FREE, QUEUED = "no queue in it", "a queue in it"
TONES = {WITHIN: style.colour("hybrid"), BEYOND: style.ALARM, TURN: style.WORKERS[1],
         POD: style.colour("hybrid"), VLLM: style.ALARM,
         FREE: style.colour("hybrid"), QUEUED: style.ALARM}  # fmt: skip
TABLE5 = "Table 5, the artifact's requests"
FAR, TICKS = 1.5, (0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20)


def unseen() -> pd.DataFrame:
    """A row a number of a run: simulated and measured, other runs having taught, and what is allowed, percent."""
    rows = [("time of an offline run", *calibrate.seconds(run, calibrate.KIND), engine_gates.BOUNDS["run"][1])
            for run, (load, _) in RUNS.items() if not load.qps]  # fmt: skip
    calm = [calibrate.latencies(run, calibrate.KIND) for run in RUNS if run.startswith(CALM)]
    rows += [(f"{name}, calm server", real[metric], ours[metric], engine_gates.BOUNDS[metric[-3:].upper()][1])
             for metric, name in NAMES.items() for real, ours in calm]  # fmt: skip
    df = pd.DataFrame(rows, columns=["number", "real", "simulated", "bound"])
    df = df.assign(ratio=df.simulated / df.real)
    return df.assign(who=np.where(100 * (df.ratio - 1).abs() <= df.bound, WITHIN, BEYOND))


def foretold() -> pd.DataFrame:
    """Every number of the real server that was foretold, at the heavier loads and at Table 6's."""
    df = pd.concat([engine_served.table(), engine_chunks.table()]).dropna(subset="foretold")
    return df.assign(ratio=df.foretold / df.measured)


def server() -> pd.DataFrame:
    """A row a number, scheduler and heavier load: foretold and measured, of systems that were foretold."""
    who = {engine_served.TURN: TURN, engine_served.POD: POD, "vLLM": VLLM}
    df = foretold().query("metric in @NAMES and load in @engine_served.LOADS")
    df = df.assign(number=df.metric.map(NAMES), who=df.system.map(who))
    df = df.rename(columns={"measured": "real", "foretold": "simulated"})
    return df.sort_values("number", key=lambda each: each.map(list(NAMES.values()).index), kind="stable")


def overview() -> pd.DataFrame:
    """A row a number of each of the five tests: simulated over real, and whether a queue is in it."""
    runs, table5 = unseen(), pod_t5.table().query("metric in @NAMES")
    offline = runs.number == "time of an offline run"
    same = pd.DataFrame({"ratio": [1 + engine_gates.worst("batches") / 100], "number": "batches"})
    paper = table5.assign(ratio=table5.ours_listed / table5.paper, number=table5.metric.map(NAMES), who=table5.system)
    tests = {
        "1 · who is in a batch": same,
        "2 · an offline run": runs[offline],
        "3 · a calm server": runs[~offline],
        "4 · a real server, foretold": server(),
        "5 · the paper's servers": paper,
    }
    df = pd.concat([each.reindex(columns=["ratio", "number", "who"]).assign(test=test) for test, each in tests.items()])
    queued = df.number.str.contains("wait") | (df.number.eq("P99 gap") & df.who.isin(["vLLM", VLLM]))
    return pd.DataFrame({"number": df.test, "ratio": df.ratio, "who": np.where(queued, QUEUED, FREE)})


def stretched() -> pd.DataFrame:
    """A row a system, factor and metric at Table 5's heavier load: simulated over the paper's, were every iteration
    so many times as long."""
    first = len(pod_factors.METRICS)  # the logarithms of the lighter load come first
    rows = [(system, factor, metric, float(np.exp(off)))
            for system in pod_factors.systems(TABLE5) for factor in pod_factors.PANELS[TABLE5][2]
            for metric, off in zip(pod_factors.METRICS, pod_factors.logs(TABLE5, system, factor)[first:], strict=True)
            if metric in NAMES]  # fmt: skip
    return pd.DataFrame(rows, columns=["system", "factor", "metric", "ratio"])


# ---------------------------------------------------------------- pictures


def draw(df, said: str | None = None):
    """Numbers as rows, on an axis on which 1 is right. `said`: of the furthest in a row, how simulated and real read,
    where it is far."""
    numbers = list(dict.fromkeys(df.number))
    ax = style.axes(8.5, 0.9 + 0.36 * len(numbers))
    for y, number in enumerate(numbers):
        mine = df[df.number == number]
        if "bound" in mine:
            most = mine.bound.iloc[0] / 100
            ax.barh(y, 2 * most, left=1 - most, height=0.6, color=style.FRAME, alpha=0.6, zorder=0)
        furthest = mine.loc[np.log(mine.ratio).abs().idxmax()]
        if said and furthest.ratio > FAR:
            ax.annotate(said.format(furthest.simulated, furthest.real), (furthest.ratio, y), (9, 0), va="center",
                        textcoords="offset points", fontsize=9)  # fmt: skip
        for who, tone in TONES.items():
            some = mine[mine.who == who]
            if len(some):
                ax.plot(some.ratio, [y] * len(some), "o", color=tone, markersize=7, alpha=0.85, label=who)
    ax.axvline(1, color=style.INK, linewidth=1.2, zorder=1)
    ax.set(yticks=range(len(numbers)), ylim=(len(numbers) - 0.5, -0.5), xscale="log", xlabel="simulated over measured")
    ax.set_yticklabels(numbers)
    low, high = df.ratio.min() / 1.03, df.ratio.max() * (1.4 if said else 1.03)
    _ticks(ax.xaxis, low, high)
    ax.set_xlim(low, high)
    return style.legend_outside(ax, "lower", 3)


def _ticks(axis, low: float, high: float) -> None:
    """Factors as one says them."""
    axis.set_major_locator(NullLocator())
    axis.set_minor_locator(NullLocator())
    shown = [tick for tick in TICKS if low <= tick <= high]
    if high > 5 * low:  # others would stand on top of each other
        shown = [tick for tick in shown if tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)]
    axis.set_ticks(shown, [f"{tick:g}" for tick in shown])


def draw_stretched(df):
    """A panel a system: each metric a line over the factor; waits and gaps in two colours, medians dashed.
    Dotted: the factor that suits the system's twelve numbers best."""
    systems = sorted(df.system.unique(), key=lambda system: system == "vLLM")
    best = pod_factors.best().loc[TABLE5].factor
    axes = style.axes(9.5, 3.4, columns=len(systems), sharey=True)
    for ax, system in zip(axes, systems, strict=True):
        for metric, name in reversed(NAMES.items()):
            line = df[(df.system == system) & (df.metric == metric)]
            ax.plot(line.factor, line.ratio, color=style.WORKERS[2 if "wait" in name else 1], marker="o", markersize=3,
                    linestyle="--" if "median" in name else "-", label=name)  # fmt: skip
        ax.axhline(1, color=style.INK, linewidth=1.2)
        ax.axvline(best[system], color=style.INK, linewidth=0.8, linestyle=":")
        ax.set_title(system, fontsize=10)
        ax.set(xlabel="every iteration so many times as long", yscale="log", ylim=(0.05, 30))
        ax.xaxis.label.set_size(9)
        _ticks(ax.yaxis, 0.05, 30)
    axes[0].set_ylabel("simulated over the paper's")
    return style.legend_outside(axes[0], "lower", 4)


# ---------------------------------------------------------------- as words


def seconds() -> str:
    """What was foretold of the real server, and what came, with latencies, as lines."""
    df = engine_served.table().dropna(subset="foretold").query("metric in @engine_served.TITLES")
    df = df.assign(both=[f"{row.foretold:.3g} / {row.measured:.3g}" for row in df.itertuples()])
    return _spread(df, ["load", "system"], "both")


def beside_the_paper() -> str:
    """Simulated over the paper's, in all of Table 5, as lines."""
    df = pod_t5.table().query("metric in @pod_t5.TITLES")
    df = df.assign(both=[f"{ratio:.2f}" for ratio in df.ours_listed / df.paper])
    return _spread(df, ["qps", "system"], "both")


def _spread(df, index: list[str], values: str) -> str:
    wide = df.pivot(index=index, columns="metric", values=values)[list(engine_served.TITLES)]
    return wide.rename(columns=lambda name: engine_served.TITLES[name].removesuffix(", s")).rename_axis(
        columns=None).to_string(sparsify=False)  # fmt: skip
