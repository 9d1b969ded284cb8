"""The one event loop: it drives a scheduler for each lane over a clock and an executor, simulated or real."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from pod.serving.events import Iteration, Log, iteration
from pod.serving.request import Request, age
from pod.serving.schedulers import Batch, Scheduler


class Executor(Protocol):
    """Runs batches, in the order in which they are submitted."""

    def submit(self, batch: Batch, event: Iteration) -> float:
        """Run `batch`; return the second at which its tokens are out. May fill in event.stages."""


class SimClock:
    """Time passes because we say so."""

    now = 0.0

    def advance(self, to: float) -> None:
        self.now = max(self.now, to)


class WallClock:
    """Time passes by itself."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self._start

    def advance(self, to: float) -> None:
        if (seconds := to - self.now) > 0:  # to sleep for no time at all takes a tenth of a millisecond
            time.sleep(seconds)


class Replay:
    """An executor that is ready for the next iteration exactly when a recorded run was. Then a scheduler sees the same
    arrivals, and must form the same batches, as it did in that run. For one lane."""

    def __init__(self, log: Log):
        times = [i.scheduled for i in log.iterations[1:]] + [log.iterations[-1].end]
        self._times = iter(times)

    def submit(self, batch: Batch, event: Iteration) -> float:
        return next(self._times)


def serve(requests: Iterable[Request], lanes: Sequence[Scheduler], executor: Executor, clock=None,
          progress: Callable[[int], object] | None = None, **run) -> Log:  # fmt: skip
    """Serve all requests and return the log; `run` is written into it as the description of the run.

    A lane has one batch in flight at a time: its next tokens depend on the last. One lane is the usual engine; a
    pipeline of n stages is kept busy by n lanes that share one queue. Requests that a lane holds already go on.
    `progress` is told of the answered, how many at a time.
    """
    clock = clock or SimClock()
    log = Log(run=run)
    arrivals = deque(sorted(requests, key=age))
    due: list[tuple[float, int]] = []  # when a lane's batch is done
    flying: dict[int, tuple[Batch, Iteration]] = {}

    def launch(now: float) -> None:
        for lane, scheduler in enumerate(lanes):
            if lane not in flying and (batch := scheduler.schedule()):
                event = iteration(batch, lane, now, len(scheduler.pool.free), len(scheduler.waiting))
                log.iterations.append(event)
                event.end = executor.submit(batch, event)
                heapq.heappush(due, (event.end, lane))
                flying[lane] = batch, event

    launch(clock.now)
    while due or arrivals:
        someone_idle = len(flying) < len(lanes)
        if due and not (arrivals and someone_idle and arrivals[0].arrival < due[0][0]):
            end, lane = heapq.heappop(due)
            clock.advance(end)
            batch, event = flying.pop(lane)
            event.finished = [r.id for r in lanes[lane].complete(batch)]
            if progress and event.finished:
                progress(len(event.finished))
        else:
            clock.advance(arrivals[0].arrival)
        now = clock.now  # read once: on a wall clock a request could else arrive between two looks
        while arrivals and arrivals[0].arrival <= now:
            _receive(arrivals.popleft(), lanes[0], log)
        launch(now)
    _nobody_waits(lanes)
    return log


def _receive(request: Request, scheduler: Scheduler, log: Log) -> None:
    log.requests.append((request.id, request.arrival, request.prompt, request.output))
    if reason := scheduler.refusal(request):
        log.refused[request.id] = reason
    else:
        scheduler.add(request)


def _nobody_waits(lanes: Sequence[Scheduler]) -> None:
    """A scheduler that forms no batch while somebody waits has starved them: that must not look like a good run."""
    if left := {r.id for lane in lanes for r in (*lane.running, *lane.waiting)}:
        name, first = lanes[0].name, min(left)
        raise RuntimeError(f"{name}: forms no batch, but {len(left)} requests wait, the first of them {first}")


class Ticks:
    """An executor for small examples: every iteration takes one tick, whatever is in it."""

    def submit(self, batch: Batch, event: Iteration) -> float:
        return event.scheduled + 1.0
