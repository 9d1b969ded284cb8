"""Plans that the card makes itself: one captured graph, many lengths."""

import random

import on_card
import pytest
import torch
from on_card import spoil_free_memory

import pod
from pod.batch import HybridBatch

SHAPE = {"num_q_heads": 16, "num_kv_heads": 4, "head_dim": 128}
TOKENS, SEQUENCES, LONGEST, PAGE, WINDOW = 700, 24, 3000, 16, 500

pytestmark = pytest.mark.usefixtures("hopper")


def asked():
    yield from on_card.asked()
    yield "hopper", HybridBatch([1], [LONGEST], **SHAPE, page_size=PAGE)
    yield "hopper", HybridBatch([1], [LONGEST], **SHAPE, page_size=PAGE, window=WINDOW)
    yield "hopper", HybridBatch([1], [LONGEST], **SHAPE, page_size=PAGE, kv_dtype="float8_e4m3fn")


def lengths(seed: int) -> tuple[list[int], list[int]]:
    """Decodes, drafts, chunks, sequences without tokens and padding: at most TOKENS and SEQUENCES."""
    draw, left, lens = random.Random(seed), TOKENS, []
    for _ in range(draw.randint(1, SEQUENCES)):
        kv = draw.randint(1, LONGEST)
        new = min(draw.choice((0, 1, 1, 1, 4, draw.randint(1, 300))), kv, left)
        lens.append(draw.choice(((new, kv), (new, kv), (new, kv), (1, 0) if left else (0, 0))))
        left -= lens[-1][0]
    return tuple(map(list, zip(*lens, strict=True)))


