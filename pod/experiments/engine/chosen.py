"""With which chunk, or which split of the GPUs, eight GPUs serve most of the beginning of a recording.

Whoever sets servers up knows what came until then. What comes next judges them: engine_replayed.py.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import pandas as pd

from pod import data
from pod.experiments.engine.engine_disaggregated import APART, KNOBS, NAMES, ONCE, STALLED, TTFT, setup
from pod.simulate.run import Run
from pod.simulate.workload import Workload, read_trace

COMPUTED = "engine-chosen"
KEYS, READS = ("workload", "way", "knob", "qps"), ("operators", "engine-runs")
TRACES = {"azure-conv": "azure-conv.csv", "azure-code": "azure-code.csv", "conversation": "mooncake.csv"}
STRETCH = {"azure-conv": 3000, "azure-code": 1500, "conversation": 1200}  # requests
MOST = 5  # stretches that are judged
TICK = {"conversation": 3.0}  # s to which the file rounds its times: nine of ten requests share theirs with another
WAYS, PROMISES = (ONCE, APART), (14, 50)  # P99 TBT, ms
RATES = {
    "azure-conv": tuple(range(40, 201, 10)),
    "azure-code": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120),
    "conversation": tuple(range(1, 21)),
}
FELT = ("ttft_p99", "tbt_p99", "stalls_200ms")


def cases() -> list[dict]:
    return [{"workload": workload, "way": way, "knob": knob}
            for workload in NAMES for way in WAYS for knob in KNOBS[way]]  # fmt: skip


def measure(case: dict) -> list[dict]:
    on = setup(case["way"], case["knob"])
    return decisive(case["workload"], PROMISES, lambda qps: felt_in(Run(on, arriving(case["workload"], 0, qps))),
                    RATES[case["workload"]])  # fmt: skip


def felt_in(run: Run) -> dict[str, float]:
    metrics = run.metrics()
    return {name: metrics[name] for name in FELT}


def arriving(workload: str, stretch: int, qps: float, spread: bool = True) -> Workload:
    """A stretch of the recording, from 0 on, time compressed to this mean rate."""
    count, tick = STRETCH[workload], TICK.get(workload, 0.0) if spread else 0.0
    return Workload(str(data.DATA / "public" / TRACES[workload]), count, qps, spread=tick, skip=stretch * count)


@cache
def following(workload: str) -> range:
    """The stretches of a recording that had no say in the choice: whole ones after the first, five at most."""
    whole = len(read_trace(data.DATA / "public" / TRACES[workload])) // STRETCH[workload]
    return range(1, min(whole, 1 + MOST))


def decisive(workload: str, promises: Iterable[int], felt: Callable[[int], dict[str, float]],
             rates: Sequence[int]) -> list[dict]:  # fmt: skip
    """What is felt at those of the rates that decide which promises are kept."""
    tried: dict[int, dict[str, float]] = {}

    def broken(qps: int, promise: int) -> bool:
        if qps not in tried:
            tried[qps] = felt(qps)
        return not kept(tried[qps], workload, promise)

    for promise in promises:
        bisect_left(rates, True, key=lambda qps, most=promise: broken(qps, most))
    return [{"qps": qps} | tried[qps] for qps in sorted(tried)]


def kept(row, workload: str, promise: int):
    """Whether a promise is kept; of a row or of a table of rows."""
    first, gap, stalled = (row[name] for name in FELT)
    return (first <= TTFT[workload]) & (1e3 * gap <= promise) & (stalled <= STALLED)


def edge(runs: pd.DataFrame, workload: str, promise: int) -> float:
    """The highest rate that keeps a promise, as all lower ones that were tried do; 0 where none does."""
    runs = runs.sort_values("qps", kind="stable")
    fine = runs.qps[kept(runs, workload, promise).cummin()]
    return float(fine.max()) if len(fine) else 0.0


def knobs() -> dict[tuple[str, str], dict[int, int]]:
    """By workload and way: for each promise the chunk or split that serves most of the beginning; among equals the one
    that has most to spare at its highest rate."""
    return {which: {promise: equals[0] for promise, equals in mine.items()} for which, mine in tied().items()}


@data.kept("engine-chosen")
def tied() -> dict[tuple[str, str], dict[int, tuple[int, ...]]]:
    """The same with all that serve as much of the beginning, most to spare first."""
    runs = data.read("engine-chosen")
    return {(workload, way): {promise: best(mine, workload, promise) for promise in PROMISES}
            for (workload, way), mine in runs.groupby(["workload", "way"])}  # fmt: skip


def best(runs: pd.DataFrame, workload: str, promise: int) -> tuple[int, ...]:
    rates = {int(knob): edge(mine, workload, promise) for knob, mine in runs.groupby("knob")}
    most = max(rates.values())
    equals = [knob for knob, rate in rates.items() if rate == most]

    def used(knob: int) -> float:
        """The larger share of a bound that is taken at the highest rate."""
        felt = runs[(runs.knob == knob) & (runs.qps == most)]
        return max([0.0, *(felt.ttft_p99 / TTFT[workload]), *(1e3 * felt.tbt_p99 / promise)])

    return tuple(sorted(equals, key=used))
