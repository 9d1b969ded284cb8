"""The one event loop: it drives a scheduler for each lane over a clock and an executor, simulated or real."""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from math import inf
from typing import Protocol

from pod.serving.events import Iteration, Log, following, iteration
from pod.serving.request import Request, age
from pod.serving.schedulers import Batch, Scheduler


class Executor(Protocol):
    """Runs batches, in the order in which they are submitted."""

    def submit(self, batch: Batch, event: Iteration) -> float:
        """Run `batch`; return the second at which its tokens are out. May fill in event.stages."""


class Sender(Protocol):
    """Takes a batch while it runs the one before, and runs them in this order. A flight has its `event`."""

    def send(self, batch: Batch, event: Iteration):
        """Launch `batch`; return its flight."""

    def land(self, flight) -> list[Request]:
        """Wait for the tokens of a flight and fill in its event's end; return who ends sooner than his length says."""


class Stages(Protocol):
    """Run batches one behind the other, several at a time, in the order in which they are submitted."""

    def submit(self, batch: Batch, event: Iteration) -> None:
        """Send `batch` in."""

    def wait(self, until: float) -> Iteration | None:
        """The next batch whose tokens are out, with its end and stages; None if there is none before `until`."""


class Watcher(Protocol):
    """Hears what happens, in order: a log, or who needs less than all of it."""

    def arrived(self, request: Request, refusal: str | None) -> None: ...

    def started(self, event: Iteration) -> None:
        """Its end is known, who is answered with it is not."""

    def ended(self, event: Iteration) -> None: ...


class SimClock:
    """Time passes because we say so."""

    now = 0.0

    def advance(self, to: float) -> None:
        if to > self.now:
            self.now = to


