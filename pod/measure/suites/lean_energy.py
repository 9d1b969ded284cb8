"""LeanAttention's figure 13: the energy that a decode takes, by NVML's counter, under each way of cutting it."""

from __future__ import annotations

import time
from functools import cache, partial

from pod.batch import HybridBatch
from pod.measure import peers, timing
from pod.measure.provenance import nvml_device
from pod.measure.suites import lean

DOC = "energy of decode, 56 heads, one request, for stream-K, FlashDecoding's splits and FlashAttention-3."
KEYS = ("context", "way")
UNITS = lean.UNITS
REPEATS, SECONDS = 1, 5.2
K = lean.K
WAYS = ("lean", "rule_256", "rule_now", "fa3", "paper_lean", "paper_rule_256")


def cases() -> list[dict]:
    return [{"context": n * K, "way": way} for n in (32, 128, 512) for way in WAYS]


@cache
def idle_watts() -> float:
    """What the GPU draws when nothing runs, its memory still in use."""
    import pynvml

    pynvml.nvmlInit()
    device = nvml_device(pynvml)
    time.sleep(0.5)
    before, begin = pynvml.nvmlDeviceGetTotalEnergyConsumption(device), time.perf_counter()
    time.sleep(1.5)
    return (pynvml.nvmlDeviceGetTotalEnergyConsumption(device) - before) / (time.perf_counter() - begin) / 1e3


def measure(case: dict) -> dict:
    way, batch = case["way"], HybridBatch((1,), (int(case["context"]),), 56, 56, 64, dtype="float16")
    idle, setting = idle_watts(), peers.Setting(batch)
    parts = lean.chosen_splits(batch).get(way.removeprefix("paper_"), "stream-k")
    paper = {"worker": "cta128"} if way.startswith("paper") else {}
    make = peers.fa3_decode if way == "fa3" else partial(lean.lean, splits=parts, **paper)
    spent = timing.energy(make(setting), SECONDS)
    return {"kv_bytes": batch.kv_bytes, "parts": parts, "ms": round(spent.ms, 5), "watts": round(spent.watts, 1),
            "millijoules": round(spent.millijoules, 3), "sm_clock_mhz": spent.sm_clock_mhz,
            "idle_watts": round(idle, 1)}  # fmt: skip
