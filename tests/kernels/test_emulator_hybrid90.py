"""The Hopper kernel itself, run by the emulator and compared with float64."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from batches import SEEDS, batches
from emulator import hybrid90, library
from emulator.hybrid90 import Case, Outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import ENGINE, HEADS_FIRST, HEADS_OUTSIDE, PLAIN, WIDER_TABLE, layouts

from pod.batch import SOFTCAPS, HybridBatch
from pod.reference import hybrid_attention
from pod.schedule.work import NARROW

torch = pytest.importorskip("torch")

RULES = {"window": 100, "softcap": 5.0, "sinks": True}

CASES = {
    "a chunk and four decodes": Case(HybridBatch((64, 1, 1, 1, 1), (256,) * 5, 4, 2, 64), 2),
    "small pages, ragged": Case(HybridBatch((1, 64, 1, 1, 1), (300, 200, 77, 256, 1), 4, 2, 64, page_size=16), 2),
    "fp16, head dim 128": Case(HybridBatch((1, 40, 1), (130, 150, 77), 4, 2, 128, page_size=64, dtype="float16"), 3),
    "both sides split": Case(HybridBatch((130, 1), (520, 1500), 4, 2, 64), 6, splits=2),
    "prefill only, no mask": Case(HybridBatch((33, 20), (33, 90), 2, 2, 64, page_size=32, causal=False), 2),
    "prefill only, in ranges": Case(HybridBatch((140, 40), (2000, 128), 4, 2, 128, page_size=16), 4),
    "prefill only, three warpgroups, split": Case(HybridBatch((100, 70), (300, 513), 4, 2, 64), 6, splits=2),
    "three warpgroups, small pages": Case(HybridBatch((96,), (520,), 6, 3, 64, page_size=16, dtype="float16"), 2),
    "few rows": Case(HybridBatch((4, 5), (900, 1000), 10, 2, 128, dtype="float16"), 16, roles=(8, 0)),
    "few rows of two warpgroups": Case(HybridBatch((6,), (749,), 5, 1, 128, page_size=16), 3, splits=3, roles=(8, 0)),
    "few rows, 18 parts": Case(HybridBatch((9, 3), (18 * 128, 300), 3, 1, 64, page_size=64), 9, splits=18, free_sms=4),
    "few rows, 40 parts": Case(HybridBatch((2,), (40 * 128,), 14, 1, 64, page_size=16), 10, splits=40, free_sms=4),
    "few rows, no mask": Case(HybridBatch((4, 2, 3), (1900, 500, 77), 8, 1, 64, causal=False), 9, splits=9),
    "few rows, padding": Case(HybridBatch((3, 0, 1), (400, 0, 0), 8, 2, 64, page_size=24), 4, splits=3, roles=(8, 0)),
    "nothing but padding": Case(HybridBatch((1, 0, 1), (0, 0, 0), 4, 2, 64, page_size=16), 2),
    "single tokens as few rows": Case(HybridBatch((1, 1, 0, 1), (640, 65, 0, 0), 6, 2, 128, page_size=16), 4),
    "decode only, prefill yields": Case(HybridBatch((1, 1, 1), (64, 65, 500), 8, 1, 64), 4, roles=(8, 1), yields=True),
    "prefill yields to decode": Case(HybridBatch((100, 1, 1), (300, 700, 520), 4, 2, 64), 2, yields=True),
    "one key short of a tile": Case(HybridBatch((31, 1, 1, 9), (255, 63, 127, 130), 4, 2, 64), 2),
    "one key short of a tile, small pages": Case(HybridBatch((31, 1, 1), (127, 127, 191), 4, 2, 64, page_size=16), 2),
    "one key over a tile": Case(HybridBatch((31, 1, 1), (129, 65, 1), 4, 2, 64, page_size=64), 2),
    "12 heads in a group": Case(HybridBatch((20, 1, 1), (100, 90, 200), 12, 1, 64), 2),
    "5 heads in a group": Case(HybridBatch((20, 1, 1), (100, 90, 200), 10, 2, 64, page_size=32), 2),
    "pages of 128": Case(HybridBatch((70, 1, 1), (300, 400, 129), 4, 2, 64, page_size=128), 2),
    "pages of 256": Case(HybridBatch((70, 1, 1), (600, 400, 257), 2, 1, 128, page_size=256), 2),
    "69 pages of a decode": Case(HybridBatch((1, 30, 1), (40, 600, 1100), 2, 1, 64, page_size=16), 2),
    "head dim 128, small pages": Case(HybridBatch((40, 1), (150, 300), 4, 2, 128, page_size=16), 2),
    "34 parts of a decode": Case(HybridBatch((1,), (34 * 8 * 64,), 2, 1, 64), 34, roles=(8, 4), free_sms=4),
    "7 heads in a group, packed": Case(HybridBatch((20, 30, 1), (100, 290, 200), 14, 2, 64, page_size=16), 2),
    "7 heads in a group, head dim 128": Case(HybridBatch((40, 1), (300, 200), 7, 1, 128, page_size=16), 3),
    "71 heads of one": Case(HybridBatch((1, 3, 1), (100, 290, 700), 71, 1, 64, page_size=16), 2),
    "71 heads, a chunk and decodes": Case(HybridBatch((40, 1), (300, 200), 71, 1, 64), 2),
    "100 heads, head dim 128": Case(HybridBatch((1, 2), (300, 200), 100, 1, 128, page_size=32), 2),
    "4 tokens of 4 heads": Case(HybridBatch((4, 4, 1, 3), (300, 64, 99, 130), 8, 2, 64, 16), 4, roles=(16, 4)),
    "4 tokens, no mask": Case(HybridBatch((4, 4, 1), (300, 64, 20), 8, 2, 64, causal=False), 4, roles=(16, 4)),
    "2 tokens of 7 heads": Case(HybridBatch((2, 2, 1), (300, 65, 200), 14, 2, 128, 16), 4, roles=(16, 2)),
    "4 tokens of 7 heads beside a chunk": Case(HybridBatch((4, 60, 2, 1), (300, 65, 129, 4), 14, 2, 128), 4),
    "8 tokens of one head": Case(HybridBatch((8, 6, 8), (8, 700, 129), 2, 2, 64, page_size=64), 4, roles=(8, 8)),
    "16 rows": Case(HybridBatch((16, 6, 8), (40, 700, 129), 2, 2, 64, page_size=16), 4, roles=(16, 16)),
    "16 rows, head dim 128": Case(HybridBatch((4, 2, 1), (300, 65, 200), 8, 2, 128, page_size=16), 4, roles=(16, 4)),
    "34 parts of 16 rows": Case(HybridBatch((2,), (34 * 8 * 64,), 7, 1, 64), 34, parts=34, roles=(16, 2), free_sms=4),
    "12 parts of a decode": Case(HybridBatch((1,), (12 * 4 * 64,), 2, 1, 64), 12, parts=12, roles=(8, 4), free_sms=4),
    "260 parts of a decode": Case(HybridBatch((1,), (260 * 64,), 2, 1, 64), 260, parts=260, roles=(8, 4), free_sms=4),
    "invariant": Case(HybridBatch((130, 3, 1, 1), (4500, 200, 3000, 60), 2, 1, 64, page_size=16), 3, invariant=True),
    "padding": Case(HybridBatch((1, 0, 64, 1, 0, 1), (0, 0, 200, 77, 50, 0), 4, 2, 64, page_size=16), 2),
    "padding, invariant": Case(HybridBatch((1, 3, 1), (0, 90, 77), 4, 2, 64, page_size=16), 2, invariant=True),
    "padding of 16 rows": Case(HybridBatch((1, 2, 0, 1), (0, 90, 0, 0), 14, 2, 128), 2, roles=(16, 2)),
    "padding of 71 heads": Case(HybridBatch((1, 3, 1, 0), (0, 290, 0, 0), 71, 1, 64, page_size=16), 2),
    "pages of 8": Case(HybridBatch((64, 1, 1, 3), (256, 1, 700, 90), 4, 2, 64, page_size=8), 2),
    "pages of 24": Case(HybridBatch((64, 1, 1, 1), (250, 301, 77, 640), 4, 2, 128, page_size=24), 2),
    "pages of 136": Case(HybridBatch((64, 1, 1), (250, 301, 640), 8, 1, 64, page_size=136), 2, roles=(16, 1)),
    "three warpgroups, pages of 40": Case(HybridBatch((96,), (520,), 6, 3, 64, page_size=40), 2),
    "rules": Case(HybridBatch((64, 1, 1, 3), (456, 300, 77, 200), 4, 2, 64, page_size=16, **RULES), 2),
    "rules, contiguous": Case(HybridBatch((300, 1, 1, 3), (456, 300, 77, 200), 4, 2, 128, **RULES), 3),
    "rules, three warpgroups": Case(HybridBatch((300, 100), (756, 300), 4, 2, 64, page_size=16, **RULES), 3),
    "rules, both sides split": Case(
        HybridBatch((130, 1), (820, 1500), 4, 2, 64, **RULES | {"window": 400}), 6, splits=2
    ),
    "rules, drafts": Case(HybridBatch((4, 2, 1), (300, 65, 500), 8, 2, 64, 16, **RULES), 4, roles=(16, 4)),
    "rules, padding": Case(HybridBatch((1, 0, 64, 1, 0, 1), (0, 0, 200, 77, 50, 0), 4, 2, 64, 16, **RULES), 2),
    "rules, invariant": Case(
        HybridBatch((130, 3, 1), (4500, 200, 3900), 2, 1, 64, page_size=16, **RULES | {"window": 3300}),
        3,
        invariant=True,
    ),
    "a window of one key": Case(HybridBatch((140, 1, 2), (300, 129, 64), 4, 2, 64, 16, **RULES | {"window": 1}), 2),
    "a window over all": Case(HybridBatch((300, 1), (756, 1000), 4, 2, 64, 16, **RULES | {"window": 1 << 20}), 3),
    "the least cap": Case(HybridBatch((40, 1), (90, 100), 4, 2, 64, 16, **RULES | {"softcap": SOFTCAPS[0]}), 2),
    "the largest cap": Case(HybridBatch((40, 1), (90, 100), 4, 2, 64, 16, **RULES | {"softcap": SOFTCAPS[1]}), 2),
    "a wider table": Case(HybridBatch((20, 1, 1), (90, 100, 33), 4, 2, 64, page_size=16), 2, layout=WIDER_TABLE),
}


def check(case: Case):
    outcome = Outcome(library("hybrid90"), case)
    assert outcome.report is None, outcome.report
    return outcome.error, outcome.lse_error


@pytest.mark.parametrize("name", CASES)
def test_hopper_kernel_is_right_and_breaks_no_rule(name):
    case = CASES[name]
    error, lse_error = check(case)
    assert error < (0.001 if case.batch.dtype == "float16" else 0.008)
    assert lse_error < 1e-4


ways = {"sms": st.sampled_from([1, 3, 16]), "splits": st.sampled_from([None, 2, 3]), "yields": st.booleans()}


@settings(max_examples=15)
@given(st.builds(Case, batches(), **ways, layout=st.sampled_from([PLAIN, ENGINE]) | layouts(), seed=SEEDS))
def test_random_batches_are_right_and_break_no_rule(case):
    error, lse_error = check(case)
    assert error < (0.002 if case.batch.dtype == "float16" else 0.016)
    assert lse_error < 1e-4


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_orders_of_events_give_the_same(seed):
    error, lse_error = check(replace(CASES["both sides split"], seed=seed, yields=True))
    assert error < 0.008 and lse_error < 1e-4


@pytest.mark.parametrize("q_lens, kv_lens", [((150, 1), (520, 400)), ((200,), (700,))])
def test_maxima_that_keep_rising_are_raised(q_lens, kv_lens):
    error, lse_error = check(Case(HybridBatch(q_lens, kv_lens, 2, 1, 64, dtype="float16"), 2, rise=40))
    assert error < 0.004 and lse_error < 1e-3


STRIDED = {"engine": ENGINE, "heads outside": HEADS_OUTSIDE, "heads first": HEADS_FIRST}


@pytest.mark.parametrize("layout", STRIDED.values(), ids=STRIDED)
@pytest.mark.parametrize(
    "name", ("small pages, ragged", "fp16, head dim 128", "pages of 24", "a chunk and four decodes")
)
def test_strided_tensors_are_read_where_they_lie(name, layout):
    outcome = Outcome(library("hybrid90"), replace(CASES[name], layout=layout))
    assert outcome.report is None and outcome.error < 0.008 and outcome.lse_error < 1e-4


@pytest.mark.parametrize("token, head", [(256, 128), (128, 2048)], ids=["tokens outside", "heads outside"])
def test_pages_may_begin_at_any_16_bytes(token, head):
    """Between two pages lie 8 elements that are no row's, so that heads begin at multiples of as few."""
    batch = HybridBatch((40, 1), (150, 300), 4, 2, 128, 16)
    q, *caches, table = batch.tensors(seed=1)
    page = 16 * 2 * 128 + 8
    k, v = (torch.full((len(x) * page,), torch.nan, dtype=x.dtype).as_strided(x.shape, (page, token, head, 1)).copy_(x)
            for x in caches)  # fmt: skip
    outcome = Outcome(library("hybrid90"), Case(batch, 2, given=(q, k, v, table)))
    assert outcome.report is None and outcome.error < 0.008 and outcome.lse_error < 1e-4


