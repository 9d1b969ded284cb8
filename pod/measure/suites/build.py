"""How long the first call waits for the compiler, and how long the next process waits for the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from pod.measure.provenance import ROOT
from pod.measure.suites import METHODS_CSRC

DOC = "seconds to build the kernels of one kind of tensor with an empty cache, and to load them from the cache."
KEYS = ("family", "kind")
CSRC = METHODS_CSRC
REPEATS = 1
TIMER, L2 = "wall clock of kernels.operator in a process of its own", "warm"
CALL = """
import importlib, sys, time, torch
from pathlib import Path
from pod import kernels
_, cache, module, name, kind = sys.argv
kernels.CACHE, family = Path(cache), getattr(importlib.import_module(module), name)
device = torch.device("cuda", torch.cuda.current_device())
start = time.perf_counter()
kernels.operator(family, kind, device)
print(time.perf_counter() - start)
"""
FAMILIES = {"sm_80": ("pod.ampere", "HYBRID")}


def cases() -> list[dict]:
    return [{"family": "sm_80", "kind": "bfloat16_128"}]  # what a call takes that names nothing


def measure(case: dict) -> dict:
    with tempfile.TemporaryDirectory() as cache:
        cold, cached = (_seconds(cache, case) for _ in range(2))
    return {"cores": os.cpu_count(), "cold_s": cold, "cached_s": cached}


def _seconds(cache: str, case: dict) -> float:
    command = [sys.executable, "-c", CALL, cache, *FAMILIES[case["family"]], case["kind"]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return round(float(done.stdout), 3)
