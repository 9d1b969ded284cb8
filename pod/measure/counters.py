"""The GPU's own counters, read by Nsight Compute (ncu) around single calls.

ncu runs a program and stops at each kernel. Here the program is this module again: `python -m pod.measure.counters M`
makes every call of the suite M once. A one-element fill goes before each call, so that the list of kernels that ncu
writes falls apart into calls.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from pod.measure.provenance import ROOT

METRICS = {
    "us": "gpu__time_duration.sum",
    "compute": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
MARKER = "FillFunctor"  # in the name of the kernel of Tensor.fill_
SECONDS = 240


def profile(suite: str) -> list[dict[str, float]]:
    """One row of METRICS for each of `suite`.calls(): means over its kernels by their time, and the sum of times."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ValueError("no ncu here: Nsight Compute reads the counters")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "counters.csv")
        command = [
            ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log), "--profile-from-start",
            "off", "--clock-control", "none", "--target-processes", "application-only", "--metrics",
            ",".join(METRICS.values()), sys.executable, "-m", "pod.measure.counters", suite,
        ]  # fmt: skip
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": paths}
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
        lines = log.read_text().splitlines() if log.exists() else []
    kernels = read([line for line in lines if line.startswith('"')])
    if done.returncode or not kernels:
        errors = [line for line in (*lines, *done.stderr.splitlines()) if "error" in line.lower()]
        raise ValueError(f"ncu read no counters: {errors[-1] if errors else f'exit status {done.returncode}'}")
    return [_mean(call) if call else {} for call in calls_of(kernels)]


def read(lines: list[str]) -> list[dict]:
    """ncu's table: one row a kernel, after a row of units; numbers with commas, times in nanoseconds."""
    rows = [row for row in csv.DictReader(lines) if row["ID"]]
    numbers = [{name: float(row[metric].replace(",", "")) for name, metric in METRICS.items()} for row in rows]
    return [{"kernel": row["Kernel Name"]} | n | {"us": n["us"] / 1000} for row, n in zip(rows, numbers, strict=True)]


def calls_of(kernels: list[dict]) -> list[list[dict]]:
    """The kernels of each call: those between one marker and the next."""
    calls: list[list[dict]] = []
    for kernel in kernels:
        if MARKER in kernel["kernel"]:
            calls.append([])
        else:
            calls[-1].append(kernel)
    return calls


def _mean(kernels: list[dict]) -> dict[str, float]:
    total = sum(kernel["us"] for kernel in kernels)
    return {"us": total} | {name: sum(k[name] * k["us"] for k in kernels) / total for name in METRICS if name != "us"}


def main(suite: str) -> None:
    """What ncu runs."""
    import torch

    marker = torch.zeros(1, device="cuda")
    for call in import_module(suite).calls():
        call()  # builds, plans and warms up
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        marker.fill_(1)
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