def test_places_that_31_bits_do_not_hold_make_no_map(monkeypatch):
    """Python refuses such a cache first; two pages so far apart would be one step otherwise."""
    describe = hybrid90.describe

    def far(*given):
        launch = describe(*given)
        launch.kv_page, launch.kv_head, launch.pages = 8 * (2**32 + 1), 128, 2
        return launch

    monkeypatch.setattr(hybrid90, "describe", far)
    outcome = Outcome(library("hybrid90"), Case(HybridBatch((40,), (150,), 4, 2, 128, 16), 2))
    assert "no tensor map could be made" in outcome.report


@pytest.mark.parametrize("layout", (PLAIN, *STRIDED.values()), ids=("plain", *STRIDED))
@pytest.mark.parametrize("head_dim, page_size", [(128, 16), (64, 24), (128, 128)])
def test_pages_that_are_not_there_are_zeros(head_dim, page_size, layout, monkeypatch):
    """Whatever number stands in the table: some, times the heads of a page, would be others by 32 bits."""
    batch = HybridBatch((40, 1), (150, 300), 4, 2, head_dim, page_size)
    q, k, v, table = batch.tensors(seed=1)
    k, v = (torch.cat([x, torch.zeros_like(x[:1])]) for x in (k, v))
    wanted, none = table.clone(), torch.tensor([-1, len(k), 1 << 28, 2**31 - 1, -(1 << 31)])
    table[:, 1:], wanted[:, 1:] = none[torch.arange(table.shape[1] - 1) % len(none)], len(k) - 1
    monkeypatch.setattr(hybrid90, "hybrid_attention", partial(reference_from, wanted))
    outcome = Outcome(library("hybrid90"), Case(batch, 2, layout=layout, given=(q, k, v, table)))
    assert outcome.report is None and outcome.error < 0.008 and outcome.lse_error < 1e-4


