"""The two ways to use eight GPUs, under arrivals as they were recorded, bursts and all.

The clock runs faster until the rate is met, so a burst stays as large and gets as many times shorter. The chunk, or the
split of the GPUs, is the one that served most of the recording's beginning (chosen.py): who sets up a server does not
know what will come. Up to five stretches after it are judged, each for itself: how far they lie apart is what the
answer of one is worth.
"""

from itertools import product

import pandas as pd

from pod.data import DATA, kept, read
from pod.experiments.engine import chosen
from pod.experiments.engine import engine_disaggregated as steady
from pod.experiments.engine.chosen import PROMISES, WAYS, arriving, best, decisive, edge, following, knobs, tied
from pod.experiments.engine.engine_disaggregated import APART, GPUS, NAMES, ONCE, setup
from pod.experiments.engine.engine_nvlink import CODE
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.energy import PRICED, Meter, Spent
from pod.simulate.run import Both, simulate
from pod.simulate.summary import Summary
from pod.simulate.workload import read_trace

FIGURE = Figure(
    title="Requests a second that eight H200s serve, arrivals as recorded",
    chapter="15",
    method="as engine-disaggregated at 50 GB/s, with the chunk or split that served most of the recording's "
    "beginning; recorded requests and arrivals after it, time compressed: four or five stretches of 6 to 10 "
    "minutes; Mooncake's times are rounded to 3 s and spread over these again. Bars: mean of the stretches; "
    "dots: each of them; rings: mean with the other of two choices that were equal on the beginning; dashes: "
    "the rate of engine-disaggregated",
    data=("engine-replayed", "engine-chosen", "engine-disaggregated", "engine-nvlink"),
    fitted=True,
)
COMPUTED = "engine-replayed"
KEYS = ("workload", "arrivals", "way", "knob", "stretch", "qps")
READS = ("operators", "engine-runs", "engine-chosen")
LOOSE = PROMISES[-1]
RECORDED, TICKS = "recorded", "in ticks"  # as Mooncake's file has them
PRICE = "joules_per_request_by_prices"
WHICH = ["workload", "way", "tbt_p99_ms"]


def cases() -> list[dict]:
    every = [(workload, RECORDED, way, knob, stretch)
             for workload, way, knob in _asked() for stretch in following(workload)]  # fmt: skip
    every += [(workload, TICKS, way, knobs()[workload, way][LOOSE], following(workload)[0])
              for workload in chosen.TICK for way in WAYS]  # fmt: skip
    return [dict(zip(KEYS, case, strict=False)) for case in every]


def _asked() -> list[tuple[str, str, int]]:
    """Every chunk or split that is the best for a promise, or one of some equals."""
    return [(*which, knob) for which in product(NAMES, WAYS)
            for knob in sorted({knob for equals in tied()[which].values() for knob in equals})]  # fmt: skip


def measure(case: dict) -> list[dict]:
    """The rates that decide which promises are kept."""
    return decisive(case["workload"], _promises(case), lambda qps: _run(case, qps), chosen.RATES[case["workload"]])


def _promises(case: dict) -> list[int]:
    """For which this chunk or split is the one, or one of some equals."""
    if case["arrivals"] == TICKS:
        return [LOOSE]
    return [promise for promise, equals in tied()[case["workload"], case["way"]].items() if case["knob"] in equals]


def _run(case: dict, qps: int) -> dict[str, float]:
    workload, on = case["workload"], setup(case["way"], case["knob"])
    work = arriving(workload, case["stretch"], qps, case["arrivals"] != TICKS)
    whole, priced = Summary(meter=on.meter()), Spent(Meter(on.cost(), GPUS, PRICED))
    simulate(on, work.stream(), into=Both(whole, priced))
    felt = whole.full()
    row = {name: felt[name] for name in (*chosen.FELT, "minutes", "joules_per_request", "watts_per_gpu")}
    return row | {PRICE: felt["joules_per_request"] + (priced.joules - whole.joules) / whole.served}


# ---------------------------------------------------------------- what it shows


@kept("engine-replayed")  # its picture and claims ask for it many times
def stretches(choice: int = 0) -> pd.DataFrame:
    """A row a workload, way, promise and stretch: the highest rate that is kept, and requests a kilojoule at it.
    `choice` 1 takes the other of two knobs that were equal on the beginning, where there is one."""
    runs = read("engine-replayed").query("arrivals == @RECORDED").groupby(["workload", "way", "knob", "stretch"])
    rows = []
    for workload, way, promise in product(NAMES, WAYS, PROMISES):
        for knob in tied()[workload, way][promise][choice : choice + 1]:
            for stretch in following(workload):
                mine = runs.get_group((workload, way, knob, stretch))
                qps = edge(mine, workload, promise)
                joules = mine.set_index("qps").reindex([qps])[["joules_per_request", PRICE]].iloc[0]
                rows.append((workload, way, promise, knob, stretch, qps, *1e3 / joules))
    return pd.DataFrame(rows, columns=[*WHICH, "knob", "stretch", "qps", "requests_per_kilojoule", "by_prices"])


def table() -> pd.DataFrame:
    """A row a workload, way and promise: the mean of the stretches, and the worst and the best of them."""
    groups = stretches().groupby([*WHICH, "knob"], sort=False)
    return groups.agg(
        qps=("qps", "mean"), worst=("qps", "min"), best=("qps", "max"),
        requests_per_kilojoule=("requests_per_kilojoule", "mean"), by_prices=("by_prices", "mean"),
    ).reset_index()  # fmt: skip


