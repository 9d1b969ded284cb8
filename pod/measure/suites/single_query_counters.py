"""What the GPU's counters say of vLLM's first decode kernel, version by version, and of today's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from pod.measure import counters, peers
from pod.measure.suites import single_query

DOC = "counters (ncu) of six versions of vLLM's first decode kernel and of Hopper decode: rates, issue slots, stalls."
KEYS = ("batch", "kernel")
UNITS = ("single-query", "hopper")
REPEATS = 1
BATCHES = ("144 chats", "256 x 512", "1 x 2048")
KERNELS: dict[str, Callable] = single_query.IDEAS | {"hopper": peers.ours}
STALLS = ("long_scoreboard", "short_scoreboard", "barrier", "wait", "lg_throttle", "mio_throttle", "math_pipe_throttle")
METRICS = counters.METRICS | {
    "l1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram_bytes": "dram__bytes_read.sum",
    "instructions": "smsp__inst_executed.sum",
    **{f"stall_{name}": f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in STALLS},
}


def cases() -> list[dict]:
    return [{"batch": batch, "kernel": kernel} for batch in BATCHES for kernel in KERNELS]


def measure(case: dict) -> dict:
    """Percent of peaks; stall_x is how many warps stand for reason x in an average cycle with an instruction issued."""
    return {name: round(value, 3) for name, value in _counters()[cases().index(case)].items()}


@lru_cache
def _counters() -> list[dict[str, float]]:
    return counters.profile(__name__, METRICS)


def calls() -> Iterator[Callable]:
    for case in cases():
        yield KERNELS[case["kernel"]](peers.Setting(single_query.batch(case["batch"])))
