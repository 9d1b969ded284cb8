"""The runs of the real engine that were recorded: a window out of a long run, on any executor, real or simulated."""

from dataclasses import dataclass

import numpy as np

from pod.serving.blocks import PagedPool
from pod.serving.loop import Loop, serve
from pod.serving.request import Request
from pod.serving.schedulers import Sarathi
from pod.simulate.workload import Workload

K = 1024
PAGE = 256


@dataclass(frozen=True)
class Load:
    """The first `iterations` of a run. Offline, as many requests run from the start as do in the long run, each with
    another part of its answer behind it: a window out of a long run, without the minutes that lead there. Online,
    requests of `low` to `total` tokens arrive `qps` a second at an idle engine. `room` is the pages of memory, where
    fewer requests fit than would decode."""

    model: str
    pd: float
    chunk: int
    total: int
    iterations: int
    low: int | None = None
    qps: float | None = None
    room: int | None = None

    @property
    def running(self) -> int:
        """Requests that decode in the long run: each chunk of prompt brings chunk / pd tokens of answers. Where memory
        holds fewer, with half of their answers on average, all but the one whose prompt is being read."""
        wanted = 0 if self.qps else round(self.chunk / (self.pd + 1))
        halfway = self.total * (self.pd + 0.5) / (self.pd + 1)
        return min(wanted, int(self.room * PAGE / halfway) - 1) if self.room else wanted

    @property
    def blocks(self) -> int:
        return self.room or -(-self.total // PAGE) * (self.running + 4 if self.running else 64)

    def workload(self):
        """At most as many requests as the iterations can take in."""
        low = self.low or self.total
        count = 2 + int(self.iterations * self.chunk * (self.pd + 1) / self.pd / low)
        return Workload("uniform", count, self.qps, low=low, high=self.total, pd=self.pd)

    def pool(self):
        return PagedPool(self.blocks, PAGE)

    def scheduler(self, pool=None, kind=Sarathi):
        """With the requests that run from the start; theirs are the first ids."""
        options = {"chunk": self.chunk} if kind is Sarathi else {}
        scheduler, first = kind(pool or self.pool(), 256, **options), self.workload().requests()[0]
        for i in range(self.running):
            done = first.output * i // self.running
            request = Request(i, first.prompt + done, first.output - done)
            scheduler.pool.admit(request)
            scheduler.running.append(request)
            request.advance(request.prompt)
        return scheduler

    def requests(self):
        """Those who arrive."""
        requests = self.workload().requests()
        for request in requests:
            request.id += self.running
        return requests


# The ratios and chunks are those of POD's Figure 12; the requests are as long as one GPU's memory allows. A window
# takes about a minute; that at full load is shorter, as more and more requests wait in it.
FULL, CALM = "llama-3-8b online", "llama-3-8b calm"  # all that FlashAttention-3 can do, and two thirds of it
LOADS = {
    "llama-3-8b": Load("llama-3-8b", 17, 1 * K, 12 * K, 1050),
    "yi-6b": Load("yi-6b", 8, 512, 16 * K, 1800),
    "llama-2-7b": Load("llama-2-7b", 64, 1 * K, 8 * K, 1150),
    FULL: Load("llama-3-8b", 10, 1 * K, 4 * K, 300, low=1 * K, qps=11.0),
    CALM: Load("llama-3-8b", 10, 1 * K, 4 * K, 3600, low=1 * K, qps=7.0),
}
# What matters most comes first, in case time runs out.
OFFLINE = ("llama-3-8b", "yi-6b", "llama-2-7b")
ORDER = [(load, name) for load in ("llama-3-8b", CALM, "yi-6b", "llama-2-7b") for name in ("fa3", "hopper")]
ORDER += [(load, "hopper-serial") for load in reversed(OFFLINE)] + [(FULL, name) for name in ("fa3", "hopper")]
RUNS = {f"{load}, {name}": (LOADS[load], name) for load, name in ORDER}


class Enough(Exception):
    """The iterations that were asked for have run."""


class Window:
    """An executor that ends the run after so many iterations, and keeps them."""

    def __init__(self, executor, most: int):
        self.executor, self.most, self.events, self.flights = executor, most, [], []

    def submit(self, batch, event) -> float:
        self._keep(event)
        return self.executor.submit(batch, event)

    def send(self, batch, event):
        self._keep(event)
        self.flights.append(self.executor.send(batch, event))
        return self.flights[-1]

    def land(self, flight) -> list:
        self.flights.remove(flight)
        return self.executor.land(flight)

    def _keep(self, event) -> None:
        if len(self.events) == self.most:
            raise Enough
        self.events.append(event)


def window(load: Load, executor, scheduler, clock=None, most: int | None = None) -> list:
    """The first iterations of a load, or `most` of them, on any executor, real or simulated. An event's end is its
    executor's answer."""
    watched = Window(executor, most or load.iterations)
    try:
        serve(load.requests(), [scheduler], watched, clock, kind=getattr(executor, "loop", Loop))
    except Enough:
        for flight in list(watched.flights):
            watched.land(flight)
    return watched.events


def began(scheduled, ends) -> np.ndarray:
    """From when on each iteration had the engine to itself: its decision, or the end before where that came later."""
    return np.maximum(scheduled, np.append(-np.inf, np.asarray(ends)[:-1]))


def digest(event) -> str:
    """Eight hexadecimal digits of the whole batch: ids, chunks, decodes, preemptions."""
    import zlib

    text = repr((event.prefills, event.decodes, event.decode_context, event.preempted))
    return f"{zlib.crc32(text.encode()):08x}"
