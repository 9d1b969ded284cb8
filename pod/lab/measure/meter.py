"""Energy on the GPU: the driver's counter of millijoules around calls that run back to back.

The counter moves in ticks, 20 to 100 ms apart, so energy is taken from one tick to a later one, and the calls that ran
meanwhile are counted to a fraction. A way is visited in every round, in shuffled order: what drifts, drifts for all.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from pod.lab.measure.provenance import nvml_device

QUEUE_SECONDS = 0.02  # of calls between two marks; a look takes some milliseconds
QUEUES = (3, 12, 48)  # marks ahead: a driver with much to do may take a tenth of a second for a look
FROZEN_SECONDS = 2.0  # longer than any tick
TIMER = "NVML's energy counter from tick to tick around calls back to back, their number interpolated; shuffled rounds"


@dataclass(frozen=True)
class Gauge:
    """What the meter reads, and how it learns how far the GPU is: of this GPU, or made up by a test.

    energy: millijoules since some moment, in ticks. state: SM clock in MHz and degrees. mark: called between calls,
    returns a function that says whether all before it is done.
    """

    energy: Callable[[], int]
    state: Callable[[], tuple[float, float]]
    mark: Callable[[], Callable[[], bool]]
    now: Callable[[], float] = time.perf_counter


def gauge() -> Gauge:
    """Of the current GPU."""
    import torch

    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # a missing package and each missing library raise their own kind
        raise ValueError("energy: got no NVML here, allowed is a GPU with its driver and nvidia-ml-py") from None
    device = nvml_device(nvml)

    def mark():
        event = torch.cuda.Event()
        event.record()
        return event.query

    def state():
        clock = nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)
        return clock, nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)

    return Gauge(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(device), state, mark)


# ---------------------------------------------------------------- one visit


@dataclass(frozen=True)
class Window:
    """What was seen between the first and the last tick of a visit: calls may be a fraction, or 0 for idling."""

    calls: float
    millijoules: float
    seconds: float
    mhz: float
    celsius: float

    @property
    def watts(self) -> float:
        return self.millijoules / self.seconds / 1e3


@dataclass
class _Visit:
    """Calls under way, calls done by when, and the ticks: (seconds, millijoules)."""

    call: Callable | None
    g: Gauge
    ahead: int = QUEUES[0]  # marks
    each: int = 1  # calls between two marks
    dry: bool = False  # whether the GPU was seen with nothing to do
    under_way: deque = field(default_factory=deque)
    done: list[tuple[float, int]] = field(default_factory=list)
    ticks: list[tuple[float, int]] = field(default_factory=list)
    states: list[tuple[float, float]] = field(default_factory=list)

    def step(self) -> None:
        """Launch if there is room, and look once."""
        self._count()
        self.dry |= not self.under_way
        while self.call and len(self.under_way) < self.ahead:
            self.launch()
        self._read()

    def launch(self) -> None:
        for _ in range(self.each):
            self.call()
        self.under_way.append((self.g.mark(), self.each))

    def _count(self) -> None:
        now, finished = self.g.now(), self.done[-1][1] if self.done else 0
        while self.under_way and self.under_way[0][0]():
            finished += self.under_way.popleft()[1]
            self.done.append((now, finished))

    def _read(self) -> None:
        before = self.g.now()
        energy = self.g.energy()
        now = (before + self.g.now()) / 2
        if not self.ticks or energy != self.ticks[-1][1]:
            self.ticks.append((now, energy))
            self.states.append(self.g.state())
        elif now - self.ticks[-1][0] > FROZEN_SECONDS:
            raise ValueError(f"energy: got a counter still for {FROZEN_SECONDS:g} s, allowed is one that ticks")

    def drain(self) -> None:
        """Wait for what is under way: it was counted on when the last tick came."""
        while self.under_way:
            self._count()

    def spend(self, seconds: float) -> None:
        end = self.g.now() + seconds
        while self.g.now() < end:
            self.step()

    def calibrate(self) -> None:
        """So many calls between two marks that they take QUEUE_SECONDS at least, looked at by nobody meanwhile."""
        while self.call and self._seconds() < QUEUE_SECONDS:
            self.each *= 2

    def _seconds(self) -> float:
        self.drain()
        begin = self.g.now()
        self.launch()
        self.drain()
        return self.g.now() - begin

    def forget(self) -> None:
        """Begin anew at the next tick; what is under way goes on."""
        self.ticks, self.states, self.dry = self.ticks[-1:], [], False
        while len(self.ticks) < 2:
            self.step()
        del self.ticks[0]

    def window(self) -> Window:
        """Between ticks. A counter that fell began anew, and what it gave meanwhile is lost with its calls."""
        times, energies = (np.array(column, dtype=float) for column in zip(*self.ticks, strict=True))
        calls = np.interp(times, *zip(*self.done, strict=True)) if self.done else 0 * times
        spent, kept = np.diff(energies), np.diff(energies) > 0
        mhz, celsius = (median(column) for column in zip(*self.states, strict=True))
        return Window(*(float(x[kept].sum()) for x in (np.diff(calls), spent, np.diff(times))), mhz, celsius)


def visit(call: Callable | None, seconds: float = 0.4, warm: float = 0.2, g: Gauge | None = None) -> Window:
    """Run `call` back to back, `warm` seconds to reach the steady clock and then from tick to tick for `seconds` at
    least. None: the GPU idles. A visit in which the GPU had nothing to do is made anew, with more launched ahead."""
    for ahead in QUEUES:
        it = _Visit(call, g or gauge(), ahead)
        it.spend(warm / 2)
        it.calibrate()
        it.spend(warm / 2)
        it.forget()
        it.spend(seconds)
        ticks = len(it.ticks)
        while len(it.ticks) == ticks or len(it.ticks) < 3:
            it.step()
        it.drain()
        if not (call and it.dry):
            return it.window()
    raise ValueError("energy: got calls that end before the next are launched, allowed are longer ones")


# ---------------------------------------------------------------- ways in rounds


@dataclass(frozen=True)
class Energy:
    """What one call takes when it is repeated back to back: medians over the rounds, and of the millijoules the least
    and the most."""

    ms: float
    millijoules: float
    least: float
    most: float
    watts: float
    sm_clock_mhz: float
    celsius: float

    def columns(self, name: str) -> dict[str, float]:
        """As columns of a recording."""
        found = {"ms": self.ms, "mj": self.millijoules, "mj_p10": self.least, "mj_p90": self.most}
        shown = {f"{name}_{column}": round(value, 5) for column, value in found.items()}
        return shown | {f"{name}_watts": round(self.watts, 1), f"{name}_mhz": self.sm_clock_mhz,
                        f"{name}_celsius": self.celsius}  # fmt: skip


def summed(windows: list[Window]) -> Energy:
    each = [w.millijoules / w.calls for w in windows]
    watts, mhz, celsius = (median(getattr(w, name) for w in windows) for name in ("watts", "mhz", "celsius"))
    ms = median(1e3 * w.seconds / w.calls for w in windows)
    return Energy(ms, median(each), min(each), max(each), watts, mhz, celsius)


@dataclass(frozen=True)
class Metered:
    """The ways, and the watts of the idling GPU before the first and after the last."""

    ways: dict[str, Energy]
    idle_before: float
    idle_after: float

    def columns(self) -> dict[str, float]:
        """Without the ways: they have columns of their own."""
        return {"idle_before": round(self.idle_before, 1), "idle_after": round(self.idle_after, 1)}


_order = random.Random(0)


def metered(
    calls: dict[str, Callable], rounds: int = 3, seconds: float = 0.4, warm: float = 0.2, g: Gauge | None = None
) -> Metered:
    """Visit all calls in `rounds` rounds, each in a fresh random order."""
    g = g or gauge()
    windows: dict[str, list[Window]] = {name: [] for name in calls}
    before = visit(None, seconds, warm, g).watts
    for _ in range(rounds):
        for name in _order.sample(list(calls), len(calls)):
            windows[name].append(visit(calls[name], seconds, warm, g))
    after = visit(None, seconds, warm, g).watts
    return Metered({name: summed(seen) for name, seen in windows.items()}, before, after)


def rested(call: Callable | None, cycles: int) -> Callable:
    """`call`, and then a rest of so many clock cycles: where it works for a small share of the time the clock stays at
    its highest. What the call took is the difference to a rest alone (None)."""

    def period() -> None:
        import torch

        if call is not None:
            call()
        torch.cuda._sleep(cycles)

    return period


@dataclass
class Spent:
    """What a block took; filled in when it ends."""

    millijoules: float = 0.0
    seconds: float = 0.0

    @property
    def watts(self) -> float:
        return self.millijoules / self.seconds / 1e3


@contextmanager
def spent(g: Gauge | None = None) -> Iterator[Spent]:
    """`with spent() as s: serve()`: what the GPU takes from the tick before to the tick after, whatever runs. A tick's
    length of idling is in it, so the block should run for seconds."""
    g, found = g or gauge(), Spent()
    begin, before = _tick(g)
    yield found
    done = g.mark()
    while not done():
        pass
    end, after = _tick(g)
    found.millijoules, found.seconds = after - before, end - begin


def _tick(g: Gauge) -> tuple[float, int]:
    """The next tick."""
    it = _Visit(None, g)
    while len(it.ticks) < 2:
        it.step()
    return it.ticks[-1]
