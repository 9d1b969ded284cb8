"""Time on the GPU: cold L2, shuffled rounds, medians with their spread; and the energy a call takes."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median

from pod.lab.measure.provenance import nvml_device

FLUSH_BYTES = 256 << 20  # several times the L2 of any GPU here
LEADS = (4, 12, 36)  # fills, 0.06 ms each, before the first of several calls; the next where the host comes too late
TIMER = "CUDA events around one call, after a 256 MB fill that empties L2; candidates shuffled in every round"


@dataclass(frozen=True)
class Time:
    """Milliseconds of one candidate over all rounds."""

    ms: float
    p10: float
    p90: float

    def columns(self, name: str = "ms", digits: int = 5) -> dict[str, float]:
        """As columns of a recording: the median under this name, and its spread."""
        values = {name: self.ms, f"{name}_p10": self.p10, f"{name}_p90": self.p90}
        return {column: round(value, digits) for column, value in values.items()}

    def rates(self, nbytes: int) -> dict[str, float]:
        """Gigabytes a second as columns; the slowest calls are the tenth percentile."""
        return {name: round(nbytes / ms / 1e6, 1)
                for name, ms in (("gbs", self.ms), ("gbs_p10", self.p90), ("gbs_p90", self.p10))}  # fmt: skip


@cache
def _flush_buffer():
    import torch

    return torch.zeros(FLUSH_BYTES, dtype=torch.uint8, device="cuda")


def free_memory() -> None:
    """Whatever nobody refers to any more leaves the GPU, for who comes next."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def fill() -> None:
    """Empty L2 by writing: it is left full of lines that whoever comes next must write back."""
    _flush_buffer().zero_()


def read() -> None:
    """Empty L2 by reading: nothing is to be written back."""
    import torch

    torch.sum(_flush_buffer().view(torch.float32), dim=0, out=_sum())


@cache
def _sum():
    import torch

    return torch.zeros((), device="cuda")


def samples(call: Callable, repeats: int) -> list[float]:
    """Milliseconds of `repeats` calls, each with a cold L2."""
    return _samples(call, repeats, LEADS[0], fill)[0]


def _samples(call: Callable, repeats: int, least: int, flush: Callable) -> tuple[list[float], int]:
    """The milliseconds, and the lead that they took.

    A fill also keeps the GPU busy while the host launches the call. Some peers take the host longer than that: then
    the GPU waits between the events, and the host is timed. Such times do not count, and where they are many, all
    begins anew with a larger lead.
    """
    import torch

    for lead in LEADS[LEADS.index(least) :]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        late = []
        for _ in range(lead):
            flush()
        for start, end in events:
            flush()
            start.record()
            call()
            end.record()
            late.append(start.query())
        torch.cuda.synchronize()
        if 2 * sum(late) <= repeats:
            break
    times = [start.elapsed_time(end) for start, end in events]
    return [time for time, was_late in zip(times, late, strict=True) if not was_late] or times, lead


_order = random.Random(0)  # goes on from batch to batch: the same order for each would favour the same candidates


def shuffled(candidates: dict[str, Callable], rounds: int = 5, ms: float = 8.0, least: int = 3,
             flush: Callable = fill) -> dict[str, Time]:  # fmt: skip
    """Time all candidates in `rounds` rounds, each in a fresh random order, about `ms` milliseconds of work a visit.

    A visit is `least` to 20 calls; how many, the rounds before it say. Shuffling matters: under the power limit a
    candidate is slower when it follows a hot one.
    """
    taken, calls = {name: [] for name in candidates}, dict.fromkeys(candidates, least)
    leads = dict.fromkeys(candidates, LEADS[0])
    for _ in range(rounds):
        for name in _order.sample(list(candidates), len(candidates)):
            times, leads[name] = _samples(candidates[name], calls[name], leads[name], flush)
            taken[name] += times
        calls = {name: max(least, min(20, round(ms / min(times)))) for name, times in taken.items()}
    return {name: spread(values) for name, values in taken.items()}


def spread(values: list[float]) -> Time:
    ordered = sorted(values)
    last = len(ordered) - 1
    return Time(median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)])


@dataclass(frozen=True)
class Energy:
    """What a call takes when it is repeated back to back: the state a serving GPU is in."""

    ms: float
    millijoules: float
    watts: float
    sm_clock_mhz: float


def energy(call: Callable, seconds: float = 1.5) -> Energy:
    """Repeat `call` for `seconds` and read NVML's energy counter around it (it moves in steps of about 0.1 s)."""
    import pynvml

    pynvml.nvmlInit()
    device = nvml_device(pynvml)
    _repeat(call, 0.3)  # reach the steady clock
    clocks: list[int] = []
    before, begin = pynvml.nvmlDeviceGetTotalEnergyConsumption(device), time.perf_counter()
    calls = _repeat(call, seconds, lambda: clocks.append(pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)))
    spent = pynvml.nvmlDeviceGetTotalEnergyConsumption(device) - before
    elapsed = time.perf_counter() - begin
    return Energy(elapsed / calls * 1e3, spent / calls, spent / elapsed / 1e3, median(clocks))


def _repeat(call: Callable, seconds: float, after: Callable = lambda: None) -> int:
    import torch

    calls, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        calls += 20
        after()
    return calls
