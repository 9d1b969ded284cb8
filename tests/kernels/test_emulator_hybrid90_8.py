"""The Hopper kernel with K and V of 8 bits, run by the emulator and compared with float64 over what they stand for."""

from dataclasses import replace

import pytest
from emulator import library
from emulator.hybrid90 import Case, Outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import ENGINE, HEADS_OUTSIDE, WIDER_TABLE

from pod.batch import HybridBatch

torch = pytest.importorskip("torch")

KV = "float8_e4m3fn"


def case(q_lens, kv_lens, q_heads, kv_heads, head_dim, page_size=None, sms=2, dtype="bfloat16", causal=True, **rest):
    batch = HybridBatch(q_lens, kv_lens, q_heads, kv_heads, head_dim, page_size, dtype, causal, kv_dtype=KV)
    scales = torch.linspace(0.25, 1.5, kv_heads), torch.linspace(3, 0.1, kv_heads)
    return Case(batch, sms, scales=scales, **rest)


CASES = {
    "1 head in a group": case((1, 1), (300, 65), 2, 2, 64, 16),
    "1 head in a group, head dim 128": case((1, 1), (300, 64), 2, 2, 128, 64),
    "4 heads in a group": case((1, 1, 1), (129, 700, 1), 8, 2, 128, 16, sms=4),
    "4 heads, contiguous": case((1, 1, 1), (63, 64, 500), 8, 2, 128, sms=3),
    "5 heads in a group": case((1, 1), (90, 200), 10, 2, 64, 32),
    "5 heads, head dim 128, fp16": case((1, 1), (90, 200), 5, 1, 128, 64, dtype="float16"),
    "8 heads in a group": case((1, 1, 1), (64, 65, 500), 8, 1, 64, sms=4),
    "8 heads, head dim 128": case((1, 1), (640, 130), 16, 2, 128, 16, sms=5),
    "16 heads in a group": case((1, 1), (100, 290), 16, 1, 64, 16),
    "16 heads, head dim 128": case((1, 1), (100, 290), 32, 2, 128, sms=3),
    "pages of 128": case((1, 1), (400, 129), 4, 2, 64, 128),
    "pages of 8": case((1, 1), (400, 129), 4, 2, 64, 8),
    "pages of 24": case((1, 2), (700, 129), 8, 2, 128, 24),
    "2 tokens of 7 heads": case((2, 2, 1), (300, 65, 200), 14, 2, 128, 16, sms=4, roles=(16, 2)),
    "4 tokens of 4 heads": case((4, 4, 1, 3), (300, 64, 99, 130), 8, 2, 64, 16, sms=4, roles=(16, 4)),
    "4 tokens of 4 heads, head dim 128, no mask": case(
        (4, 3, 1), (300, 64, 20), 8, 2, 128, causal=False, roles=(16, 4)
    ),
    "8 tokens of one head": case((8, 6, 8), (8, 700, 129), 2, 2, 64, 64, sms=4, roles=(8, 8)),
    "34 parts of a decode": case((1,), (34 * 8 * 64,), 2, 1, 64, sms=34, free_sms=4),
    "parts of 16 rows": case((2,), (20 * 64,), 7, 1, 128, 16, sms=8, parts=18, free_sms=4, roles=(16, 2)),
    "a chunk and decodes": case((64, 1, 1, 1), (256, 300, 64, 1), 4, 2, 64),
    "a chunk and decodes, head dim 128": case((40, 1, 1), (300, 65, 129), 8, 2, 128, sms=3),
    "a chunk, small pages, ragged": case((1, 64, 1, 1), (300, 200, 77, 1), 4, 2, 128, 16),
    "a chunk, small pages": case((64, 1), (200, 77), 4, 2, 64, 32),
    "a chunk, pages of 8": case((64, 1, 3), (256, 700, 90), 4, 2, 64, 8),
    "a chunk, pages of 24": case((64, 1), (250, 301), 4, 2, 128, 24),
    "a chunk, pages of 64": case((150, 1), (300, 90), 8, 2, 128, 64, sms=3),
    "a chunk, fp16, pages of 128": case((70, 1, 1), (300, 400, 129), 4, 2, 128, 128, dtype="float16"),
    "chunks alone": case((100, 33), (300, 33), 4, 2, 64, 16, sms=6, splits=2),
    "chunks alone, no mask": case((33, 20), (33, 90), 2, 2, 128, causal=False),
    "both sides split": case((130, 1), (520, 1500), 4, 2, 64, sms=6, splits=2),
    "one key over a block": case((31, 1, 1), (129, 65, 1), 4, 2, 64, 64),
    "20 heads in a group": case((1, 3), (100, 290), 20, 1, 64, 16),
    "7 heads, packed": case((20, 30, 1), (100, 290, 200), 14, 2, 128, 16),
    "padding beside a chunk": case((1, 0, 64, 1, 0, 1), (0, 0, 200, 77, 50, 0), 4, 2, 64, 16),
    "padding of 71 heads": case((1, 3, 1, 0), (0, 290, 0, 0), 71, 1, 64, 16),
    "padding": case((1, 0, 1, 1), (0, 0, 77, 50), 4, 2, 64, 16),
    "a wider table": case((1, 1), (100, 33), 4, 2, 64, 16, layout=WIDER_TABLE),
    "invariant": case((1, 1, 1), (3000, 60, 200), 4, 2, 64, 16, sms=3, invariant=True),
}


