"""What engine-disaggregated shows for one draw of requests and arrivals, for more: how far rates lie apart.

Lengths and arrivals are drawn anew; the chunk or the split is again the best of each draw.
"""

from pod.experiments.engine.chosen import decisive, felt_in
from pod.experiments.engine.engine_disaggregated import DRAWN, KNOBS, RATES, SECONDS, TURN, setup
from pod.simulate.run import Run
from pod.simulate.workload import Workload

COMPUTED = "engine-seeds"
KEYS, READS = ("workload", "way", "knob", "seed", "qps"), ("operators", "engine-runs")
SEEDS = (2, 3, 4)  # the picture itself has seed 1


def cases() -> list[dict]:
    return [dict(zip(KEYS, (workload, way, knob, seed), strict=False))
            for workload in RATES for seed in SEEDS for way in KNOBS if way != TURN for knob in KNOBS[way]]  # fmt: skip


def measure(case: dict) -> list[dict]:
    """The rates that decide which promises are kept."""
    on = setup(case["way"], case["knob"])
    return decisive(case["workload"], DRAWN, lambda qps: felt_in(Run(on, _drawn(case, qps))), RATES[case["workload"]])


def _drawn(case: dict, qps: int) -> Workload:
    return Workload(case["workload"], SECONDS * qps, qps, seed=case["seed"])
