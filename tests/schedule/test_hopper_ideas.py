"""The suites that take the Hopper kernel apart: they change what they say they change, and their figures add up."""

from functools import partial

import numpy as np
import pytest

from pod.batch import HybridBatch
from pod.experiments.checks import hopper_sanitizer
from pod.experiments.hopper import hopper_dry, hopper_ladder
from pod.kernels import sm90
from pod.kernels.launch import Header, Plan
from pod.lab.measure import timing
from pod.schedule import choose, decide

torch = pytest.importorskip("torch")


class OnPaper(Plan):
    """A plan that runs nothing."""

    def run(self, *tensors, **options) -> None:
        pass


def cpu_plan(batch, **choices) -> Plan:
    return OnPaper(batch, "hopper", torch.device("cpu"), sm90.KERNEL, partial(decide.hopper, batch, 132, **choices))


@pytest.fixture
def plans(monkeypatch) -> list[Plan]:
    """Every plan that a suite makes, in order; nothing runs."""
    made = []

    def make_plan(batch, **choices):
        made.append(cpu_plan(batch, **choices))
        return made[-1]

    def tensors(self, **_):
        return torch.zeros(sum(self.q_lens)), *torch.zeros(2, len(self.q_lens)), None

    monkeypatch.setattr(sm90, "plan", make_plan)
    monkeypatch.setattr(HybridBatch, "tensors", tensors)
    return made


@pytest.mark.parametrize("idea", hopper_ladder.WITHOUT)
def test_each_idea_of_the_ladder_changes_the_plan_and_nothing_but_the_plan(idea, plans, monkeypatch):
    def shuffled(calls, *_):
        return {name: timing.Time(ms=call() and 0 or 1.0, p10=0.9, p90=1.1) for name, call in calls.items()}

    monkeypatch.setattr(timing, "shuffled", shuffled)
    row = hopper_ladder.measure({"idea": idea})
    with_it, *without = plans
    assert row["ours"] == row["without"] == 1.0 and row["flops"] + row["kv_bytes"] > 0
    if len(without) == 2:  # the two halves, one after the other
        assert [plan.batch for plan in without] == [with_it.batch.prefill, with_it.batch.decode]
        return
    (other,) = without
    lists = [plan.placed().lists.tolist()[4:] for plan in (with_it, other)]  # behind the number that says who yields
    yields = [plan.schedule().yields for plan in (with_it, other)]
    assert other.batch == with_it.batch
    assert (lists[0] != lists[1]) != (yields[0] != yields[1]), "one thing differs"


def one_sided(case: dict) -> dict:
    """A GPU that computes at 600 TFLOP/s and reads at 4 TB/s; while both work, each at 0.8 of that."""
    flops = HybridBatch.of(case["chunk"], hopper_dry.CONTEXT, 1, 1, 32, 8).prefill.flops
    kv_bytes = case["decodes"] * hopper_dry.DECODE_CONTEXT * 4096
    prefill, decode = flops / 600e9, kv_bytes / 4e9
    first = min(prefill, decode) / 0.8
    last = max(prefill, decode) + 0.2 * first
    ends = {"prefill": last, "decode": first} if prefill > decode else {"prefill": first, "decode": last}
    marks = {f"{side}_{mark}_us": 1e3 * end * share for side, end in ends.items()
             for mark, share in (("first", 0.97), ("mean", 0.98), ("last", 1.0))}  # fmt: skip
    times = {"ours": last, "prefill": prefill, "decode": decode, "idle_us": 20 * last}
    return case | {"flops": flops, "kv_bytes": kv_bytes, **times, **marks}


def test_the_rate_of_the_side_that_is_left_is_read_off_the_slope(recorded):
    recorded("hopper-dry", [one_sided(case) for case in hopper_dry.cases()])
    df = hopper_dry.table()
    for side, rate in (("prefill", 600), ("decode", 4.0)):
        assert len(hopper_dry.tail(df, side)) >= 4
        np.testing.assert_allclose(hopper_dry.rates(side), rate, rtol=1e-6)
    assert hopper_dry.idle_most() == pytest.approx(2)
    np.testing.assert_allclose(df.both + df.one + df.none, 1, atol=0.005)
    hopper_dry.draw(df)


def test_the_ladder_counts_what_is_lost_without_an_idea(recorded):
    row = {"flops": 1e12, "kv_bytes": 4.8e9, "ours": 2.0, "without": 2.5}
    rows = [{"idea": idea} | row for idea in hopper_ladder.WITHOUT]
    recorded("hopper-ladder", rows)
    df = hopper_ladder.table()
    assert (df.gain_percent == 25).all() and (df.roof_percent > df.roof_percent_without).all()
    said = [text.get_text() for text in hopper_ladder.draw(df).axes[0].texts]
    assert len(said) == len(df) - len(hopper_ladder.CHECKS)
    assert all(text.startswith("+25.0 %   (40 % → 51 %)") for text in said)


def test_memcheck_sees_every_form_of_the_kernel():
    as_lean = {"lean": {"roles": choose.as_decode(4)}, "hopper": {}}
    plans = [cpu_plan(batch, **as_lean[method]) for batch, method in hopper_sanitizer.runs()]
    headers = [Header(*plan.placed().header) for plan in plans]
    kinds = {(h.prefill_works > h.sms, h.pieces > h.sms, h.prefill_groups > 0, h.prefill_rows) for h in headers}
    alone = {(True, False, True, 128), (True, False, False, 192), (False, True, False, 128)}
    assert alone | {(True, True, True, 128)} <= kinds
