"""What models ask of their scores, on a card: windows, softcaps and sinks against float64, alone and together."""

import itertools

import pytest
import torch

import pod
from pod.batch import HybridBatch
from pod.reference import hybrid_attention

WANTED = {"window": (None, 1, 100, 1000, 1 << 20), "softcap": (None, 5.0, 50.0), "sinks": (False, True)}
SETS = [dict(zip(WANTED, values, strict=True)) for values in itertools.product(*WANTED.values())][1:]
SHAPES = [(32, 8, 128, 16), (8, 1, 64, 64), (28, 4, 128, None), (6, 3, 64, 256), (16, 4, 128, 8), (10, 2, 64, 48)]
Q_LENS, KV_LENS = (1, 300, 1, 4, 1, 70), (900, 1500, 64, 3000, 1, 70)
# Of tests that have their own.
SINGLE = [
    ((32, 8, 128, 16), {"window": 700, "sinks": True}),
    ((8, 2, 128, 128), {"window": 300}),
    ((8, 2, 64, 16), {"sinks": True}),
    ((8, 2, 64, 16), {}),
    ((8, 1, 64, 16), {"softcap": 30.0, "sinks": True}),
    ((8, 1, 64, 16), {"window": 64, "sinks": True}),
]
ALONE = ((300, 200), (700, 200))  # prompts: at head_dim 64 three warpgroups of prefill


def asked():
    ruled = ((SHAPES[i % len(SHAPES)], rules) for i, rules in enumerate(SETS))
    for shape, rules in (*ruled, *((shape, {}) for shape in SHAPES), *SINGLE):
        yield "hopper", HybridBatch(Q_LENS, KV_LENS, *shape, **rules)


def checked(batch: HybridBatch, atol: float = 0.02, **how) -> None:
    q, k, v, table = batch.tensors(seed=3, device="cuda")
    sinks = torch.linspace(-2, 4, batch.num_q_heads, device="cuda") if batch.sinks else None
    plan = pod.plan(batch, method="hopper", **how)
    out, lse = pod.hybrid_attention(q, k, v, plan, table, return_lse=True, sinks=sinks)
    rules = {"window": batch.window, "softcap": batch.softcap, "sinks": sinks}
    want, want_lse = hybrid_attention(q, k, v, batch.q_lens, batch.kv_lens, table, **rules)
    assert torch.allclose(out.double().cpu(), torch.from_numpy(want), atol=atol, rtol=0)
    assert torch.allclose(lse.double().cpu(), torch.from_numpy(want_lse), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rules", SETS, ids=str)
def test_rules_match_float64(hopper, rules):
    shape = SHAPES[SETS.index(rules) % len(SHAPES)]
    heads, page_size = shape[:3], shape[3]
    for lens in ((Q_LENS, KV_LENS), ALONE):
        checked(HybridBatch(*lens, *heads, page_size=page_size, **rules))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pages_of_any_multiple_of_8(hopper, shape):
    *heads, page_size = shape
    checked(HybridBatch(Q_LENS, KV_LENS, *heads, page_size=page_size))
    checked(HybridBatch(*ALONE, *heads, page_size=page_size))


def test_a_window_with_fixed_cuts(hopper):
    checked(HybridBatch(Q_LENS, KV_LENS, 32, 8, 128, page_size=16, window=700, sinks=True), invariant=True)


def test_pages_before_every_window_are_not_read(hopper):
    """An engine may have given them away: what lies there changes nothing, be it NaN."""
    batch = HybridBatch((1, 40), (2000, 1900), 8, 2, 128, page_size=128, window=300)
    q, k, v, table = batch.tensors(device="cuda")
    plan = pod.plan(batch, method="hopper")
    want = pod.hybrid_attention(q, k, v, plan, table)
    for row, first in ((0, (2000 - 300) // 128), (1, (1900 - 40 + 1 - 300) // 128)):
        k[table[row, :first].long()], v[table[row, :first].long()] = torch.nan, torch.nan
    assert torch.equal(pod.hybrid_attention(q, k, v, plan, table), want)


def test_sinks_are_asked_for_and_checked(hopper):
    batch = HybridBatch((1, 40), (200, 190), 8, 2, 64, page_size=16, sinks=True)
    q, k, v, table = batch.tensors(device="cuda")
    plan, bare = pod.plan(batch), pod.plan(HybridBatch((1, 40), (200, 190), 8, 2, 64, page_size=16))
    sinks = torch.zeros(8, device="cuda")
    for given in (None, sinks.bfloat16(), sinks[:4], sinks.cpu(), torch.zeros(16, device="cuda")[::2]):
        with pytest.raises(ValueError, match="sinks: got"):
            pod.hybrid_attention(q, k, v, plan, table, sinks=given)
    with pytest.raises(ValueError, match="sinks: got some, allowed by the plan is None"):
        pod.hybrid_attention(q, k, v, bare, table, sinks=sinks)


def test_a_workspace_takes_softcap_and_sinks(hopper):
    batch = HybridBatch(Q_LENS, KV_LENS, 8, 1, 64, page_size=16, softcap=30.0, sinks=True)
    q, k, v, table = batch.tensors(device="cuda")
    sinks = torch.linspace(-2, 4, 8, device="cuda")
    room = pod.workspace(len(q), len(Q_LENS), max(KV_LENS), 8, 1, 64, 16, softcap=30.0, sinks=True)
    room.update(Q_LENS, KV_LENS)
    want = pod.hybrid_attention(q, k, v, pod.plan(batch), table, sinks=sinks)
    assert torch.allclose(pod.hybrid_attention(q, k, v, room, table, sinks=sinks), want, atol=0.02)


def test_a_compiled_model_takes_sinks(hopper):
    batch = HybridBatch(Q_LENS, KV_LENS, 8, 1, 64, page_size=16, window=64, sinks=True)
    q, k, v, table = batch.tensors(device="cuda")
    sinks, plan = torch.linspace(-2, 4, 8, device="cuda"), pod.plan(batch)
    layer = torch.compile(lambda q: pod.hybrid_attention(q, k, v, plan, table, sinks=sinks) * 2, fullgraph=True)
    assert torch.equal(layer(q), 2 * pod.hybrid_attention(q, k, v, plan, table, sinks=sinks))
