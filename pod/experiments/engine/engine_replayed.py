"""The two ways to use eight GPUs, under arrivals as they were recorded, bursts and all.

The clock runs faster until the rate is met, so a burst stays as large and gets as many times shorter. The chunk, or the
split of the GPUs, is the one that served most under steady arrivals (engine-disaggregated): who sets up a server does
not know what will come. A run is judged as a whole, and by each third of its requests.
"""

from bisect import bisect_left
from functools import cache
from itertools import product

import pandas as pd

from pod.data import DATA, read
from pod.experiments.engine import engine_disaggregated as steady
from pod.experiments.engine.engine_disaggregated import APART, GPUS, NAMES, ONCE, STALLED, TTFT, setup
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.energy import PRICED, Meter, Spent
from pod.simulate.run import Both, simulate
from pod.simulate.summary import Parts, Summary
from pod.simulate.workload import Workload, read_trace

FIGURE = Figure(
    id="engine-replayed",
    title="Requests a second that eight H200s serve, arrivals as recorded",
    chapter="15",
    method="as engine-disaggregated, whose best chunk or split is taken; recorded requests and arrivals, time "
    "compressed: 20 and 18 minutes of Azure's, 13 of Mooncake's, whose times are rounded to 3 s and spread over these "
    "again. Bars: the whole run; lines: its worst and its best third",
    data=("engine-replayed", "engine-disaggregated"),
    fitted=True,
)
COMPUTED = "engine-replayed"
KEYS = ("workload", "arrivals", "way", "knob", "qps")
READS = ("operators", "engine-runs", "engine-disaggregated")
ALL, THIRDS = "all", ("first", "second", "third")  # of the requests
TRACES = {"azure-conv": "azure-conv.csv", "azure-code": "azure-code.csv", "conversation": "mooncake.csv"}
REQUESTS = {"azure-conv": 6000, "azure-code": 3000, "conversation": 2400}
TICK = {"conversation": 3.0}  # s to which the file rounds its times: nine of ten requests share theirs with another
WAYS, PROMISES, LOOSE = (ONCE, APART), (14, 50), 50  # P99 TBT, ms
RECORDED, TICKS = "recorded", "in ticks"  # as Mooncake's file has them
RATES = {
    "azure-conv": (40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 150, 160),
    "azure-code": (2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120),
    "conversation": tuple(range(2, 20)),
}
FELT = ("ttft_p99", "tbt_p99", "stalls_200ms")
PRICE = "joules_per_request_by_prices"


@cache
def knobs() -> dict[tuple[str, str], dict[int, int]]:
    """By workload and way: for each promise the chunk or split that served most under steady arrivals."""
    best = steady.table().query("tbt_p99_ms in @PROMISES and way in @WAYS and qps > 0")
    return {which: dict(zip(mine.tbt_p99_ms, mine.knob.astype(int), strict=True))
            for which, mine in best.groupby(["workload", "way"])}  # fmt: skip


def cases() -> list[dict]:
    chosen = {which: sorted(set(knobs()[which].values())) for which in product(NAMES, WAYS)}
    every = [(workload, RECORDED, way, knob) for (workload, way), mine in chosen.items() for knob in mine]
    every += [(workload, TICKS, way, knobs()[workload, way][LOOSE]) for workload in TICK for way in WAYS]
    return [dict(zip(KEYS, case, strict=False)) for case in every]


def arriving(workload: str, arrivals: str, qps: float) -> Workload:
    tick = TICK.get(workload, 0.0) if arrivals == RECORDED else 0.0
    return Workload(str(DATA / "public" / TRACES[workload]), REQUESTS[workload], qps, spread=tick)


def measure(case: dict) -> list[dict]:
    """The rates that decide which promises are kept, by everyone and by each third of the users."""
    workload, tried = case["workload"], {}

    def kept(qps: int, part: str, promise: int) -> bool:
        if qps not in tried:
            tried[qps] = _run(case, qps)
        return _kept(tried[qps], workload, part, promise)

    for promise in _promises(case):
        for part in (ALL, *THIRDS) if case["arrivals"] == RECORDED else (ALL,):
            bisect_left(RATES[workload], True, key=lambda qps, p=part, most=promise: not kept(qps, p, most))
    return [{"qps": qps} | tried[qps] for qps in sorted(tried)]


def _promises(case: dict) -> list[int]:
    """For which this chunk or split is the one."""
    if case["arrivals"] != RECORDED:
        return [LOOSE]
    return [promise for promise, knob in knobs()[case["workload"], case["way"]].items() if knob == case["knob"]]