class WallClock:
    """Time passes by itself."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def now(self) -> float:
        return self.at(time.perf_counter())

    def at(self, counter: float) -> float:
        """When any process of this machine had read this from its counter: they are one."""
        return counter - self._start

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


class Loop:
    """Lanes that share an executor, a clock and a queue, and the batch that each has in flight.

    A lane, vLLM's virtual engine, has one batch in flight at a time: its next tokens depend on the last. One lane is
    the usual engine; a pipeline of n stages is kept busy by n lanes that share one queue. Requests that a lane holds
    already go on.
    """

    def __init__(self, lanes: Sequence[Scheduler], executor: Executor, clock, into: Watcher,
                 progress: Callable[[int], object] | None = None, first: int = 0):  # fmt: skip
        self.lanes, self.executor, self.clock, self.into, self.progress = lanes, executor, clock, into, progress
        self.first = first  # number of the first lane, in the events
        self.due: list[tuple[float, int]] = []  # when a lane's batch is done
        self._flying: dict[int, tuple[Batch, Iteration]] = {}

    @property
    def idle(self) -> bool:
        """Whether a lane has nothing in flight."""
        return len(self._flying) < len(self.lanes)

    @property
    def busy(self) -> bool:
        """Whether a lane has something in flight."""
        return bool(self._flying)

    def launch(self, now: float, until: float = inf) -> None:
        """Lanes with nothing in flight start what they have. Nobody arrives before `until`, for who looks ahead."""
        for lane, scheduler in enumerate(self.lanes):
            if lane not in self._flying and (batch := scheduler.schedule()):
                event = iteration(batch, self.first + lane, now, len(scheduler.pool.free), len(scheduler.waiting))
                self._flying[lane] = batch, event
                self._fly(lane, batch, event)

    def _fly(self, lane: int, batch: Batch, event: Iteration) -> None:
        event.end = self.executor.submit(batch, event)
        self.into.started(event)
        heapq.heappush(self.due, (event.end, lane))

    def proceed(self, until: float) -> None:
        """The next batch that is due is done, or it is `until`, whichever comes first."""
        if self.due and self.due[0][0] <= until:
            self.finish()
        else:
            self.clock.advance(until)

    def finish(self) -> None:
        """The next batch that is due is done."""
        end, lane = heapq.heappop(self.due)
        self.clock.advance(end)
        self._land(lane)

    def _land(self, lane: int) -> None:
        batch, event = self._flying.pop(lane)
        event.finished = [r.id for r in self.lanes[lane].complete(batch)]
        self.into.ended(event)
        if self.progress and event.finished:
            self.progress(len(event.finished))

    def receive(self, request: Request) -> None:
        refusal = self.lanes[0].refusal(request)
        self.into.arrived(request, refusal)
        if refusal is None:
            self.lanes[0].add(request)

    def nobody_waits(self) -> None:
        """A scheduler that forms no batch while somebody waits has starved them: that must not look like a good run."""
        if left := {r.id for lane in self.lanes for r in (*lane.running, *lane.waiting)}:
            name, first = self.lanes[0].name, min(left)
            raise RuntimeError(f"{name}: forms no batch, but {len(left)} requests wait, the first of them {first}")


class Foreseeing(Loop):
    """Over an executor that only reckons, so that what comes next may be told before its time has come.

    Most batches are the last one once more, every context a little longer. The scheduler is asked only where it may
    have another answer: while nobody arrives, it says itself how often the same batch repeats. What is heard and
    reckoned of an iteration stays the same, bit by bit. Of one lane: several share a queue, and would have to be
    foreseen together.
    """

    def launch(self, now: float, until: float = inf) -> None:
        starts, waited = len(self.lanes) == 1 and not self.busy, len(self.lanes[0].waiting)
        super().launch(now, until)
        # after somebody came in, the next in the queue may come in, too: only the scheduler knows
        if starts and self.busy and self._flying[0][1].waiting in (0, waited):
            self._repeat(until)

    def _repeat(self, until: float) -> None:
        """The batch in flight is done and starts again, until the last of those that are foreseen is in flight."""
        (scheduler,), (batch, event) = self.lanes, self._flying[0]
        with closing(scheduler.repeat(batch)) as turns:
            while event.end < until and next(turns, False):
                self.into.ended(event)
                event = following(event, len(scheduler.pool.free))
                event.end = self.executor.submit(batch, event)
                self.into.started(event)
        self.due, self._flying[0] = [(event.end, 0)], (batch, event)


class Ahead(Loop):
    """Over an executor that takes the next batch while one runs. How far a batch brings everybody, and whom his length
    ends, is known before its tokens are: so it is counted as run once it is launched, and the next is launched behind
    it. Who then turns out to have ended sooner is in one batch too many, and the token that he gets there is thrown
    away. Who arrives waits for what is launched already. Of one lane."""

    executor: Sender
    MOST = 2  # flights: one runs, the other waits for it on the GPU

    def __init__(self, *of, **options):
        super().__init__(*of, **options)
        self._flights = deque()
        self._more = False  # may be launched before anybody waits

    @property
    def idle(self) -> bool:
        return not self._flights

    @property
    def busy(self) -> bool:
        return bool(self._flights)

    def launch(self, now: float, until: float = inf) -> None:
        (scheduler,) = self.lanes
        batch = scheduler.schedule() if len(self._flights) < self.MOST else None
        self._more = bool(batch)
        if batch:
            event = iteration(batch, self.first, now, len(scheduler.pool.free), len(scheduler.waiting))
            self._flights.append(self.executor.send(batch, event))
            event.finished = [r.id for r in scheduler.complete(batch)]

    def proceed(self, until: float) -> None:
        """The same, or nothing: who has come by now may be in the batch for which there is room."""
        if not self.busy:
            self.clock.advance(until)
        elif len(self._flights) == self.MOST or not self._more:
            self.finish()

    def finish(self) -> None:
        flight = self._flights.popleft()
        event, stopped = flight.event, self.executor.land(flight)
        for request in stopped:
            self._stop(request, event)
        self.into.started(event)
        self.into.ended(event)
        if self.progress and event.finished:
            self.progress(len(event.finished))

    def _stop(self, request: Request, event: Iteration) -> None:
        """It ends with this event. A later one is not to tell of a token that nobody gets."""
        flying = [flight.event for flight in self._flights]
        for later in flying:
            if request.id in later.decodes:
                later.decodes.remove(request.id)
                later.decode_context -= request.computed
            if request.id in later.finished:
                later.finished.remove(request.id)
                event.finished.append(request.id)
        for gone in self.lanes[0].stop(request):  # of a batch that stays together, some have a token in a later one
            last = next((later for later in flying if gone.id in later.decodes), event)
            last.finished.append(gone.id)


class Pipelined(Loop):
    """Over real stages: that a batch is done is known when its tokens are here, in the order in which they went in."""

    executor: Stages

    def _fly(self, lane: int, batch: Batch, event: Iteration) -> None:
        self.executor.submit(batch, event)

    def proceed(self, until: float) -> None:
        if not self.busy:
            self.clock.advance(until)
        elif event := self.executor.wait(until):
            self.into.started(event)
            self._land(event.lane - self.first)


def serve(requests: Iterable[Request], lanes: Sequence[Scheduler], executor: Executor, clock=None,
          progress: Callable[[int], object] | None = None, into: Watcher | None = None, kind: type[Loop] = Loop,
          **run):  # fmt: skip
    """Serve all requests and return the log; `run` is written into it as the description of the run. `into` hears all
    of it instead, and is returned. An iterator of requests is read as time goes on, and must be in order. `progress` is
    told of the answered, how many at a time.
    """
    clock = clock or SimClock()
    into = Log(run=run) if into is None else into
    loop = kind(lanes, executor, clock, into, progress)
    arrivals = in_order(requests)
    coming = next(arrivals, None)
    loop.launch(clock.now, coming.arrival if coming else inf)
    while loop.busy or coming:
        loop.proceed(coming.arrival if coming and loop.idle else inf)
        now = clock.now  # read once: on a wall clock a request could else arrive between two looks
        while coming and coming.arrival <= now:
            loop.receive(coming)
            coming = next(arrivals, None)
        loop.launch(now, coming.arrival if coming else inf)
    loop.nobody_waits()
    return into


def in_order(requests: Iterable[Request]) -> Iterator[Request]:
    if not isinstance(requests, Iterator):
        yield from sorted(requests, key=age)
        return
    last = (0.0, -1)
    for request in requests:
        if age(request) < last:
            raise ValueError(f"arrival of request {request.id}: got {request.arrival}, allowed is {last[0]} or later")
        last = age(request)
        yield request


class Ticks:
    """An executor for small examples: every iteration takes one tick, whatever is in it."""

    def submit(self, batch: Batch, event: Iteration) -> float:
        return event.scheduled + 1.0
