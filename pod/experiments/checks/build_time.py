"""How long the first call waits for the compiler, and the next process for the cache.

Measured: seconds to build the kernels of one kind of tensor with an empty cache, and to load them from the cache.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial

from pod.data import read
from pod.files import ROOT
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Seconds until the kernels of a call are loaded: compiled, and from the cache",
    says="A kernel is compiled once, in seconds, and comes from the cache in milliseconds",
    chapter="08",
    method="Wall clock in a process of its own, with an empty cache and again. Hopper: for all tensors.",
    data=("build",),
)
RECORDING = "build"
KEYS = ("family", "kind")
UNITS = ("hybrid", "hopper")
REPEATS = 1
TIMER, L2 = "wall clock of kernels.operator in a process of its own", "warm"
CALL = """
import importlib, sys, time, torch
from pod.kernels import operator
_, module, name, kind = sys.argv
family = getattr(importlib.import_module(module), name)
device = torch.device("cuda", torch.cuda.current_device())
start = time.perf_counter()
operator(family, kind, device)
print(time.perf_counter() - start)
"""
FAMILIES = {"sm_80": ("pod.kernels.sm80", "HYBRID"), "hopper": ("pod.kernels.sm90", "HOPPER")}


def cases() -> list[dict]:
    """What a call takes that names nothing."""
    return [dict(zip(KEYS, case, strict=True)) for case in (("sm_80", "bfloat16_128"), ("hopper", "bfloat16_128_8"))]


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


COLUMNS = ("cold_s", "cached_s")
NAMES = {"sm_80": "five methods, bf16, 128", "hopper": "Hopper kernel"}


def table():
    """One row a family: cores of the machine, seconds with an empty cache and with a full one."""
    df = read("build")
    return df.assign(family=df.family.map(NAMES))[["family", "cores", *COLUMNS]]


def draw(df):
    ax = style.axes(8, 1.9)
    for i, row in enumerate(df.itertuples()):
        ax.barh(i, row.cold_s, 0.6, color=style.WORKERS[1])
        cached = f"from the cache {1000 * row.cached_s:.0f} ms"
        ax.text(row.cold_s, i, f" {row.cold_s:.0f} s; {cached}", va="center", fontsize=9)
    ax.set_yticks(range(len(df)), df.family)
    ax.invert_yaxis()
    ax.set(xlabel=f"seconds with an empty cache, {df.cores.iloc[0]} cores", xlim=(0, 1.5 * df.cold_s.max()))
    return ax.figure


def _slowest(column: str) -> float:
    return float(table()[column].max())


cold, cached = partial(_slowest, "cold_s"), partial(_slowest, "cached_s")  # seconds of a build, of a load
