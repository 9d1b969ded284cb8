"""Several replicas of a server behind a router; or some that only compute prompts and others that only decode.

Replicas meet in the router alone: up to each arrival every replica runs by itself, then the router looks at them. A
prompt that is done elsewhere travels with its keys and values. The router says where to when its turn to be sent has
come; it waits there until the receiver's link is free, and holds its sender's meanwhile: so each replica sends one
prompt after the other, and receives one after the other. No router looks at links, so that some of several may idle.
Its pages are free as soon as it is done, as if it were sent from a buffer of its own.
"""

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle
from math import inf

from pod.serving.events import Iteration
from pod.serving.loop import Foreseeing, SimClock, Watcher, in_order
from pod.serving.request import Request, age
from pod.serving.schedulers import Scheduler


class Queue(deque[Request]):
    """Who waits, and how many prompt tokens that is: routers ask at every arrival, also where thousands wait."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0

    def append(self, request: Request) -> None:
        super().append(request)
        self.tokens += _left(request)

    def insert(self, place: int, request: Request) -> None:
        super().insert(place, request)
        self.tokens += _left(request)

    def popleft(self) -> Request:
        request = super().popleft()
        self.tokens -= _left(request)
        return request

    def remove(self, request: Request) -> None:
        super().remove(request)
        self.tokens -= _left(request)


def _left(request: Request) -> int:
    """Prompt tokens that are not computed yet. While a request waits they stay the same."""
    return max(0, request.prefill - request.computed)


class Replica(Foreseeing):
    """A server of its own, with its own clock."""

    may_start = False  # a batch, at the clock's time
    coming = 0  # requests whose keys and values are on their way
    receives_from = 0.0  # the second from which on its link is free for the next of them

    def __init__(self, lanes: Sequence[Scheduler], *rest):
        super().__init__(lanes, *rest)
        waiting = Queue()  # the lanes share it
        for lane in lanes:
            lane.waiting = waiting

    @property
    def outstanding(self) -> int:
        return self.coming + len(self.lanes[0].waiting) + sum(len(lane.running) for lane in self.lanes)

    @property
    def queue(self) -> int:
        """Prompt tokens that are not computed yet."""
        left = [r.prefill - r.computed for lane in self.lanes for r in lane.running if r.computed < r.prefill]
        return self.lanes[0].waiting.tokens + sum(left)  # spelt out: asked for at every arrival, of hundreds

    def until(self, time: float) -> None:
        """All that happens up to this second, if nobody else comes. Who comes in it joins what starts then."""
        self._start(time)
        while self.due and self.due[0][0] <= time:
            self.finish()
            self.may_start = True
            self._start(time)

    def _start(self, before: float) -> None:
        if self.may_start and self.clock.now < before:
            self.launch(self.clock.now, before)
            self.may_start = False

    def take(self, request: Request, time: float) -> None:
        self.clock.advance(time)
        insort(self.lanes[0].waiting, request, key=age)
        self.may_start = True


Route = Callable[[], Replica]


def round_robin(replicas: Sequence[Replica]) -> Route:
    turn = cycle(replicas)
    return lambda: next(turn)


def least_outstanding(replicas: Sequence[Replica]) -> Route:
    """The one with the fewest requests that are not answered."""
    return lambda: min(replicas, key=lambda r: r.outstanding)


def shortest_queue(replicas: Sequence[Replica]) -> Route:
    """The one with the fewest prompt tokens to compute; among equals, with the fewest requests."""
    return lambda: min(replicas, key=lambda r: (r.queue, r.outstanding))


ROUTERS = {"round-robin": round_robin, "least-outstanding": least_outstanding, "shortest-queue": shortest_queue}


class Cluster:
    """`prompts` compute prompts for the others, or are none; requests that arrive go to `prompts`, if there are any."""

    def __init__(self, make: Callable[[int, Watcher, bool], Replica], replicas: int, prompts: int, router: str,
                 send: Callable[[int], float], into: Watcher):  # fmt: skip
        self.into, self.send = into, send
        self.away: dict[int, Request] = {}  # whose prompt is computed elsewhere than they will decode
        self.travels: list[tuple[float, int, Callable[[float, int], None]]] = []  # when what happens to which of them
        self.prompts = [make(i, _Sender(self), False) for i in range(prompts)]
        self.others = [make(i, into, bool(prompts)) for i in range(prompts, replicas)]
        self._route_prompt = ROUTERS[router](self.prompts) if prompts else None
        self._route = ROUTERS[router](self.others)

    def serve(self, requests: Iterator[Request]) -> None:
        for request in requests:
            self._until(request.arrival)
            self._arrive(request)
        self._until(inf)
        for replica in (*self.prompts, *self.others):
            replica.nobody_waits()

    def _until(self, time: float) -> None:
        for replica in self.prompts:
            replica.until(time)
        while self.travels and self.travels[0][0] <= time:
            moment, id_, then = heapq.heappop(self.travels)
            then(moment, id_)
        for replica in self.others:
            replica.until(time)

    def _arrive(self, request: Request) -> None:
        refusal = self.others[0].lanes[0].refusal(request)
        self.into.arrived(request, refusal)
        if refusal is not None:
            return
        if self.prompts and request.output > 1:
            self.away[request.id] = request
            request = Request(request.id, request.prompt, 1, request.arrival)
        where = (self.prompts, self._route_prompt) if self.prompts else (self.others, self._route)
        self._choose(request.arrival, *where).take(request, request.arrival)

    def _choose(self, time: float, replicas: Sequence[Replica], route: Route) -> Replica:
        for replica in replicas:  # whose state the router looks at
            replica.until(time)
        return route()

    def depart(self, time: float, id_: int) -> tuple[Replica, float]:
        """Where a request will decode, and when its keys and values are there."""
        replica, tokens = self._choose(time, self.others, self._route), self.away[id_].prompt
        replica.receives_from = max(time, replica.receives_from) + self.send(tokens)
        replica.coming += 1
        return replica, replica.receives_from

    def land(self, replica: Replica, time: float, id_: int) -> None:
        replica.coming -= 1
        replica.until(time)
        replica.take(self.away.pop(id_), time)


class _Sender:
    """Hears a prompt replica, and sends the keys and values of who decodes elsewhere, one after the other."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.leaving: deque[tuple[float, int]] = deque()  # who is sent or waits for it, and since when

    def started(self, event: Iteration) -> None:
        self.cluster.into.started(event)

    def ended(self, event: Iteration) -> None:
        leaving = [id_ for id_ in event.finished if id_ in self.cluster.away]
        event.finished = [id_ for id_ in event.finished if id_ not in self.cluster.away]
        self.cluster.into.ended(event)
        for id_ in leaving:
            request = self.cluster.away[id_]
            request.advance(request.prompt)
            self.leaving.append((event.end, id_))
            if len(self.leaving) == 1:
                self._then(event.end, id_, self._send)

    def _then(self, time: float, id_: int, what: Callable[[float, int], None]) -> None:
        heapq.heappush(self.cluster.travels, (time, id_, what))

    def _send(self, time: float, id_: int) -> None:
        replica, there = self.cluster.depart(time, id_)
        self._then(there, id_, partial(self._sent, replica))

    def _sent(self, replica: Replica, time: float, id_: int) -> None:
        self.cluster.land(replica, time, id_)
        self.leaving.popleft()
        if self.leaving:
            done, following = self.leaving[0]
            self._then(max(time, done), following, self._send)


def serve(setup, requests: Iterable[Request], into: Watcher,
          progress: Callable[[int], object] | None = None) -> Watcher:  # fmt: skip
    """Serve all requests on the replicas of `setup`."""

    def make(number: int, hears: Watcher, decodes: bool) -> Replica:
        return Replica(setup.lanes(decodes), setup.executor(number), SimClock(), hears, progress, number * setup.pp)

    cost = setup.cost()
    Cluster(make, setup.replicas, setup.prompt_replicas, setup.router, cost.move, into).serve(in_order(requests))
    return into
