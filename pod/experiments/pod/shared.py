"""The runs of POD §5.3, as tables and claims look them up in data/computed/online.csv."""

from functools import cache

from pod.data import read
from pod.experiments.pod.pod_12 import overlap_hidden
from pod.simulate.scenarios import POD

KEYS = ("workload", "qps", "chunk", "system", "overlap", "slowdown")


def of(workload: str, qps: float, chunk: int, system: str, overlap: float | None = None, slowdown: float = 1.0) -> dict:
    """The metrics of one run. POD hides what our own kernel hides, unless `overlap` says otherwise."""
    hides = (overlap or overlap_hidden()) if system == POD else 0.0
    return _runs()[workload, qps, chunk, system, hides, slowdown]


@cache
def _runs() -> dict[tuple, dict[str, float]]:
    return read("online").set_index(list(KEYS)).to_dict("index")
