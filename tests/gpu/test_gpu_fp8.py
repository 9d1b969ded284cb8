"""Caches of 8 bits on a card: against float64 over what they stand for, beside chunks and alone."""

from itertools import product

import pytest
import torch

import pod
from pod.batch import HybridBatch
from pod.reference import hybrid_attention

KV = "float8_e4m3fn"
DECODES = ((1,) * 6, (900, 64, 3000, 1, 77, 513))
DRAFTS = ((4, 2, 3, 1), (900, 64, 3000, 77))
BESIDE = ((300, 1, 1, 40, 1), (900, 1500, 64, 200, 3000))
CHUNKS = ((300, 70), (700, 70))
SHAPES = [(32, 8, 128, 16), (28, 4, 128, 64), (32, 8, 128, None), (8, 8, 64, 32), (32, 4, 128, 128), (40, 2, 64, 16),
          (16, 4, 128, 8), (10, 2, 64, 48)]  # fmt: skip


def asked():
    for lens, shape in product((DECODES, DRAFTS, BESIDE, CHUNKS), SHAPES):
        yield "hopper", HybridBatch(*lens, *shape, kv_dtype=KV)
    yield "hopper", HybridBatch(*BESIDE, 32, 8, 128, 16, "float16", kv_dtype=KV)


def quantised(batch: HybridBatch):
    """Queries, caches of 8 bits, what 1 in them stands for, and the table."""
    q, *caches, table = batch.tensors(seed=3, device="cuda")
    steps = torch.linspace(0.25, 1.5, batch.num_kv_heads, device="cuda")
    return q, *caches, steps, steps.flip(0).contiguous(), table


def checked(batch: HybridBatch, **how) -> None:
    q, k, v, k_scale, v_scale, table = quantised(batch)
    plan = pod.plan(batch, method="hopper", **how)
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    out, lse = pod.hybrid_attention(q, k, v, plan, table, return_lse=True, **scales)
    wide = (x.double() * scale.double()[:, None] for x, scale in ((k, k_scale), (v, v_scale)))
    want, want_lse = hybrid_attention(q, *wide, batch.q_lens, batch.kv_lens, table)
    assert torch.allclose(out.double().cpu(), torch.from_numpy(want), atol=0.03, rtol=0)
    assert torch.allclose(lse.double().cpu(), torch.from_numpy(want_lse), atol=1e-4, rtol=1e-5)
    assert torch.equal(pod.hybrid_attention(q, k, v, plan, table, **scales), out)


@pytest.mark.parametrize("lens", [DECODES, DRAFTS, BESIDE, CHUNKS], ids=["decodes", "drafts", "beside", "chunks"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_matches_float64(hopper, shape, lens):
    checked(HybridBatch(*lens, *shape[:3], page_size=shape[3], kv_dtype=KV))


@pytest.mark.parametrize("lens", [DECODES, BESIDE], ids=["decodes", "beside"])
def test_half_precision_and_fixed_cuts(hopper, lens):
    checked(HybridBatch(*lens, 32, 8, 128, page_size=16, dtype="float16", kv_dtype=KV))
    checked(HybridBatch(*lens, 32, 8, 128, page_size=16, kv_dtype=KV), invariant=True)


def test_one_long_sequence_in_many_parts(hopper):
    checked(HybridBatch((1,), (40000,), 32, 8, 128, page_size=16, kv_dtype=KV))


def test_a_graph_takes_it(hopper):
    batch = HybridBatch(*BESIDE, 32, 8, 128, page_size=16, kv_dtype=KV)
    q, k, v, k_scale, v_scale, table = quantised(batch)
    plan = pod.plan(batch)
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    want = pod.hybrid_attention(q, k, v, plan, table, **scales)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = pod.hybrid_attention(q, k, v, plan, table, **scales)
    graph.replay()
    assert torch.equal(out, want)


def test_the_operator_passes_opcheck(hopper):
    batch = HybridBatch(*DECODES, 32, 8, 128, page_size=16, kv_dtype=KV)
    q, k, v, k_scale, v_scale, table = quantised(batch)
    plan = pod.plan(batch)
    work = plan.placed()
    given = (q, k, v, table, work.lists, work.counters, work.partials, work.header, 0.1, 0.0, None, True, False, None)
    # test_schema compares tensors of 8 bits by arithmetic that torch does not have
    torch.library.opcheck(plan.operator(), (*given, k_scale, v_scale), test_utils="test_faketensor")


def test_a_compiled_layer_gives_the_same(hopper):
    batch = HybridBatch(*BESIDE, 32, 8, 128, page_size=16, kv_dtype=KV)
    q, k, v, k_scale, _, table = quantised(batch)
    plan, scales = pod.plan(batch), {"k_scale": k_scale, "v_scale": 0.5}
    layer = lambda q, plan: pod.hybrid_attention(q * 2, k, v, plan, table, **scales)  # noqa: E731
    torch._dynamo.reset()
    assert torch.equal(torch.compile(layer, fullgraph=True)(q, plan), layer(q, plan))
