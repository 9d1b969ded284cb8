"""Batches that repeat are told without asking the scheduler. Bit by bit they are those that it would make."""

from copy import deepcopy
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_serving_invariants import make, request_lists, systems

from pod.serving.events import Log
from pod.serving.loop import Foreseeing, Loop, Ticks, serve
from pod.serving.prefix import PrefixPool
from pod.serving.schedulers import VLLM, Sarathi, Scheduler
from pod.simulate.metrics import metrics
from pod.simulate.run import Both, Setup, simulate
from pod.simulate.summary import Summary
from pod.simulate.workload import Workload


class Moody:
    """Iterations take what is in them, and each a little else than the last: whether any is left out shows in all."""

    def __init__(self) -> None:
        self.turns = count()

    def submit(self, batch, event) -> float:
        spent = sum(n + 0.1 * before for _, n, before in batch.prefills) + 0.1 * event.decode_context
        spent += len(batch.idle) + 10 * batch.copied_blocks
        return event.scheduled + 0.01 * spent + 0.003 * (next(self.turns) % 7)


def told(kind: type[Loop], lanes: list[Scheduler], requests, executor) -> list:
    """All that can be known of a run: what was heard, what was added up, and what is left of lanes and requests."""
    lanes, requests, summary = deepcopy(lanes), deepcopy(requests), Summary()
    log = serve(requests, lanes, executor, into=Both(Log(), summary), kind=kind).watchers[0]
    return [log, [vars(lane.pool) for lane in lanes], [(r.computed, r.generated) for r in requests], summed(summary)]


def summed(summary: Summary) -> dict:
    plain = {k: v for k, v in vars(summary).items() if not hasattr(v, "__dict__") and k != "_lanes"}
    return plain | {name: vars(getattr(summary, name)) for name in ("ttft", "gaps", "latency", "waits")}


@pytest.mark.parametrize("executor", [Ticks, Moody])
@settings(max_examples=300, deadline=None)
@given(systems(), request_lists)
def test_what_is_foreseen_is_what_comes(executor, lanes, rows):
    asked = make(rows)
    assert told(Foreseeing, lanes, asked, executor()) == told(Loop, lanes, asked, executor())


texts = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(1, 40), st.integers(0, 60)), min_size=1,
                 max_size=10)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(texts, st.integers(25, 60), st.sampled_from([Sarathi, VLLM]))
def test_also_where_prompts_share_blocks(texts, blocks, scheduler):
    asked = make([row[1:] for row in texts])
    for request, (text, *_) in zip(asked, texts, strict=True):
        request.prefix = tuple((text, i) for i in range(request.prompt // 4))
    lanes = [scheduler(PrefixPool(blocks, 4, 0.05), 4, **({"chunk": 6} if scheduler is Sarathi else {}))]
    assert told(Foreseeing, lanes, asked, Moody()) == told(Loop, lanes, asked, Moody())


SYSTEMS = (
    *({"scheduler": name} for name in ("static", "orca", "vllm", "sarathi_v1", "sarathi")),
    {"blocks": 2100},
    {"blocks": 2100, "preemption": "swap"},
    {"blocks": 2100, "like": "sarathi-serve"},
    {"attention": "pod", "max_prefills": 3, "max_batch": 12},
    {"attention": "streams", "jitter": 2.0, "slowdown": 1.1},
    {"tp": 1, "gpu": "h200", "measured": True, "attention": "pod"},
    {"replicas": 3, "router": "shortest-queue", "jitter": 1.0},
    {"replicas": 4, "prompt_replicas": 2, "router": "least-outstanding", "blocks": 2100},
)  # fmt: skip


@pytest.mark.parametrize("options", SYSTEMS, ids=str)
def test_a_simulation_is_the_same_to_the_last_bit(options, monkeypatch):
    setup, work = Setup(**{"tp": 2} | options), Workload("arxiv", 80, 1.5, seed=3)
    foreseen = simulate(setup, work.requests())
    alone = simulate(setup, work.stream(), into=Summary())
    monkeypatch.setattr(Scheduler, "_repeats", lambda *_: 0)
    asked = simulate(setup, work.requests())
    assert foreseen == asked and len(asked.iterations) > 1000
    assert alone.metrics() == metrics(asked)


def test_the_scheduler_is_seldom_asked(monkeypatch):
    asked, schedule = [], Sarathi.schedule
    monkeypatch.setattr(Sarathi, "schedule", lambda self: asked.append(self) or schedule(self))
    summary = simulate(Setup(tp=2), Workload("arxiv", 200, 0.85).stream(), into=Summary())
    assert 6 * len(asked) < summary.iterations
