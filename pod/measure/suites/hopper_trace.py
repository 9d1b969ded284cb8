"""When each role of each SM began and ended, for one balanced hybrid batch."""

from __future__ import annotations

from functools import lru_cache

from pod.batch import HybridBatch

DOC = "start and end of every role on every SM, fused and the two halves alone (2K @ 8K beside 128 x 4K)."
KEYS, WHOLE = ("run", "sm", "role"), ("run",)
UNITS = ("hopper",)
REPEATS = 1
K = 1024
RUNS = ("fused", "prefill", "decode")
SMS, ROLES = 132, 5


def cases() -> list[dict]:
    return [{"run": run, "sm": sm, "role": role} for run in RUNS for sm in range(SMS) for role in range(ROLES)]


def measure(case: dict) -> dict:
    start, end = _stamps(case["run"])[int(case["sm"])][int(case["role"])]
    return {"start_us": start, "end_us": end}


@lru_cache
def _stamps(run: str):
    """Microseconds after the first role of any SM began."""
    from pod import hopper

    whole = HybridBatch.of(2 * K, 8 * K, 128, 4 * K, 32, 8)
    batch = whole if run == "fused" else whole.prefill if run == "prefill" else whole.decode
    plan, (q, k, v, table) = hopper.make_plan(batch), batch.tensors(device="cuda")
    for _ in range(3):  # the last of three: code and lists are warm, as in a model's layers
        _, stamps = hopper.run(plan, q, k, v, table, trace=True)
    stamps = stamps.cpu()
    return ((stamps - stamps[stamps > 0].min()) / 1000).tolist()