def others() -> pd.DataFrame:
    """Where two knobs were equal on the beginning: the mean over the stretches of the one that was chosen, and of the
    other."""
    both = [stretches(choice).groupby([*WHICH, "knob"], sort=False).qps.mean() for choice in (0, 1)]
    mine, other = (mean.rename("qps").reset_index() for mean in both)
    return mine.merge(other, on=WHICH, suffixes=("", "_other"))


def draw(df):
    axes, each, other, even = style.axes(9.5, 3.2, len(NAMES)), stretches(), others(), steady_edges()
    tones = {ONCE: style.WORKERS[0], APART: style.WORKERS[2]}
    for ax, workload in zip(axes, NAMES, strict=True):
        for side, way in zip((-0.19, 0.19), WAYS, strict=True):
            mine, dots, rings = (rows[(rows.workload == workload) & (rows.way == way)] for rows in (df, each, other))
            x = mine.tbt_p99_ms.map(PROMISES.index) + side
            ax.bar(x, mine.qps, 0.36, color=tones[way], label=way)
            ax.plot(dots.tbt_p99_ms.map(PROMISES.index) + side, dots.qps, ".", color=style.INK, markersize=5,
                    label="one stretch")  # fmt: skip
            ax.plot(rings.tbt_p99_ms.map(PROMISES.index) + side, rings.qps_other, "o", color=style.INK,
                    markerfacecolor="none", markersize=9, label="mean with a choice as good")  # fmt: skip
            edges = [even[workload, way, promise] for promise in PROMISES]
            places = [i + side for i in range(len(PROMISES))]
            ax.plot(places, edges, "_", color=style.INK, markersize=24, markeredgewidth=2, label="steady arrivals")
        ax.set(xticks=range(len(PROMISES)), xticklabels=PROMISES, xlabel="promised P99 TBT, ms")
        ax.set_title(NAMES[workload], fontsize=10)
    axes[0].set_ylabel("requests a second, 8 GPUs, simulated")
    handles, labels = axes[0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    axes[0].figure.legend(once.values(), once.keys(), loc="outside lower center", ncols=len(once), frameon=False)
    return axes[0].figure


def ahead(workload: str, promise: int | str, column: str = "qps") -> float:
    """How many percent more fused chunks serve than prompts apart, or answer with a kilojoule."""
    return aheads(column, int(promise))[workload]


def aheads(column: str = "qps", promise: int = LOOSE) -> pd.Series:
    """The same, a number a service."""
    rates = table().pivot(index="workload", columns=["way", "tbt_p99_ms"], values=column)
    return 100 * (rates[ONCE, promise] / rates[APART, promise] - 1)


def each_ahead(promise: int | str) -> pd.Series:
    """By service and stretch: how many percent more fused chunks serve than prompts apart."""
    mine = stretches().query("tbt_p99_ms == @promise").set_index(["workload", "stretch", "way"]).qps.unstack()
    return 100 * (mine[ONCE] / mine[APART] - 1)


def least_ahead(promise: int | str) -> float:
    """In the service and stretch in which it is least."""
    return float(each_ahead(int(promise)).min())


def ahead_of_other(workload: str, promise: int | str) -> float:
    """`ahead`, if prompts apart had had the other of two splits that were equal on the beginning."""
    mean = table().set_index(WHICH).qps[workload, ONCE, int(promise)]
    return float(100 * (mean / others().set_index(WHICH).qps_other[workload, APART, int(promise)] - 1))


def code_over_nvlink(promise: int | str) -> float:
    """Mean rate of code over the stretches with prompts apart, if keys and values travel over NVLink, with the split
    that served most of the beginning."""
    runs = read("engine-nvlink")
    knob = best(runs[runs.stretch == 0], CODE, int(promise))[0]
    later = runs[(runs.stretch > 0) & (runs.knob == knob)].groupby("stretch")
    return float(pd.Series([edge(mine, CODE, int(promise)) for _, mine in later]).mean())


def code_ahead_of_nvlink(promise: int | str) -> float:
    """`ahead` with code, over that."""
    return float(100 * (table().set_index(WHICH).qps[CODE, ONCE, int(promise)] / code_over_nvlink(promise) - 1))


def steady_edges() -> pd.Series:
    """The highest rates under steady arrivals, for a minute or four."""
    return steady.table().set_index(WHICH).qps


def in_ticks(way: str) -> tuple[float, float]:
    """Mooncake's highest rate at the loose promise in one stretch, spread over the ticks, and if all requests of a tick
    come at once, as the file has them."""
    runs = read("engine-replayed").query("arrivals == @TICKS and way == @way")
    spread = stretches().set_index(["workload", "way", "tbt_p99_ms", "stretch"]).qps
    return float(spread["conversation", way, LOOSE, following("conversation")[0]]), edge(runs, "conversation", LOOSE)


def fullest(workload: str) -> float:
    """How many times more requests share their second with others than evenly spread ones would: most in one second
    over the mean of the stretches."""
    begin, stretches = chosen.STRETCH[workload], following(workload)
    times = read_trace(DATA / "public" / chosen.TRACES[workload])[begin : (stretches[-1] + 1) * begin, 2]
    return float(pd.Series(times.astype(int)).value_counts().max() * (times.max() - times.min()) / len(times))
