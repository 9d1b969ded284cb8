"""The engine as a service: whoever asks while it runs joins the next iteration, whoever leaves gives his pages back.

One thread turns the crank of the same loop. All others leave word in an inbox, which it opens between two iterations;
so scheduler, pool and engine belong to one thread and need no lock.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from queue import SimpleQueue
from threading import Lock, Thread

from pod.serving.engine import Engine, Flight, problem
from pod.serving.events import Iteration
from pod.serving.loop import WallClock
from pod.serving.meters import Meters
from pod.serving.request import Request
from pod.serving.sampler import Sampling, draw_each
from pod.serving.schedulers import Batch, Scheduler
from pod.serving.step import end
from pod.serving.text import Text


@dataclass(frozen=True)
class Piece:
    """What one iteration adds to an answer. `made` counts its tokens so far; `end` is stop, length or error."""

    text: str
    made: int
    end: str | None = None


@dataclass(eq=False)
class Job:
    """A request with what the schedulers need not know. `tell` hears its pieces, on the thread of the engine."""

    request: Request
    prompt: Sequence[int]
    sampling: Sampling
    text: Text
    tell: Callable[[Piece], None]
    asked: float
    made: int = 0  # tokens that are out, and when the newest came
    newest: float | None = None


class Full(Exception):
    """The waiting line is."""


class Closed(Exception):
    """The service ends, or has failed."""


class Service:
    """`ask` and `cancel` may be called from any thread. `letters(token)` are the bytes of a token."""

    def __init__(self, engine: Engine, scheduler: Scheduler, letters: Callable[[int], bytes], waiting: int = 256):
        self.engine, self.scheduler, self.letters = engine, scheduler, letters
        self.meters, self.clock = Meters(), WallClock()
        self.loop = engine.loop([scheduler], self, self.clock, into=self)
        self.room, self.jobs = scheduler.max_batch + waiting, {}  # of all who are not answered yet
        self.closing, self.failure = False, None
        self._news: list[tuple[Job, Piece]] = []  # of this iteration
        self._ids, self._lock, self._inbox = itertools.count(), Lock(), SimpleQueue()
        engine.clock, engine.sample = self.clock, self._sample
        self.meters.look(scheduler)
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ for other threads

    @property
    def longest(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        pool = self.scheduler.pool
        return min(self.engine.model.context, (pool.num_blocks - pool.kept_free) * pool.block_size)

    def refusal(self, prompt: Sequence[int], output: int) -> str | None:
        """Why this can never be answered here; None when it can."""
        model = self.engine.model
        wrong = problem(prompt, output, model.shape, model.context)
        return wrong or self.scheduler.refusal(Request(0, len(prompt), output))

    def ask(self, prompt: Sequence[int], output: int, sampling: Sampling, stops: Sequence[str],
            tell: Callable[[Piece], None]) -> Job:  # fmt: skip
        if wrong := self.refusal(prompt, output):
            raise ValueError(wrong)
        with self._lock:
            if self.closing or self.failure:
                raise Closed("the server is shutting down" if self.closing else "the engine has failed")
            if len(self.jobs) >= self.room:
                raise Full(f"{len(self.jobs)} requests are here, allowed are {self.room}")
            now = self.clock.now
            request = Request(next(self._ids), len(prompt), output, now)
            self.jobs[request.id] = job = Job(request, prompt, sampling, Text(stops), tell, now)
            self._inbox.put(partial(self._enter, job))
        return job

    def cancel(self, job: Job) -> None:
        """Nobody listens any more. An answer that is complete stays so."""
        self._inbox.put(partial(self._leave, job))

    def close(self) -> None:
        """Take nobody new, answer who is here, and end."""
        with self._lock:
            self.closing = True
        self._inbox.put(lambda: None)
        self._thread.join()

    # ------------------------------------------------------------ the thread of the engine

    def _run(self) -> None:
        try:
            while self._hear():
                self.loop.launch(self.clock.now)
                if self.loop.busy:
                    self.loop.proceed(inf)
                else:
                    self.loop.nobody_waits()
        except BaseException as error:
            self._fail(error)
            raise

    def _hear(self) -> bool:
        """Open the inbox, and sleep at it while there is nothing to do. False: closed, and nobody is left."""
        while not (self._inbox.empty() and (self._busy or self.closing)):
            self._inbox.get()()
        return self._busy

    @property
    def _busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting) or self.loop.busy

    def _enter(self, job: Job) -> None:
        self.engine.texts[job.request.id] = list(job.prompt)
        self.loop.receive(job.request)

    def _leave(self, job: Job) -> None:
        if job.request.id in self.jobs:
            self.scheduler.cancel(job.request)
            self._forget(job, "cancelled")
            self.meters.look(self.scheduler)

    def _forget(self, job: Job, reason: str) -> None:
        self.engine.forget(job.request)
        self.meters.requests.labels(reason).inc()
        del self.jobs[job.request.id]

    def _fail(self, error: BaseException) -> None:
        """No answer comes any more: nobody shall wait for one."""
        with self._lock:
            self.failure = error
        for job in list(self.jobs.values()):
            job.tell(Piece("", job.made, "error"))

    # ------------------------------------------------------------ what the loop asks of an executor

    def submit(self, batch: Batch, event: Iteration) -> float:
        self.land(self.send(batch, event))
        return event.end

    def send(self, batch: Batch, event: Iteration) -> Flight:
        return self.engine.send(batch, event)

    def land(self, flight: Flight) -> list[Request]:
        stopped = self.engine.land(flight)
        places = zip(flight.requests, flight.places, strict=True)
        mine = [(self.jobs[r.id], place) for r, place in places if r.id in self.jobs]  # others have left or ended since
        for job, place in mine:
            self._take(job, place, flight.event.end)
        return stopped + [job.request for job, _ in mine if job.text.stopped and job.request not in stopped]

    def _sample(self, logits, requests: Sequence[Request]):
        asked = [self.jobs[request.id].sampling for request in requests]
        return draw_each(logits, asked, [request.generated for request in requests])

    def _take(self, job: Job, place: int, now: float) -> None:
        """A request's next token, as text. A stop string ends it as a stop token does."""
        request, text = job.request, self.engine.texts[job.request.id]
        job.made, stopped = place + 1 - request.prompt, text[place] in self.engine.stop
        letters = b"" if stopped else self.letters(text[place])
        said = job.text.add(letters, last=stopped or job.made >= request.output)
        if job.text.stopped:
            end(request, text, place + 1)
        reason = None if job.made < request.output else "stop" if stopped or job.text.stopped else "length"
        self._news.append((job, Piece(said, job.made, reason)))
        self._time(job, now)

    def _time(self, job: Job, now: float) -> None:
        if job.newest is None:
            self.meters.first.observe(now - job.asked)
        else:
            self.meters.between.observe(now - job.newest)
        job.newest = now

    # ------------------------------------------------------------ what the loop tells a watcher

    def arrived(self, request: Request, refusal: str | None) -> None:
        self.meters.look(self.scheduler)

    def started(self, event: Iteration) -> None:
        self.meters.preempted.inc(len(event.preempted))
        self.meters.read.inc(sum(chunk[1] for chunk in event.prefills))

    def ended(self, event: Iteration) -> None:
        """The books are closed before anybody hears his piece: who then looks at the meters finds himself counted."""
        news, self._news = self._news, []
        self.meters.made.inc(len(news))
        for job, piece in news:
            if piece.end:
                self._forget(job, piece.end)
        self.engine.marks.clear()
        self.meters.look(self.scheduler)
        for job, piece in news:
            job.tell(piece)
