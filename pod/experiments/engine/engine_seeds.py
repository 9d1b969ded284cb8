"""What engine-disaggregated shows of chats for one draw of requests and arrivals, for more: how far rates lie apart.

Lengths and arrivals are drawn anew; the chunk or the split is again the best of each draw.
"""

from pod.experiments.engine.chosen import FELT, decisive
from pod.experiments.engine.engine_disaggregated import APART, CHATS, DRAWN, KNOBS, ONCE, RATES, SECONDS, setup
from pod.simulate.run import Run
from pod.simulate.workload import Workload

COMPUTED = "engine-seeds"
KEYS, READS = ("workload", "way", "knob", "seed", "qps"), ("operators", "engine-runs")
SEEDS = (2, 3, 4)  # the picture itself has seed 1


def cases() -> list[dict]:
    return [dict(zip(KEYS, (CHATS, way, knob, seed), strict=False))
            for seed in SEEDS for way in (ONCE, APART) for knob in KNOBS[way]]  # fmt: skip


def measure(case: dict) -> list[dict]:
    """The rates that decide which promises are kept."""
    return decisive(case["workload"], DRAWN, lambda qps: _felt(case, qps), RATES[case["workload"]])


def _felt(case: dict, qps: int) -> dict[str, float]:
    drawn = Workload(case["workload"], SECONDS * qps, qps, seed=case["seed"])
    metrics = Run(setup(case["way"], case["knob"]), drawn).metrics()
    return {name: metrics[name] for name in FELT}
