"""What the users felt, while the run goes on. Its memory grows with those who wait and run at once, not with the run.

metrics.py defines the numbers. All who decode in a lane got their last token in the lane's last iteration, but for the
few who just joined or were left out; so a gap is counted once for all of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pod.serving.events import Iteration
from pod.serving.request import Request
from pod.simulate.quantiles import Quantiles

if TYPE_CHECKING:
    from pod.simulate.energy import Meter

DEFINITIONS = ("user", "artifact")
STALLS = (0.2, 0.5)  # seconds, the shortest first
BUBBLE_PERCENTILES = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95)


def turned_away(count: int, of: int, refused: dict[int, str]) -> str:
    """How many requests were refused, and why the first was: there may be thousands."""
    first = "".join(f", the first (request {id_}) for {why}" for id_, why in [*refused.items()][:1])
    return f"{count} of {of} requests were refused{first}"


@dataclass
class _Lane:
    """Who had a token in the lane's last iteration that gave any, and when it came out."""

    time: float = 0.0
    members: set[int] = field(default_factory=set)
    decodes: list[int] | None = None  # the same in a list, where all of them decoded: seldom does the next one differ


class Summary:
    """Hears of every request and iteration, as a log does, and keeps only what `metrics` needs."""

    def __init__(self, definition: str = "user", meter: Meter | None = None):
        if definition not in DEFINITIONS:
            raise ValueError(f"definition: got {definition!r}, allowed are {', '.join(DEFINITIONS)}")
        self.artifact, self.meter = definition == "artifact", meter
        self.refused: dict[int, str] = {}  # the first, and why
        self.received = self.refusals = self.served = self.iterations = self.preemptions = 0
        self.asked = self.computed = 0  # prompt tokens
        self.busy = self.hybrid = self.joules = 0.0
        self.begin, self.end = float("inf"), float("-inf")
        self.ttft, self.gaps, self.latency, self.waits = Quantiles(), Quantiles(), Quantiles(), Quantiles()
        self.stalls = dict.fromkeys(STALLS, 0)
        # of those who are in the system, by id
        self._arrival: dict[int, float] = {}
        self._begun: set[int] = set()  # a token is out
        self._fresh: set[int] = set()  # no second one yet; asked by the artifact's definition only
        self._last: dict[int, float] = {}  # when the last token came, where the lane has had another since
        self._stalled: dict[float, set[int]] = {bound: set() for bound in STALLS}
        self._waited: dict[int, float] = {}
        self._lanes: dict[int, _Lane] = defaultdict(_Lane)

    def arrived(self, request: Request, refusal: str | None) -> None:
        self.received += 1
        if refusal is None:
            self._arrival[request.id] = request.arrival
            self.asked += request.prompt
            return
        self.refusals += 1
        self.refused = self.refused or {request.id: refusal}

    def started(self, event: Iteration) -> None:
        self.iterations += 1
        seconds = event.end - event.scheduled
        self.busy += seconds
        for chunk in event.prefills:
            self.computed += chunk[1]
        if self.meter:
            self.joules += self.meter.iteration(event)
        if event.prefills and event.decodes:
            self.hybrid += seconds
        if event.preempted:
            self.preemptions += len(event.preempted)
            self._leave(self._lanes[event.lane], {id_ for id_, _ in event.preempted})

    def ended(self, event: Iteration) -> None:
        lane, end = self._lanes[event.lane], event.end
        first = [chunk[0] for chunk in event.prefills if chunk[3]] if event.prefills else []
        if event.decodes or first:
            members = lane.members if event.decodes == lane.decodes else self._changed(lane, event)
            self._gap(end - lane.time, lane.members)
            if first:
                for id_ in first:
                    self._prompt_done(id_, end)
                members.update(first)
            lane.time, lane.members = end, members
            lane.decodes = None if first or event.finished else event.decodes
        if event.stages:
            self._wait(event)
        for id_ in event.finished:
            lane.members.discard(id_)
            self._answered(id_, end)

    def _changed(self, lane: _Lane, event: Iteration) -> set[int]:
        """Who decoded, after the gaps of those who did not in the lane's last iteration."""
        members = set(event.decodes)
        if members != lane.members:
            self._leave(lane, lane.members - members)
            for id_ in members - lane.members:
                self._gap(event.end - self._time_of_last(id_), {id_})
        return members

    def _leave(self, lane: _Lane, who: set[int]) -> None:
        gone = who & lane.members
        lane.members -= gone
        lane.decodes = None
        self._last.update(dict.fromkeys(gone, lane.time))

    def _time_of_last(self, id_: int) -> float:
        if id_ not in self._last:  # it moved here from a lane that has had no token since
            self._leave(next(lane for lane in self._lanes.values() if id_ in lane.members), {id_})
        return self._last.pop(id_)

    def _gap(self, seconds: float, who: set[int]) -> None:
        if self.artifact and self._fresh:  # it throws the first token away, and with it the gap to the second
            fresh = who & self._fresh
            self._fresh -= fresh
            who = who - fresh
        if not who:
            return
        self.gaps.add(seconds, len(who))
        if seconds > STALLS[0]:
            for bound, stalled in self._stalled.items():
                if seconds > bound:
                    stalled |= who

    def _prompt_done(self, id_: int, end: float) -> None:
        if id_ in self._begun:  # computed anew after a preemption
            self._gap(end - self._time_of_last(id_), {id_})
            return
        self._begun.add(id_)
        self.ttft.add(end - self._arrival[id_])
        if self.artifact:
            self._fresh.add(id_)
            self.gaps.add(0.0)

    def _wait(self, event: Iteration) -> None:
        bubble = event.seconds - sum(end - start for start, end in event.stages)
        for id_ in event.decodes + [chunk[0] for chunk in event.prefills]:
            self._waited[id_] = self._waited.get(id_, 0.0) + bubble

    def _answered(self, id_: int, end: float) -> None:
        arrival = self._arrival.pop(id_)
        self.served += 1
        self.latency.add(end - arrival)
        self.begin, self.end = min(self.begin, arrival), max(self.end, arrival + (end - arrival))
        for bound, stalled in self._stalled.items():
            self.stalls[bound] += id_ in stalled
            stalled.discard(id_)
        if id_ in self._waited:
            self.waits.add(self._waited.pop(id_))
        self._begun.discard(id_)
        self._fresh.discard(id_)
        self._last.pop(id_, None)

    def metrics(self) -> dict[str, float]:
        if not self.served:
            raise ValueError(f"log: no token came out; {turned_away(self.refusals, self.received, self.refused)}")
        row: dict[str, float] = {"requests": self.served, "refused": self.refusals}
        for name, values in (("ttft", self.ttft), ("tbt", self.gaps), ("latency", self.latency)):
            if values.count:
                row |= zip((f"{name}_p50", f"{name}_p99"), values.percentiles(50, 99), strict=True)
        row["tbt_max"] = self.gaps.max
        row |= {f"stalls_{bound * 1000:.0f}ms": self.stalls[bound] / self.served * 100 for bound in STALLS}
        minutes = (self.end - self.begin) / 60
        row["requests_per_minute"] = self.served / minutes
        tokens = self.gaps.count + (0 if self.artifact else self.served)
        row["output_tokens_per_second"] = tokens / minutes / 60
        row["minutes"] = minutes
        row["iterations"] = self.iterations
        row["hybrid_percent"] = 100 * self.hybrid / self.busy
        row["preemptions"] = self.preemptions
        if self.waits.count:
            waits = self.waits.percentiles(*BUBBLE_PERCENTILES)
            row |= {f"bubble_p{p}": wait for p, wait in zip(BUBBLE_PERCENTILES, waits, strict=True)}
        return row

    def full(self) -> dict[str, float]:
        """The metrics, and what they cost: the share of prompt tokens that were computed, and metered energy."""
        row = self.metrics() | {"computed_percent": 100 * self.computed / self.asked}
        return row | self._energy(row) if self.meter else row

    def _energy(self, row: dict[str, float]) -> dict[str, float]:
        """Joules of iterations, of an answered token and request with the idle GPUs' share, and watts of a GPU."""
        tokens = row["output_tokens_per_second"] * (self.end - self.begin)
        seconds = self.meter.servers * (self.end - self.begin)
        total = self.joules + self.meter.idle(max(0.0, seconds - self.busy))
        return {
            "joules_per_iteration": self.joules / self.iterations,
            "joules_per_token": total / tokens,
            "joules_per_request": total / self.served,
            "watts_per_gpu": total / seconds / self.meter.gpus,
        }
