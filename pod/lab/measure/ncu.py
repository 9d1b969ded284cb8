"""The GPU's own counters, read by Nsight Compute (ncu) around single calls.

ncu runs a program and stops at each kernel. Here the program is this module again: `python -m pod.lab.measure.ncu M`
makes every call of the page M once. A fill of one float64, which no attention uses, goes before each call, so that the
list of kernels that ncu writes falls apart into calls.
"""

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from pod.files import ROOT

METRICS = {
    "us": "gpu__time_duration.sum",
    "compute": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
MARKER = "FillFunctor<double>"  # in the name of the kernel of Tensor.fill_
SECONDS = 240


def profile(page: str, metrics: dict[str, str] = METRICS) -> list[dict[str, float]]:
    """One row of `metrics` for each of `page`.calls(): means over its kernels by their time, and the sum of times."""
    lines = _ncu(page, "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics.values()))
    return [_mean(call) if call else {} for call in calls_of(read(lines, metrics))]


def stalls(page: str) -> list[list[dict]]:
    """Of each of `page`.calls() the instructions in program order, with `samples`: how often a warp stood there.

    A call must be one kernel, and another one each time: the source page lists every kernel twice.
    """
    lines = _ncu(page, "--page", "source", "--print-source", "sass", "--section", "SourceCounters")
    found = {kernel["kernel"]: kernel["instructions"] for kernel in read_source(lines)}
    return [instructions for name, instructions in found.items() if MARKER not in name]


def _ncu(page: str, *options: str) -> list[str]:
    """Run all calls of a page under ncu. Returns the lines of its table."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ValueError("no ncu here: Nsight Compute reads the counters")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "counters.csv")
        command = [
            ncu, "--csv", "--log-file", str(log), "--profile-from-start", "off", "--clock-control", "none",
            "--target-processes", "application-only", *options, sys.executable, "-m", "pod.lab.measure.ncu", page,
        ]  # fmt: skip
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": paths}
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
        lines = log.read_text().splitlines() if log.exists() else []
    table = [line for line in lines if line and not line.startswith("==")]  # the others are ncu's own words
    if done.returncode or not table:
        errors = [line for line in (*lines, *done.stderr.splitlines()) if "error" in line.lower()]
        raise ValueError(f"ncu read no counters: {errors[-1] if errors else f'exit status {done.returncode}'}")
    return table


def read(lines: list[str], metrics: dict[str, str] = METRICS) -> list[dict]:
    """ncu's table: one row a kernel, after a row of units; numbers with commas, times in nanoseconds."""
    rows = [row for row in csv.DictReader(lines) if row["ID"]]
    numbers = [{name: float(row[metric].replace(",", "")) for name, metric in metrics.items()} for row in rows]
    return [{"kernel": row["Kernel Name"]} | n | {"us": n["us"] / 1000} for row, n in zip(rows, numbers, strict=True)]


def read_source(lines: list[str]) -> list[dict]:
    """ncu's source page: for each kernel its name, a row of titles, and a row an instruction, its address first."""
    kernels: list[dict] = []
    for row in csv.reader(lines):
        if row[0] == "Kernel Name":
            kernels.append({"kernel": row[1], "instructions": []})
        elif "Source" in row:
            sass, samples = row.index("Source"), row.index("Warp Stall Sampling (All Samples)")
        elif row[0].startswith("0x"):
            count = float(row[samples].replace(",", "") or 0)
            kernels[-1]["instructions"].append({"sass": " ".join(row[sass].split()), "samples": count})
    return kernels


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
    total, names = sum(kernel["us"] for kernel in kernels), [n for n in kernels[0] if n not in ("kernel", "us")]
    return {"us": total} | {name: sum(k[name] * k["us"] for k in kernels) / total for name in names}


def main(page: str) -> None:
    """What ncu runs."""
    import torch

    marker = torch.zeros(1, dtype=torch.float64, device="cuda")
    for call in import_module(page).calls():
        call()  # builds, plans and warms up
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        marker.fill_(1)
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
