"""Every kernel family on random hybrid batches: how many were right, and how exact."""

from __future__ import annotations

from pod.measure import check_kernels

DOC = "random batches of each kernel family against float64, on poisoned memory, with replays of a CUDA graph."
KEYS = ("family", "batches", "seed")
UNITS = ("hybrid", "hopper", "lean")
REPEATS = 3
TIMER, L2 = "no times: results are compared", "warm"


def cases() -> list[dict]:
    """`family`: what check_kernels calls --method; "any" is any method of the sm_80 family."""
    rows = (("any", 2000, 0), ("hopper", 2000, 7), ("lean", 2000, 3))
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    return check_kernels.checked(case["family"], case["batches"], case["seed"], REPEATS)
