"""Loads side by side and loads apart: the same bytes by the same warps, in another order.

Measured: bytes a second from DRAM when neighbouring lanes read words that lie 1 to 32 words apart.
"""

from collections.abc import Callable
from ctypes import c_int64
from functools import cache

from pod.data import a_card, read
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.measure.bare import checked, library, pointer, stream
from pod.lab.show import style

FIGURE = Figure(
    title=f"The same bytes read by the same warps of {a_card()}, the lanes side by side or apart",
    says="Lanes that read far apart get fewer bytes a second",
    chapter="04",
    method="Every warp reads 4 KB at a time, 32 loads of a word a lane, of 1 GiB; medians, cold L2, shuffled rounds.",
    data=("strides",),
)
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
    return {key: _rates(time) for key, time in timing.shuffled(calls, ROUNDS, 8.0).items()}


def _call(place: str, stride: int, words, ctas: int, sums) -> Callable:
    function, near = getattr(library("strides"), f"pod_stride_{stride}"), int(place == "L1")
    given = (near, pointer(words), c_int64(NBYTES), ctas, THREADS, pointer(sums))
    return lambda: checked(function(*given, stream()))


def _rates(time: timing.Time) -> dict[str, float]:
    """Gigabytes a second; the slowest calls are the tenth percentile."""
    rates = {"gbs": time.ms, "gbs_p10": time.p90, "gbs_p90": time.p10}
    return {column: round(NBYTES / ms / 1e6, 1) for column, ms in rates.items()}


# ---------------------------------------------------------------- what it shows


def table():
    """As recorded: one row a cache and stride."""
    return read("strides")


def draw(df):
    """TB/s over the distance between neighbouring lanes, one line a cache."""
    ax = style.axes(7, 2.9)
    lines = {"L1": ("L1 may keep the rest of a sector", "-", 8), "past L1": ("past L1", "--", -14)}
    for place, (words, dashes, above) in lines.items():
        mine = df[df.cache == place]
        ax.plot(mine.stride, mine.gbs / 1e3, dashes, color=style.INK, marker="o", markersize=4, label=words)
        for stride, gbs in zip(mine.stride, mine.gbs, strict=True):
            ax.annotate(f"{gbs / 1e3:.1f}", (stride, gbs / 1e3), (0, above), textcoords="offset points", fontsize=9,
                        ha="center")  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_xticks(STRIDES, [str(stride) for stride in STRIDES])
    ax.set(ylim=(0, 1.2 * df.gbs.max() / 1e3), xlabel="words from one lane to the next", ylabel="TB/s of DRAM")
    ax.legend(frameon=False, fontsize=9)
    return ax.figure