def filled(pages: int):
    """Room for all sequences at their longest, and a table that uses all of it in random order."""
    each = -(-LONGEST // PAGE)
    torch.manual_seed(1)
    cache = torch.randn(2, SEQUENCES * each, PAGE, 4, 128, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(SEQUENCES * each, device="cuda", dtype=torch.int32).view(SEQUENCES, each)
    return *cache, table


def expected(q, k, v, table, q_lens, kv_lens, window=None):
    """By plans of the usual kind, each for these lengths alone."""
    n = sum(q_lens)
    plan = pod.plan(q_lens, kv_lens, **SHAPE, page_size=PAGE, method="hopper", window=window)
    return pod.hybrid_attention(q[:n], k, v, plan, table[: len(q_lens)])


@pytest.mark.parametrize("draft, window", [(1, None), (4, None), (1, WINDOW), (4, 1)])
def test_one_graph_serves_all_lengths(draft, window):
    k, v, table = filled(SEQUENCES)
    q = torch.randn(TOKENS, 16, 128, device="cuda", dtype=torch.bfloat16)
    work = pod.workspace(TOKENS, SEQUENCES, LONGEST, **SHAPE, page_size=PAGE, draft=draft, window=window)
    lens = torch.zeros(2, SEQUENCES, dtype=torch.int32, device="cuda")
    out, graph = torch.full_like(q, 7.0), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work.update(*lens)
        pod.hybrid_attention(q, k, v, work, table, out=out)
    for seed in range(60):
        q_lens, kv_lens = lengths(seed)
        if not any(q_lens):
            continue
        lens.zero_()
        lens[0, : len(q_lens)], lens[1, : len(kv_lens)] = torch.tensor(q_lens), torch.tensor(kv_lens)
        spoil_free_memory()
        out.fill_(7.0)
        graph.replay()
        want = expected(q, k, v, table, q_lens, kv_lens, window)
        torch.testing.assert_close(out[: sum(q_lens)], want, atol=4e-3, rtol=2e-2)
        assert bool((out[sum(q_lens) :] == 7.0).all()), "rows that no sequence has were written"
    assert not work.placed().counters.any()


def test_a_cache_of_8_bits_has_a_workspace_too():
    k, v, table = (x.to(torch.float8_e4m3fn) if x.is_floating_point() else x for x in filled(SEQUENCES))
    q = torch.randn(TOKENS, 16, 128, device="cuda", dtype=torch.bfloat16)
    work = pod.workspace(TOKENS, SEQUENCES, LONGEST, **SHAPE, page_size=PAGE, kv_dtype=k.dtype)
    scales = {"k_scale": torch.full((4,), 0.5, device="cuda"), "v_scale": 2.0}
    for seed in range(20):
        q_lens, kv_lens = lengths(seed)
        n = sum(q_lens)
        if not n:
            continue
        work.update(*(torch.tensor(x, device="cuda") for x in (q_lens, kv_lens)))
        got = pod.hybrid_attention(q, k, v, work, table, **scales)[:n]
        plan = pod.plan(q_lens, kv_lens, **SHAPE, page_size=PAGE, kv_dtype=k.dtype, method="hopper")
        want = pod.hybrid_attention(q[:n], k, v, plan, table[: len(q_lens)], **scales)
        torch.testing.assert_close(got, want, atol=8e-3, rtol=2e-2)


def test_updates_from_the_host_and_from_the_card_make_the_same_lists():
    work = pod.workspace(TOKENS, SEQUENCES, LONGEST, **SHAPE, page_size=PAGE)
    for seed in range(20):
        q_lens, kv_lens = lengths(seed)
        if not any(q_lens):
            continue
        work.placed().lists.zero_()
        work.update(q_lens, kv_lens)
        host = work.placed().lists.clone()
        work.placed().lists.zero_()
        work.update(*(torch.tensor(x, device="cuda") for x in (q_lens, kv_lens)))
        assert torch.equal(work.placed().lists, host)


def test_lengths_over_the_limits_are_cut_off_on_the_card_and_refused_on_the_host():
    k, v, table = filled(SEQUENCES)
    q = torch.randn(TOKENS, 16, 128, device="cuda", dtype=torch.bfloat16)
    work = pod.workspace(TOKENS, SEQUENCES, LONGEST, **SHAPE, page_size=PAGE)
    wild = torch.randint(-(2**31), 2**31 - 1, (30, 2, SEQUENCES), device="cuda").int()
    guarded = torch.full((TOKENS + 512, 16, 128), 7.0, device="cuda", dtype=torch.bfloat16)
    for lens in [*wild, *(wild % 4000)]:
        work.update(*lens)
        pod.hybrid_attention(q, k, v, work, table, out=guarded[256 : 256 + TOKENS])
    torch.cuda.synchronize()
    assert bool((guarded[:256] == 7.0).all()) and bool((guarded[256 + TOKENS :] == 7.0).all())
    assert not work.placed().counters.any()
    with pytest.raises(ValueError, match="allowed by the workspace are 700, 24 and 3000"):
        work.update([1], [LONGEST + 1])
    with pytest.raises(ValueError, match="allowed by the workspace"):
        work.update([1] * (SEQUENCES + 1), [5] * (SEQUENCES + 1))


def test_lengths_of_the_host_are_refused_in_a_capture():
    work = pod.workspace(TOKENS, SEQUENCES, LONGEST, **SHAPE, page_size=PAGE)
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(RuntimeError, match="allowed are tensors on cuda"):
        work.update([1], [5])


def test_fewer_sms_give_the_same():
    k, v, table = filled(SEQUENCES)
    q_lens, kv_lens = [1, 300, 1, 4], [2000, 900, 5, 64]
    q = torch.randn(sum(q_lens), 16, 128, device="cuda", dtype=torch.bfloat16)
    want = expected(q, k, v, table, q_lens, kv_lens)
    for margin in (1, 12, 131):
        work = pod.workspace(len(q), 4, LONGEST, **SHAPE, page_size=PAGE, sm_margin=margin)
        work.update(q_lens, kv_lens)
        torch.testing.assert_close(pod.hybrid_attention(q, k, v, work, table), want, atol=4e-3, rtol=2e-2)


def test_out_is_written_and_returned(method):
    batch = HybridBatch([1] * 4, [900, 64, 3000, 1], 16, 4, 128, page_size=16)
    q, k, v, table = batch.tensors(device="cuda")
    plan, out = pod.plan(batch, method=method), torch.full_like(q, torch.nan)
    want = pod.hybrid_attention(q, k, v, plan, table)
    assert pod.hybrid_attention(q, k, v, plan, table, out=out) is out and torch.equal(out, want)
    with pytest.raises(ValueError, match="^out: got strides"):
        pod.hybrid_attention(q, k, v, plan, table, out=torch.empty(4, 16, 256, dtype=q.dtype, device="cuda")[..., ::2])
