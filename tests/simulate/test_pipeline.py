"""Micro-batches that share memory and are made anew: nobody is in two, nobody is lost, and it matters little."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.experiments.sarathi import sarathi_09
from pod.serving.loop import Ticks, serve
from pod.serving.request import Request
from pod.simulate.metrics import token_times
from pod.simulate.run import Setup, simulate
from pod.simulate.workload import Workload


class Apart(Ticks):
    """No request is in two batches at once, and no block has two holders."""

    def __init__(self, lanes):
        self.lanes, self.until, self.most = lanes, {}, 0

    def submit(self, batch, event) -> float:
        members = {c.request.id for c in batch.prefills} | {r.id for r in batch.decodes}
        flying = {id_ for id_, end in self.until.items() if end > event.scheduled}
        assert not members & flying, "a request is in one micro-batch"
        held = [block for table in self.lanes[0].pool.tables.values() for block in table]
        assert len(held) == len(set(held)), "a block has one holder"
        self.most = max(self.most, len(members))
        end = event.scheduled + 1.0 + len(batch.prefills) / 3  # unequal, so that they come back in any order
        self.until.update(dict.fromkeys(members, end))
        return end


SETUP = dict(model="llama-13b", pp=4, host="none", block_size=4, blocks=60, max_tokens=120, pipeline="reformed")


@given(rows=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=20),
       scheduler=st.sampled_from(("orca", "vllm", "sarathi", "sarathi_v1")))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_everybody_is_answered_and_in_one_microbatch_at_a_time(rows, scheduler):
    lanes = Setup(**SETUP, scheduler=scheduler, max_batch=3, chunk=16).lanes()
    asked = [Request(i, *row, float(i // 3)) for i, row in enumerate(rows)]
    log = serve(asked, lanes, Apart(lanes))
    ids, _ = token_times(log)
    assert [ids.tolist().count(r.id) for r in asked] == [r.output for r in asked]
    assert not lanes[0].pool.tables and len(lanes[0].pool.free) == 60


def test_microbatches_stay_equally_large():
    """Twelve requests in four micro-batches are three in each, whoever left one before the others."""
    lanes = Setup(**SETUP | {"blocks": 400}, scheduler="vllm", max_batch=12).lanes()
    log = serve([Request(i, 3, 30 + i % 4) for i in range(12)], lanes, Ticks())
    late = [len(e.decodes) for e in log.iterations if e.decodes][20:60]
    assert max(late) <= 3


def test_all_memory_is_everybodys():
    kept, shared = (Setup(**SETUP | {"pipeline": kind}, scheduler="sarathi").lanes() for kind in ("kept", "reformed"))
    assert [lane.pool.num_blocks for lane in kept] == [15] * 4
    assert len({id(lane.pool) for lane in shared}) == 1 and shared[0].pool.num_blocks == 60


def test_one_stage_has_nothing_to_reform():
    ends = [[e.end for e in simulate(Setup(pipeline=kind), Workload("uniform", 20, high=4000).requests()).iterations]
            for kind in ("kept", "reformed")]  # fmt: skip
    assert ends[0] == ends[1]


def test_it_does_not_let_micro_batches_pass():
    """The post's ratios do not come nearer by it."""
    df = sarathi_09.ratios()
    assert (abs(df.ours_reformed / df.ours - 1) < 0.1).all()


@pytest.mark.parametrize(("options", "words"), [
    ("--pipeline loose", "argument --pipeline: invalid choice: 'loose'"),
    ("--pp 2 --replicas 2 --pipeline reformed", "pipeline: got 'reformed', allowed are kept where servers are many"),
])  # fmt: skip
def test_bad_options_are_one_line(options, words, refused):
    assert words in refused("simulate", *options.split())
