"""What the users felt, computed from the log.

    TTFT        first token out less arrival. The prompt's last iteration emits the first token.
    TBT         time between two tokens of one request, pooled over all tokens of all requests.
    latency     last token out less arrival.
    stalled     share of requests with at least one TBT above a bound.
    throughput  requests per minute, from the first arrival to the last token.
    computed    prompt tokens computed over those asked for: less where a prompt's beginning was in the cache, more
                where a preempted request was computed anew.
    joules      where they were recorded (energy.py); a token's and a request's have their share of GPUs that idle.

The published artifact differs in one thing: it throws the first token away and has the next iteration make it again.
Its TBT therefore lacks the gap between a finished prompt and the next token, where a scheduler that puts prompts first
stalls most, and counts a zero in its place. `definition="artifact"` computes that.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from pod.serving.events import Iteration, Log
from pod.serving.request import Request
from pod.simulate.summary import DEFINITIONS, Summary, turned_away


@dataclass(frozen=True)
class Requests:
    """One row a served request, by id. `gaps` are the times between tokens, `owner` the row that each belongs to."""

    id: np.ndarray
    arrival: np.ndarray
    ttft: np.ndarray
    latency: np.ndarray
    gaps: np.ndarray
    owner: np.ndarray

    @property
    def worst_gap(self) -> np.ndarray:
        worst = np.zeros(len(self.id))
        np.maximum.at(worst, self.owner, self.gaps)
        return worst


def token_times(log: Log) -> tuple[np.ndarray, np.ndarray]:
    """Request id and time of every token that came out, sorted by request and, within one, by time."""
    out = [[c[0] for c in event.prefills if c[3]] + event.decodes for event in log.iterations]
    counts = [len(ids) for ids in out]
    ids = np.fromiter((i for ids in out for i in ids), dtype=np.int64, count=sum(counts))
    times = np.repeat([event.end for event in log.iterations], counts)
    order = np.argsort(ids, kind="stable")  # a request's own tokens are in order already
    return ids[order], times[order]


def requests(log: Log, definition: str = "user") -> Requests:
    """Times of each request that was served."""
    if definition not in DEFINITIONS:
        raise ValueError(f"definition: got {definition!r}, allowed are {', '.join(DEFINITIONS)}")
    ids, times = token_times(log)
    if not len(ids):
        away = turned_away(len(log.refused), len(log.requests), log.refused)
        raise ValueError(f"log: no token came out; {away}")
    first = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1))
    last = np.append(first[1:], len(ids)) - 1
    arrivals = dict((row[0], row[1]) for row in log.requests)
    arrival = np.array([arrivals[i] for i in ids[first].tolist()])
    gaps = np.diff(times, prepend=0.0)
    owner = np.repeat(np.arange(len(first)), last - first + 1)
    if definition == "artifact":
        gaps[first] = 0.0
        second = first[last > first] + 1
        gaps, owner = np.delete(gaps, second), np.delete(owner, second)
    else:
        gaps, owner = np.delete(gaps, first), np.delete(owner, first)
    # static batching hands a request back only with its batch; elsewhere the last token is the answer
    answered = {i: event.end for event in log.iterations for i in event.finished}
    done = np.array([answered.get(i, t) for i, t in zip(ids[first].tolist(), times[last], strict=True)])
    return Requests(ids[first], arrival, times[first] - arrival, done - arrival, gaps, owner)


def metrics(log: Log, definition: str = "user") -> dict[str, float]:
    """The numbers of the papers' tables. Seconds, shares in percent, requests and tokens per minute."""
    return replay(log, Summary(definition)).metrics()


def replay(log: Log, into: Summary) -> Summary:
    """Tell of the log's requests and iterations in the order in which they came about."""
    for id_, arrival, prompt, output in log.requests:
        into.arrived(Request(id_, prompt, output, arrival), log.refused.get(id_))
    running: list[tuple[float, int, Iteration]] = []
    for event in log.iterations:
        while running and running[0][0] <= event.scheduled:
            into.ended(heapq.heappop(running)[-1])
        into.started(event)
        heapq.heappush(running, (event.end, event.lane, event))
    while running:
        into.ended(heapq.heappop(running)[-1])
    return into


def bubbles(log: Log) -> dict[int, float]:
    """Seconds that each request spent inside the pipeline waiting: its iterations' time less its own stages' work."""
    waited: dict[int, float] = {}
    for event in log.iterations:
        bubble = event.seconds - sum(end - start for start, end in event.stages)
        for i in event.decodes + [chunk[0] for chunk in event.prefills]:
            waited[i] = waited.get(i, 0.0) + bubble
    return waited


def memory(log: Log, num_blocks: int, block_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each iteration: its time, tokens in the cache, and tokens that the blocks held could take. One lane only."""
    cached: dict[int, int] = {}
    rows = []
    for event in log.iterations:
        for i, _ in event.preempted:  # swapped or dropped, it holds nothing here
            cached.pop(i, None)
        for i, new, before, _ in event.prefills:
            cached[i] = before + new
        for i in event.decodes:
            cached[i] = cached.get(i, 0) + 1
        rows.append((event.end, sum(cached.values()), (num_blocks - event.free) * block_size))
        for i in event.finished:
            del cached[i]
    return tuple(np.array(column) for column in zip(*rows, strict=True))
