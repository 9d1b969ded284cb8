"""How long the first call waits for the compiler, and how long the next process waits for the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from pod.data import ROOT

DOC = "seconds to build the kernels of one kind of tensor with an empty cache, and to load them from the cache."
KEYS = ("family", "kind")
UNITS = ("hybrid", "hopper")
REPEATS = 1
TIMER, L2 = "wall clock of kernels.operator in a process of its own", "warm"
CALL = """
import importlib, sys, time, torch
from pod import kernels
_, module, name, kind = sys.argv
family = getattr(importlib.import_module(module), name)
device = torch.device("cuda", torch.cuda.current_device())
start = time.perf_counter()
kernels.operator(family, kind, device)
print(time.perf_counter() - start)
"""
FAMILIES = {"sm_80": ("pod.ampere", "HYBRID"), "hopper": ("pod.hopper", "HOPPER")}


def cases() -> list[dict]:
    """What a call takes that names nothing; the Hopper kernel has one kind, which holds every dtype and head_dim."""
    return [dict(zip(KEYS, case, strict=True)) for case in (("sm_80", "bfloat16_128"), ("hopper", ""))]


def measure(case: dict) -> dict:
    with tempfile.TemporaryDirectory() as cache:
        cold, cached = (_seconds(cache, case) for _ in range(2))
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())  # macOS has it not
    return {"cores": len(cores), "cold_s": cold, "cached_s": cached}


def _seconds(cache: str, case: dict) -> float:
    command = [sys.executable, "-c", CALL, *FAMILIES[case["family"]], case["kind"]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "POD_CACHE": cache})
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return round(float(done.stdout), 3)