def reference_from(table, q, k, v, q_lens, kv_lens, _, **rules):
    return hybrid_attention(q, k, v, q_lens, kv_lens, table, **rules)


@pytest.mark.parametrize("q_len, roles", [(1, None), (70, None), (4, (16, 4))])
def test_pages_128_tokens_before_all_windows_may_hold_anything(q_len, roles):
    batch = HybridBatch((q_len,), (500,), 4, 2, 64, 16, **RULES)
    q, k, v, table = batch.tensors(seed=1)
    before = 500 - batch.seen_lens[0] - 127
    for page in table[0, : before // 16].tolist():
        k[page], v[page] = 0, 1000  # the reference wants numbers
    outs = []
    for _ in range(2):
        outcome = Outcome(library("hybrid90"), Case(batch, 2, roles=roles, given=(q, k, v, table)))
        assert outcome.report is None
        outs.append(outcome.out)
        for page in table[0, : before // 16].tolist():
            k[page] = v[page] = torch.nan
    assert torch.equal(*outs)


def test_prefill_alone_is_tried_with_two_and_with_three_warpgroups():
    rows = {name: case.placed().schedule.shape.prefill_rows for name, case in CASES.items() if not case.batch.decode}
    assert {"three" in name: tile for name, tile in rows.items()} == {True: 192, False: 128}, rows


def test_few_rows_alone_have_their_own_kernel_and_are_tried_in_parts():
    made = {name: case.placed().schedule for name, case in CASES.items()}
    assert {name for name, s in made.items() if s.shape == NARROW} >= {name for name in CASES if "few rows" in name}
    assert {most for name, s in made.items() if "few rows" in name for most in [s.prefill.parts.max()]} >= {3, 18, 40}


def test_parts_of_unequal_length_are_tried():
    work = CASES["prefill only, in ranges"].placed().schedule.prefill
    assert len({(end - begin) // 128 for begin, end in zip(work.begin, work.end, strict=True)}) > 3
    assert work.parts.max() > 1


def test_more_parts_are_tried_than_are_merged_at_a_time():
    parts = CASES["34 parts of a decode"].placed().schedule.decode.parts
    assert parts[0] == 34 > 32


@pytest.mark.parametrize("name", ("both sides split", "a chunk and four decodes"))
def test_it_ends_when_other_work_holds_all_sms_but_one(name):
    """Its CTAs then run one after the other. Whoever waited for a later one would wait for ever."""
    error, lse_error = check(replace(CASES[name], free_sms=1))
    assert error < 0.008 and lse_error < 1e-4


def test_an_invariant_plan_gives_the_same_bits_in_any_company():
    """A chunk, a draft and a decode, each in parts; beside them others, before and behind, on other SMs."""
    mine, others = [(60, 4400), (2, 3300), (1, 6500)], [(30, 100), (1, 700), (3, 90), (9, 2000)]
    together = [others[0], mine[0], others[1], mine[1], others[2], mine[2], others[3]]
    big = HybridBatch(*zip(*together, strict=True), 4, 2, 64)
    q, k, v, _ = big.tensors(seed=3)
    starts = np.cumsum([0, *big.q_lens])
    whole = Outcome(library("hybrid90"), Case(big, 3, invariant=True, given=(q, k, v, None)))
    assert whole.text == "right result"
    for i in (1, 3, 5):
        own = slice(int(starts[i]), int(starts[i + 1]))
        batch, tensors = HybridBatch(*zip(together[i], strict=True), 4, 2, 64), (q[own], k[i : i + 1], v[i : i + 1])
        alone = Outcome(library("hybrid90"), Case(batch, 7, invariant=True, given=(*tensors, None)))
        assert alone.text == "right result" and torch.equal(alone.out, whole.out[own])
