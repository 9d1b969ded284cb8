"""How much longer or shorter than usual our engine's host took, iteration by iteration: the simulator draws from it."""

from functools import cache

import numpy as np

from pod.data import read

COMPUTED = "host-jitter"
KEYS, READS = ("probability",), ("engine-runs",)
PROBABILITIES = (0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 1)


@cache
def late() -> np.ndarray:
    """Milliseconds of every recorded iteration beside the GPU's, less the median of its run."""
    df = read("engine-runs")
    host = df.end_ms - df.scheduled_ms - df.gpu_ms
    return (host - host.groupby(df.run).transform("median")).to_numpy()


def cases() -> list[dict]:
    return [{"probability": float(p)} for p in PROBABILITIES]


def measure(case: dict) -> dict[str, float]:
    return {"ms": round(float(np.quantile(late(), case["probability"])), 3)}
