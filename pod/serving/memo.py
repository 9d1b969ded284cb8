"""Results of simulations, kept in .cache between processes. A run is deterministic: the same setup, workload and code
give the same metrics to the last bit, so figures, claims, tests and chapters need to simulate each run only once."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from functools import cache
from pathlib import Path

import numpy as np

from pod import files
from pod.serving.simulate import Run
from pod.serving.workload import LENGTHS

ROOT = Path(__file__).parents[2]
SOURCES = ("pod/serving/**/*.py", "pod/hardware.py", "data/attention_model.csv", "data/workloads/*.csv",
           "data/recorded/h200/operators.csv")  # fmt: skip
# of the real engine and the command line: no simulation depends on them
REAL = ("backends.py", "cli.py", "early.py", "engine.py", "model.py", "sampler.py", "smollm.py", "step.py")


@cache
def code() -> str:
    """Digest of all that a result depends on besides the run itself."""
    digest = hashlib.sha256(f"{np.__version__} {sys.version_info[:2]}".encode())  # Python 3.12 adds floats otherwise
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern) if path.name not in REAL):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _file(run: Run) -> Path:
    return files.folder("simulated") / f"{hashlib.sha256(f'{code()} {run!r}'.encode()).hexdigest()[:24]}.json"


def recall(run: Run) -> dict[str, float] | None:
    """The metrics of a run that was simulated before, by this code."""
    if run.workload.lengths not in LENGTHS:  # a file, which may have changed
        return None
    try:
        return json.loads(_file(run).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def remember(run: Run, metrics: dict[str, float]) -> None:
    """Keep the metrics; a folder that cannot be written costs nothing but time."""
    try:
        path = _file(run)
        mine = path.with_suffix(f".{os.getpid()}")
        mine.write_text(json.dumps(metrics), encoding="utf-8")
        mine.replace(path)  # in one step, for another process may be reading
    except OSError:
        pass
