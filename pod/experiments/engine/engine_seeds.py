"""What engine-disaggregated shows for one draw of requests and arrivals, for more: how far rates lie apart.

Lengths and arrivals are drawn anew; the chunk or the split is again the best of each draw.
"""

import pandas as pd

from pod.experiments.engine.chosen import felt_in, kept
from pod.experiments.engine.engine_disaggregated import DRAWN, KNOBS, RATES, SECONDS, TURN, setup, table
from pod.simulate.run import Run
from pod.simulate.workload import Workload

COMPUTED = "engine-seeds"
KEYS, READS = ("workload", "way", "seed", "knob", "qps"), ("operators", "engine-runs", "engine-disaggregated")
SEEDS = (2, 3, 4)  # the picture itself has seed 1


def cases() -> list[dict]:
    return [dict(zip(KEYS, (workload, way, seed), strict=False))
            for workload in RATES for way in KNOBS if way != TURN for seed in SEEDS]  # fmt: skip


def measure(case: dict) -> list[dict]:
    """The rates that decide: from the picture's on, up while any chunk or split keeps the next one, else down."""
    workload, way = case["workload"], case["way"]
    rates, tried = RATES[workload], {}

    def keeps(knob: int, at: int, promise: int) -> bool:
        below = (felt for (one, low), felt in tried.items() if one == knob and low <= at)
        if at == len(rates) or not all(kept(felt, workload, promise) for felt in below):
            return False
        if (knob, at) not in tried:
            work = Workload(workload, SECONDS[workload] * rates[at], rates[at], seed=case["seed"])
            tried[knob, at] = felt_in(Run(setup(way, knob), work))
        return kept(tried[knob, at], workload, promise)

    for promise in DRAWN:
        first, at = _shown(workload, way, promise)
        knobs = sorted(KNOBS[way], key=lambda knob, first=first: abs(KNOBS[way].index(knob) - KNOBS[way].index(first)))
        while at >= 0 and not any(keeps(knob, at, promise) for knob in knobs):
            at -= 1
        while any(keeps(knob, at + 1, promise) for knob in knobs):
            at += 1
    return [{"knob": knob, "qps": rates[at]} | felt for (knob, at), felt in sorted(tried.items())]


def _shown(workload: str, way: str, promise: int) -> tuple[int, int]:
    """The chunk or split that serves most in the picture, and the place of its rate; -1 if none keeps the promise."""
    row = table().set_index(["workload", "way", "tbt_p99_ms"]).loc[(workload, way, promise)]
    if pd.isna(row.knob):
        return KNOBS[way][0], -1
    return int(row.knob), RATES[workload].index(int(row.qps))
