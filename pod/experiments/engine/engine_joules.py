"""Eight GPUs, a promise, and the meter: how many requests each way answers with a kilojoule, at its highest rate."""

import pandas as pd

from pod.data import read
from pod.experiments.engine.engine_disaggregated import APART, GPUS, NAMES, ONCE, SECONDS, TURN, setup
from pod.experiments.engine.engine_disaggregated import table as promised
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.energy import PRICED, RECORDED, Meter
from pod.simulate.run import Both, simulate
from pod.simulate.summary import Summary
from pod.simulate.workload import Workload

FIGURE = Figure(
    title="Requests a kilojoule that eight H200s answer, by the gap between words that is promised",
    chapter="15",
    method="the runs of engine-disaggregated that serve the most at each promise, at 50 GB/s; energy by FLOPs, bytes "
    "and seconds, fitted to recorded runs of the engine (a second opinion in the table: by prices of instructions)",
    data=("engine-joules", "engine-disaggregated"),
    fitted=True,
)
COMPUTED = "engine-joules"
KEYS, READS = ("workload", "way", "knob", "qps"), ("operators", "engine-runs", "engine-disaggregated")
PRICE = "joules_per_request_by_prices"
PROMISES = (10, 14, 18, 22, 30, 50, 100)  # P99 TBT, ms, of those in engine-disaggregated


def cases() -> list[dict]:
    best = promised()
    best = best[(best.qps > 0) & best.tbt_p99_ms.isin(PROMISES)].drop_duplicates(list(KEYS))
    return [{"workload": row.workload, "way": row.way, "knob": int(row.knob), "qps": int(row.qps)}
            for row in best.itertuples()]  # fmt: skip


def measure(case: dict) -> dict[str, float]:
    qps, on = case["qps"], setup(case["way"], case["knob"])
    fitted, priced = (Summary(meter=Meter(on.cost(), GPUS, each)) for each in (RECORDED, PRICED))
    simulate(on, Workload(case["workload"], SECONDS[case["workload"]] * qps, qps).stream(), into=Both(fitted, priced))
    row = {k: fitted.full()[k] for k in ("joules_per_request", "joules_per_token", "joules_per_iteration",
                                         "watts_per_gpu")}  # fmt: skip
    return row | {PRICE: priced.full()["joules_per_request"]}


def table():
    """A row a workload, way and promise: the highest rate, and what a kilojoule answers at it."""
    best = promised()
    best = best[best.tbt_p99_ms.isin(PROMISES)].merge(read("engine-joules"), on=list(KEYS), how="left")
    shown = ["workload", "way", "tbt_p99_ms", "qps", "joules_per_token", "watts_per_gpu"]
    return best[shown].assign(requests_per_kilojoule=1e3 / best.joules_per_request, by_prices=1e3 / best[PRICE])


def draw(df):
    axes = style.axes(9.5, 3.4, len(NAMES))
    colours = {TURN: style.WORKERS[1], ONCE: style.WORKERS[0], APART: style.WORKERS[2]}
    for ax, (workload, name) in zip(axes, NAMES.items(), strict=True):
        for way, colour in colours.items():
            mine = df[(df.workload == workload) & (df.way == way)]
            ax.plot(mine.tbt_p99_ms, mine.requests_per_kilojoule, "o-", drawstyle="steps-post", markersize=4,
                    color=colour, label=way)  # fmt: skip
        ax.set(xscale="log", xlabel="promised P99 TBT, ms", ylim=(0, None))
        style.ticks(ax, (10, 20, 50, 100))
        ax.set_title(name, fontsize=10)
    axes[0].set_ylabel("requests a kilojoule, 8 GPUs, simulated")
    style.legend(axes[0], loc="lower right")
    return axes[0].figure


def ahead(workload: str, over: str, promise: int) -> float:
    """How many percent more requests fused chunks answer with a joule than another way, at this promise."""
    each = table().set_index(["workload", "way", "tbt_p99_ms"]).requests_per_kilojoule
    return 100 * (each[workload, ONCE, promise] / each[workload, over, promise] - 1)


def saved() -> pd.DataFrame:
    """The same for all workloads and promises, over prompts apart; and by prices of instructions, which know GPUs that
    only decode."""
    opinions = {"fitted": "requests_per_kilojoule", "by prices": "by_prices"}
    wide = table().pivot(index="tbt_p99_ms", columns=["workload", "way"], values=list(opinions.values()))
    return pd.DataFrame({(name, words): 100 * (wide[column, workload, ONCE] / wide[column, workload, APART] - 1)
                         for workload, name in NAMES.items() for words, column in opinions.items()})  # fmt: skip
