"""How much later or sooner than usual each iteration of our engine ended, run by run: the simulator draws from it.

Usual is the run's own pace on its operators and its own host, medians over batches with prompts and without. What is
left is the host's, that decides, samples and launches late, and a clock that wanders.
"""

import numpy as np
import pandas as pd

from pod.data import read
from pod.simulate import calibrate

COMPUTED = "host-jitter"
KEYS, READS = ("run", "iteration"), ("engine-runs", "operators")


def cases() -> list[dict]:
    """The recorded runs, by number in the order of their names."""
    return [{"run": i} for i in range(len(calibrate.recorded()))]


def measure(case: dict) -> list[dict]:
    run = sorted(calibrate.recorded())[case["run"]]
    return [{"iteration": i, "ms": round(ms, 2)} for i, ms in enumerate(late(run).tolist())]


def late(run: str) -> np.ndarray:
    """Milliseconds of every iteration beyond the usual."""
    rows = pd.DataFrame(calibrate.recorded()[run]).assign(alone=calibrate.alone(run), prompts=_prompts(run))
    rows["host"] = calibrate.iteration_seconds(run) - rows.gpu
    usual = rows.assign(pace=rows.gpu / rows.alone).groupby("prompts")[["pace", "host"]].transform("median")
    return 1e3 * (rows.host + rows.gpu - usual.pace * rows.alone - usual.host).to_numpy()


def _prompts(run: str) -> list[bool]:
    return [bool(event.prefills) for event in calibrate.batches(run)]


def alike(apart: int = 1) -> pd.Series:
    """Rank correlation of an iteration's lateness with that of the one so many later, a row a run."""
    series = read("host-jitter").groupby("run").ms
    return series.apply(lambda ms: ms.rank().corr(ms.shift(apart).rank()))
