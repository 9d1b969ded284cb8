"""What the SMs hold while the two loops of Figure 7 run, method by method, at equal halves."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from pod import micro
from pod.measure.suites import micro_fusion as suite
from pod.trace import held

DOC = "SMs that hold compute, memory, both or nothing, at 50 moments of each run of Figure 7's loops."
KEYS, WHOLE = ("method", "moment"), ("method",)
UNITS = suite.UNITS
REPEATS = 1
TIMER, L2 = "%globaltimer at the start and the end of every CTA", "warm"
MOMENTS = 50
HELD = ("nothing", "compute", "memory", "both")


def cases() -> list[dict]:
    return [{"method": method, "moment": i} for method in micro.METHODS for i in range(MOMENTS)]


def measure(case: dict) -> dict:
    times, counts = _held(case["method"])
    i = int(case["moment"])
    return {"us": round(float(times[i]), 3), **dict(zip(HELD, map(int, counts[:, i]), strict=True))}


@lru_cache
def _held(method: str):
    import numpy as np

    work = replace(
        suite.work(suite.FIGURE7, method), multiplications=suite.unrolled(suite.multiplications(suite.FIGURE7))
    )
    arrays = suite.data(work.compute, work.memory)
    for _ in range(3):  # the last of three: code and lists are warm
        trace = micro.spans(work, method, arrays)
    times = (np.arange(MOMENTS) + 0.5) * trace["end"].max() / MOMENTS
    return times, held(trace, times, micro.ALONE)