def _run(case: dict, qps: int) -> dict[str, float]:
    on, work = setup(case["way"], case["knob"]), arriving(case["workload"], case["arrivals"], qps)
    whole, priced = Summary(meter=on.meter()), Spent(Meter(on.cost(), GPUS, PRICED))
    thirds = Parts([Summary() for _ in THIRDS], lambda id_: id_ * len(THIRDS) // work.count)
    simulate(on, work.stream(), into=Both(whole, priced, thirds))
    felt = whole.full()
    row = {name: felt[name] for name in (*FELT, "minutes", "joules_per_request", "watts_per_gpu")}
    row |= {f"{name}_{part}": mine.metrics()[name] for part, mine in zip(THIRDS, thirds.into, strict=True)
            for name in FELT}  # fmt: skip
    return row | {PRICE: felt["joules_per_request"] + (priced.joules - whole.joules) / whole.served}


def _kept(row, workload: str, part: str, promise: int):
    """Whether everybody's promises are kept, or a third's; of a row or of a table of rows."""
    first, gap, stalled = (row[name if part == ALL else f"{name}_{part}"] for name in FELT)
    return (first <= TTFT[workload]) & (1e3 * gap <= promise) & (stalled <= STALLED)


# ---------------------------------------------------------------- what it shows


def table():
    """A row a workload, way and promise: the highest rates that are kept, by everyone and in the worst and the best
    third, and requests a kilojoule at the first."""
    runs = read("engine-replayed").query("arrivals == @RECORDED")
    rows = []
    for workload in NAMES:
        for way in WAYS:
            for promise, knob in knobs()[workload, way].items():
                mine = runs[(runs.workload == workload) & (runs.way == way) & (runs.knob == knob)]
                whole, *thirds = (edge(mine, workload, part, promise) for part in (ALL, *THIRDS))
                joules = mine.set_index("qps").reindex([whole])[["joules_per_request", PRICE]].iloc[0]
                rows.append((workload, way, promise, knob, whole, min(thirds), max(thirds), *1e3 / joules))
    return pd.DataFrame(rows, columns=["workload", "way", "tbt_p99_ms", "knob", "qps", "worst_third", "best_third",
                                       "requests_per_kilojoule", "by_prices"])  # fmt: skip


def edge(runs: pd.DataFrame, workload: str, part: str, promise: int) -> float:
    """The highest rate that keeps a promise, as all lower ones that were tried do; 0 where none does."""
    runs = runs.sort_values("qps", kind="stable")
    kept = runs.qps[_kept(runs, workload, part, promise).cummin()]
    return float(kept.max()) if len(kept) else 0.0


def draw(df):
    axes = style.axes(9.5, 3.2, len(NAMES))
    tones = {ONCE: style.WORKERS[0], APART: style.WORKERS[2]}
    for ax, workload in zip(axes, NAMES, strict=True):
        for side, way in zip((-0.19, 0.19), WAYS, strict=True):
            mine = df[(df.workload == workload) & (df.way == way)]
            x = mine.tbt_p99_ms.map(PROMISES.index) + side
            ax.bar(x, mine.qps, 0.36, color=tones[way], label=way)
            ax.vlines(x, mine.worst_third, mine.best_third, color=style.INK, linewidth=1.5)
        ax.set(xticks=range(len(PROMISES)), xticklabels=PROMISES, xlabel="promised P99 TBT, ms")
        ax.set_title(NAMES[workload], fontsize=10)
    axes[0].set_ylabel("requests a second, 8 GPUs")
    style.legend(axes[-1], loc="upper left")
    return axes[0].figure


def ahead(workload: str, promise: int | str, column: str = "qps") -> float:
    """How many percent more fused chunks serve than prompts apart, or answer with a kilojoule."""
    rates = table().set_index(["workload", "way", "tbt_p99_ms"])[column]
    return 100 * (rates[workload, ONCE, int(promise)] / rates[workload, APART, int(promise)] - 1)


def aheads(column: str = "qps") -> pd.Series:
    """The same at the loose promise, a number a service."""
    return pd.Series({workload: ahead(workload, LOOSE, column) for workload in NAMES})


def steady_edge(workload: str, way: str, promise: int = LOOSE) -> float:
    """The highest rate under steady arrivals, for half a minute."""
    return float(steady.table().set_index(["workload", "way", "tbt_p99_ms"]).qps[workload, way, promise])


def in_ticks(way: str) -> float:
    """Mooncake's highest rate at the loose promise if all requests of a tick come at once, as the file has them."""
    runs = read("engine-replayed").query("arrivals == @TICKS and way == @way")
    return edge(runs, "conversation", ALL, LOOSE)


def longest(workload: str) -> float:
    """How many times more requests share their second with others than evenly spread ones would: most in one second
    over the mean of the recording."""
    times = read_trace(DATA / "public" / TRACES[workload])[: REQUESTS[workload], 2]
    return float(pd.Series(times.astype(int)).value_counts().max() * times.max() / len(times))
