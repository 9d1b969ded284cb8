"""engine-fleet's one server once more, tried for eight times as many requests: what a short trial promises too much.

A trial ends with its last request. A short one ends before the queue of a server that is too busy has grown.
"""

from pod.experiments.engine import engine_fleet
from pod.experiments.engine.engine_fleet import SEEDS, SLOWDOWNS

COMPUTED = "engine-trials"
KEYS, READS = ("requests", "slowdown", "seed"), ()
LONG = 1200


def cases() -> list[dict]:
    return [dict(zip(KEYS, (LONG, slowdown, seed), strict=True)) for slowdown in SLOWDOWNS for seed in SEEDS]


def measure(case: dict) -> dict[str, float]:
    return engine_fleet.searched(engine_fleet.ONE, case["slowdown"], case["seed"], case["requests"])
