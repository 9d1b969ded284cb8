"""Attention methods that nobody measured in a server: their time over serial execution, by the GPU model.

`python -m pod compute attention-model` fills the table from pod/simulate/gpusim.py, in a few minutes; a simulation only
reads it. Streams and halves of a CTA run FlashAttention-2's tiles, as the paper's baselines do, and CTAs by index those
of sm80/hybrid.cu.
"""

from functools import cache
from itertools import product
from math import log2

import numpy as np

from pod import files
from pod.batch import HybridBatch
from pod.data import COMPUTED
from pod.hardware import gpu as gpu_of
from pod.simulate.interpolate import GridTable

TABLE = COMPUTED / "attention-model.csv"
GPUS = ("a100", "h200")
# As the simulator names them: the method of gpusim and whose tiles.
METHODS = {"streams": ("streams", "flash2"), "hfuse": ("warp", "flash2"), "cta": ("cta", "ours")}
# What one GPU has to do: prefill tiles of 128 rows, tokens before the chunk, (request, KV head) pairs that decode, and
# the tokens that each of them sees.
AXES = {
    "tiles": (16, 32, 64, 128, 256, 512),
    "before": (0, 1024, 4096, 16384, 32768),
    "lanes": (4, 16, 64, 256, 1024),
    "context": (512, 2048, 8192, 32768),
}
KEYS, READS = ("gpu", *AXES), ("gpusim-calibrate",)
Q_HEADS, KV_HEADS = 16, 4  # of the batches that stand for all shapes: Llama-3-8B on two GPUs


def ratio(gpu: str, method: str, tiles: float, before: float, lanes: float, context: float) -> float:
    """Time of `method` over serial execution with the same tiles."""
    return _table(gpu, method)(*_scaled(tiles, before, lanes, context))


def _scaled(tiles: float, before: float, lanes: float, context: float) -> tuple[float, ...]:
    """Between the points of the grid the ratio is linear in logarithms."""
    return log2(tiles), log2(before + 512), log2(lanes), log2(context)


@cache
def _table(gpu: str, method: str) -> GridTable:
    if gpu not in GPUS:
        raise ValueError(f"gpu: got {gpu!r}, allowed with attention {method} are {', '.join(GPUS)}")
    mine = [row for row in files.rows(TABLE) if row["gpu"] == gpu]
    known = {tuple(int(row[axis]) for axis in AXES): float(row[method]) for row in mine}
    points = list(product(*AXES.values()))
    axes = [sorted(set(axis)) for axis in zip(*(_scaled(*p) for p in points), strict=True)]
    return GridTable(axes, np.reshape([known[p] for p in points], [len(axis) for axis in axes]), times=False)


# ---------------------------------------------------------------- the table


def cases() -> list[dict]:
    return [{"gpu": gpu} | dict(zip(AXES, point, strict=True)) for gpu in GPUS for point in product(*AXES.values())]


def measure(case: dict) -> dict[str, float]:
    """Time of every method over that of serial execution, at one point of the grid."""
    from pod.simulate import gpusim

    gpu, chunk = gpu_of(case["gpu"]), case["tiles"] * 128 // Q_HEADS
    rest = (case["lanes"] // KV_HEADS, case["context"], Q_HEADS, KV_HEADS)
    batch = HybridBatch.of(chunk, case["before"] + chunk, *rest)
    serial = {kernel: gpusim.seconds(batch, gpu, "serial", kernel=kernel) for kernel in ("flash2", "ours")}
    return {name: round(gpusim.seconds(batch, gpu, method, kernel=kernel) / serial[kernel], 4)
            for name, (method, kernel) in METHODS.items()}  # fmt: skip
