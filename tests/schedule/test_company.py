"""An invariant plan cuts a sequence alike in 500 drawn companies, whichever kernel it is for."""

from functools import partial
from itertools import islice

import numpy as np
import pytest

from pod.batch import HybridBatch
from pod.hardware import A100, H200
from pod.schedule import decide
from pod.simulate.mixes import mixes

MINE = [(1, 5000), (3, 7000), (200, 9000), (60, 60), (1, 40_000)]
SHAPE = {"num_q_heads": 14, "num_kv_heads": 2, "head_dim": 128}
COMPANIES, SMS = 500, 132
PLANNERS = {
    "hopper": partial(decide.hopper, sms=SMS),
    "pod, A100": partial(decide.hybrid, gpu=A100, sms=A100.sms),
    "serial, H200": partial(decide.hybrid, gpu=H200, sms=SMS, method="serial"),
    "lean": partial(decide.lean, sms=SMS),
}


def others(decodes: bool):
    """Of the drawn batches; for lean their decodes."""
    for mix in mixes(2 * COMPANIES, seed=3):
        rows = [row for row in zip(mix.batch.q_lens, mix.batch.kv_lens, strict=True) if row[0] == 1 or not decodes]
        if rows:
            yield rows


def cuts(plan, seq: int, first: int) -> list[tuple]:
    """What is computed for one sequence, in which parts; its tokens counted from its own first one."""
    rows = []
    for work in (plan.prefill, plan.decode):
        mine = work.seq == seq
        columns = (work.token - first, work.tokens, work.head, work.heads, work.begin, work.end, work.part, work.parts)
        rows.append(sorted(zip(*(column[mine].tolist() for column in columns), strict=True)))
    return [plan.shape.prefill_rows, plan.shape.decode_rows, *rows]


def differing(name: str, **options) -> int:
    """Companies in which some sequence of mine is cut in another way than alone."""
    make, mine = partial(PLANNERS[name], **options), [row for row in MINE if row[0] == 1 or name != "lean"]
    alone = [cuts(make(HybridBatch(*zip(row, strict=True), **SHAPE)), 0, 0) for row in mine]
    found, draw = 0, np.random.default_rng(0)
    for rows in islice(others(name == "lean"), COMPANIES):
        i = int(draw.integers(len(mine)))
        at = int(draw.integers(len(rows) + 1))
        lens = [*rows[:at], mine[i], *rows[at:]]
        plan = make(HybridBatch(*zip(*lens, strict=True), **SHAPE))
        found += cuts(plan, at, sum(q for q, _ in lens[:at])) != alone[i]
    return found


@pytest.mark.parametrize("name", PLANNERS)
def test_no_cut_of_a_sequence_depends_on_its_company(name):
    assert differing(name, invariant=True) == 0


@pytest.mark.parametrize("name", PLANNERS)
def test_without_the_promise_many_do(name):
    assert differing(name) > COMPANIES / 5
