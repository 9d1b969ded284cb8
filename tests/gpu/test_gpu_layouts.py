"""Strides on a card: whatever the view, the result is that of the tensors laid out plainly, to the bit."""

from itertools import product

import on_card
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import lay_out, layouts
from on_card import batch_for, prepared, run

import pod
from pod.attention import METHODS
from pod.batch import HEAD_DIMS, HybridBatch

HEADS, PAGES = [(2, 2), (8, 2), (6, 1), (14, 2), (24, 2)], [None, 16, 64, 128]
BATCHES = st.builds(
    lambda lens, heads, head_dim, page_size: HybridBatch(*zip(*lens, strict=True), *heads, head_dim, page_size),
    st.lists(st.sampled_from([(1, 1), (1, 17), (1, 700), (5, 5), (33, 200), (129, 513)]), min_size=1, max_size=5),
    st.sampled_from(HEADS),
    st.sampled_from(HEAD_DIMS),
    st.sampled_from(PAGES),
)


def asked():
    yield from on_card.asked()
    for method, heads, head_dim, page_size in product(METHODS, HEADS, HEAD_DIMS, PAGES):
        yield method, HybridBatch([1], [300], *heads, head_dim, page_size)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=BATCHES, layout=layouts())
def test_views_give_the_same_bits(method, batch, layout):
    if method == "lean":
        batch = HybridBatch([1] * len(batch.q_lens), batch.kv_lens, *batch_shape(batch))
    tensors = batch.tensors(device="cuda")
    plan = pod.plan(batch, method=method)
    q, k, v, table = lay_out(tensors, **layout)
    assert torch.equal(pod.hybrid_attention(q, k, v, plan, table), run(plan, tensors))


def batch_shape(batch) -> tuple:
    return batch.num_q_heads, batch.num_kv_heads, batch.head_dim, batch.page_size


def test_a_view_of_a_wider_table_reads_its_own_pages(method):
    """What every engine passes: a corner of its persistent table."""
    plan, (q, k, v, table), want = prepared(method)
    wide = torch.randint(len(k), (len(table) + 7, table.shape[1] + 100), dtype=torch.int32, device="cuda")
    wide[: len(table), : table.shape[1]] = table
    corner = wide[: len(table), : table.shape[1]]
    assert torch.equal(pod.hybrid_attention(q, k, v, plan, corner), want)


def test_one_cache_row_may_serve_all_sequences(method):
    """A cache expanded over the sequences, with a stride of 0."""
    batch = batch_for(method)
    batch = HybridBatch(batch.q_lens, batch.kv_lens, *batch_shape(batch)[:3])
    q, k, v, _ = batch.tensors(device="cuda")
    k, v = (torch.randn_like(x[:1]).expand_as(x) for x in (k, v))
    plan = pod.plan(batch, method=method)
    want = pod.hybrid_attention(q, k.contiguous(), v.contiguous(), plan)
    assert torch.equal(pod.hybrid_attention(q, k, v, plan), want)


def test_strides_beyond_32_bits_are_read_or_refused(method):
    """A page stride may be anything; the other strides of the sm_80 family have 32 bits."""
    batch = HybridBatch([1, 1], [40, 50], 2, 2, 64)
    q, k, v, _ = batch.tensors(device="cuda")
    plan = pod.plan(batch, method="pod" if method == "lean" else method)
    want = pod.hybrid_attention(q, k, v, plan)
    strides = (64, 128, (1 << 31) + 64, 1)
    far = [torch.empty_strided(k.shape, strides, dtype=k.dtype, device="cuda").copy_(x) for x in (k, v)]
    if plan.method == "hopper":
        assert torch.equal(pod.hybrid_attention(q, *far, plan), want)
    else:
        with pytest.raises(ValueError, match="k_cache: got a stride of 2147483712 elements, allowed are up to"):
            pod.hybrid_attention(q, *far, plan)


@pytest.mark.parametrize("page", [1 << 20, -1, 2**31 - 1, -(2**31)])
def test_a_wrong_page_stays_in_the_pool_and_spoils_nobody_else(method, page):
    plan, (q, k, v, table), want = prepared(method)
    row = len(want) - 2  # not the last sequence's
    wrong = table.clone()
    wrong[0] = page
    got = pod.hybrid_attention(q, k, v, plan, wrong)
    torch.cuda.synchronize()
    assert torch.equal(got[row:], want[row:]) and not torch.equal(got[0], want[0])
    assert torch.equal(run(plan, (q, k, v, table)), want)
