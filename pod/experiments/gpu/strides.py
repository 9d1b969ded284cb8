"""Loads side by side and loads apart: the same bytes by the same warps, in another order.

Measured: bytes a second from DRAM when neighbouring lanes read words that lie 1 to 32 words apart.
"""

from collections.abc import Callable
from ctypes import c_int64
from functools import cache

from pod.data import read
from pod.lab.measure import timing
from pod.lab.measure.bare import checked, library, pointer, stream

RECORDING = "strides"
KEYS, WHOLE = ("cache", "stride"), ()
UNITS = ("strides",)
ROUNDS, REPEATS = 7, 21
CACHES = ("L1", "past L1")  # where a load may find what another has brought
STRIDES = (1, 2, 4, 8, 16, 32)  # words between neighbouring lanes
NBYTES, THREADS, CTAS_PER_SM = 1 << 30, 512, 2


def cases() -> list[dict]:
    return [dict(zip(KEYS, (cache, stride), strict=True)) for cache in CACHES for stride in STRIDES]


def measure(case: dict) -> dict:
    return _measured()[case["cache"], int(case["stride"])]


@cache
def _measured() -> dict[tuple, dict]:
    """All timed in the same shuffled rounds, once each has been seen to read every word once."""
    import torch

    words = torch.randint(4, (NBYTES // 4,), dtype=torch.int32, device="cuda")
    ctas = CTAS_PER_SM * torch.cuda.get_device_properties("cuda").multi_processor_count
    sums, total = torch.zeros(ctas * THREADS, dtype=torch.int32, device="cuda"), words.sum().item()
    calls = {(place, stride): _call(place, stride, words, ctas, sums) for place in CACHES for stride in STRIDES}
    for (place, stride), call in calls.items():
        call()
        if (got := sums.sum().item()) != total:
            raise ValueError(f"stride {stride}, {place}: got a sum of {got}, allowed is {total}")
    return {key: time.rates(NBYTES) for key, time in timing.shuffled(calls, ROUNDS, 8.0).items()}


def _call(place: str, stride: int, words, ctas: int, sums) -> Callable:
    function, near = getattr(library("strides"), f"pod_stride_{stride}"), int(place == "L1")
    given = (near, pointer(words), c_int64(NBYTES), ctas, THREADS, pointer(sums))
    return lambda: checked(function(*given, stream()))


# ---------------------------------------------------------------- what it shows


def table():
    """As recorded: one row a cache and stride."""
    return read("strides")


def rates(df):
    """TB/s, one row a distance between neighbouring lanes in words, one column a cache."""
    found = df.pivot(index="stride", columns="cache", values="gbs")[list(CACHES)] / 1e3
    return found.rename(columns=lambda place: f"TB/s, {place}").rename_axis("words apart").rename_axis(columns=None)