def check(case: Case):
    outcome = Outcome(library("hybrid90_8"), case)
    assert outcome.report is None, outcome.report
    return outcome.error, outcome.lse_error


@pytest.mark.parametrize("name", CASES)
def test_it_is_right_and_breaks_no_rule(name):
    """The errors are those of the kernel alone: the truth is attention over what the caches stand for."""
    error, lse_error = check(CASES[name])
    largest = float(CASES[name].scales[1].max())  # of V, for which the bounds of 16 bits are meant
    assert error < largest * (0.001 if CASES[name].batch.dtype == "float16" else 0.008)
    assert lse_error < 1e-4


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ["4 heads in a group", "both sides split", "a chunk, small pages, ragged"])
def test_other_orders_of_events_give_the_same(name, seed):
    error, lse_error = check(replace(CASES[name], seed=seed))
    assert error < 0.024 and lse_error < 1e-4


ways = {"page_size": st.sampled_from([None, 16, 64]), "sms": st.sampled_from([1, 3, 16]), "causal": st.booleans(),
        "dtype": st.sampled_from(["float16", "bfloat16"])}  # fmt: skip
new = st.sampled_from([1, 1, 2, 3, 4, 30, 140])
lengths = st.lists(st.tuples(new, st.sampled_from([4, 15, 64, 65, 129, 190])), min_size=1, max_size=4)
lengths = lengths.map(lambda rows: [(min(q_len, kv_len), kv_len) for q_len, kv_len in rows])


@settings(max_examples=10)
@given(
    lengths, st.sampled_from([(1, 1), (4, 1), (2, 2), (6, 2)]), st.sampled_from([64, 128]), st.fixed_dictionaries(ways)
)
def test_random_batches_are_right_and_break_no_rule(lens, heads, head_dim, ways):
    error, lse_error = check(case(*zip(*lens, strict=True), *heads, head_dim, **ways))
    assert error < 3 * (0.002 if ways["dtype"] == "float16" else 0.016)
    assert lse_error < 1e-4


@pytest.mark.parametrize("layout", (ENGINE, HEADS_OUTSIDE), ids=("engine", "heads outside"))
@pytest.mark.parametrize("name", ["4 heads in a group", "a chunk, small pages, ragged"])
def test_strided_tensors_are_read_where_they_lie(name, layout):
    error, lse_error = check(replace(CASES[name], layout=layout))
    assert error < 0.024 and lse_error < 1e-4
