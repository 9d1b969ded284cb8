import math
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.batch import HybridBatch
from pod.reference import State, attention, hybrid_attention

D = 3
HUGE = st.floats(-1e4, 1e4)
NEAR = st.floats(-3, 3)
LOGIT = st.one_of(HUGE, NEAR, st.just(-np.inf), st.sampled_from([1e4, -1e4]))


@st.composite
def pieces(draw, rows=2):
    """Scores [rows, n] with masked entries, values [n, D], and cut points that split the keys, some parts empty."""
    n = draw(st.integers(0, 24))
    scores = np.array(draw(st.lists(LOGIT, min_size=rows * n, max_size=rows * n))).reshape(rows, n)
    values = np.array(draw(st.lists(NEAR, min_size=n * D, max_size=n * D))).reshape(n, D)
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=6)))
    parts = [State.of(scores[:, a:b], values[a:b]) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    return scores, values, parts


def exact(scores, values):
    """Each row by itself in exactly rounded sums: Python's fsum over the shifted exponentials."""
    out, lse = np.zeros((len(scores), D)), np.full(len(scores), -np.inf)
    for r, row in enumerate(scores):
        top = max(row, default=-math.inf)
        if top == -math.inf:
            continue
        weights = [math.exp(x - top) for x in row]
        total = math.fsum(weights)
        out[r] = [math.fsum(w * v for w, v in zip(weights, values[:, d], strict=True)) / total for d in range(D)]
        lse[r] = top + math.log(total)
    return out, lse


def assert_same(state, expected):
    out, lse = state.finish()
    np.testing.assert_allclose(out, expected[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(lse, expected[1], rtol=1e-12, atol=1e-12)


def merge_in_random_tree(parts, draw):
    """Merge any two parts, in either order, until one is left."""
    parts = list(parts)
    while len(parts) > 1:
        a = parts.pop(draw(st.integers(0, len(parts) - 1)))
        b = parts.pop(draw(st.integers(0, len(parts) - 1)))
        parts.append(a.merge(b))
    return parts[0]


@settings(max_examples=200, deadline=None)
@given(pieces(), st.data())
def test_any_split_and_any_tree_give_exact_softmax(piece, data):
    scores, values, parts = piece
    assert_same(merge_in_random_tree(parts, data.draw), exact(scores, values))


@settings(max_examples=100, deadline=None)
@given(pieces())
def test_left_fold_right_fold_and_update_agree(piece):
    scores, values, parts = piece
    empty = State.identity(len(scores), D)
    expected = exact(scores, values)
    assert_same(reduce(State.merge, parts, empty), expected)
    assert_same(reduce(lambda right, left: left.merge(right), reversed(parts), empty), expected)
    one_by_one = empty
    for j in range(len(values)):
        one_by_one = one_by_one.update(scores[:, j : j + 1], values[j : j + 1])
    assert_same(one_by_one, expected)


@settings(max_examples=100, deadline=None)
@given(pieces())
def test_identity_is_exact_and_merge_commutes_exactly(piece):
    *_, parts = piece
    identity = State.identity(len(parts[0].m), D)
    for s in parts:
        for merged in (s.merge(identity), identity.merge(s)):
            for field in ("m", "l", "o"):
                np.testing.assert_array_equal(getattr(merged, field), getattr(s, field))
        for field in ("m", "l", "o"):
            ab, ba = s.merge(parts[0]), parts[0].merge(s)
            np.testing.assert_array_equal(getattr(ab, field), getattr(ba, field))


def test_a_fully_masked_row_is_zero_not_nan():
    state = State.identity(2, D).update([[-np.inf] * 2, [0.0, -np.inf]], [[1.0] * D, [9.0] * D])
    out, lse = state.merge(State.identity(2, D)).finish()
    np.testing.assert_array_equal(out, [[0] * D, [1] * D])
    np.testing.assert_array_equal(lse, [-np.inf, 0])


def test_nan_is_never_hidden():
    state = State.of([[np.nan, 0.0]], np.ones((2, D))).merge(State.of([[1.0]], np.ones((1, D))))
    assert np.isnan(state.finish()[0]).all()


def by_torch(q, k, v, causal):
    n, s, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    q, k, v = (torch.from_numpy(x).transpose(0, 1) for x in (q, k, v))
    mask = torch.ones(n, s, dtype=torch.bool)
    if causal:
        mask = mask.tril(s - n)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = (q @ k.transpose(1, 2) * q.shape[2] ** -0.5).masked_fill(~mask, -torch.inf)
    return out.transpose(0, 1).numpy(), scores.logsumexp(2).T.numpy()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("hq", "hkv"), [(4, 4), (8, 2), (4, 1)], ids=["MHA", "GQA", "MQA"])
@pytest.mark.parametrize(("n", "s"), [(1, 1), (1, 37), (8, 8), (5, 37)])
def test_attention_against_torch(n, s, hq, hkv, causal):
    rng = np.random.default_rng(n + s)
    q, k, v = rng.normal(size=(n, hq, 64)), rng.normal(size=(s, hkv, 64)), rng.normal(size=(s, hkv, 64))
    for ours, theirs in zip(attention(q, k, v, causal), by_torch(q, k, v, causal), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_logits_of_ten_thousand():
    q, k, v = np.array([[[1e4]]]), np.array([[[1.0]], [[-1.0]], [[1.0]]]), np.array([[[1.0]], [[5.0]], [[3.0]]])
    out, lse = attention(q, k, v, scale=1.0)
    assert (out.item(), lse.item()) == (2.0, pytest.approx(1e4 + math.log(2)))


def test_scale():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(4, 2, 64)) for _ in range(3))
    np.testing.assert_array_equal(attention(q, k, v)[0], attention(q, k, v, scale=1 / 8)[0])
    np.testing.assert_allclose(attention(q, k, v, scale=0.0, causal=False)[0], np.broadcast_to(v.mean(0), q.shape))


def test_chunks_of_a_prompt_equal_the_whole_prompt():
    """The bottom-right mask is what makes chunked prefill exact: each chunk sees all earlier keys and itself."""
    rng = np.random.default_rng(1)
    q, k, v = rng.normal(size=(37, 4, 64)), rng.normal(size=(37, 2, 64)), rng.normal(size=(37, 2, 64))
    whole = attention(q, k, v)
    chunks = [attention(q[a:b], k[:b], v[:b]) for a, b in ((0, 16), (16, 36), (36, 37))]
    for part, expected in enumerate(whole):
        np.testing.assert_allclose(np.concatenate([c[part] for c in chunks]), expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    q_lens=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    extra=st.lists(st.integers(0, 30), min_size=4, max_size=4),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    page_size=st.sampled_from([None, 1, 5, 16]),
    causal=st.booleans(),
)
def test_ragged_batch_equals_its_sequences(q_lens, extra, heads, page_size, causal):
    kv_lens = [n + e for n, e in zip(q_lens, extra, strict=False)]
    batch = HybridBatch(q_lens, kv_lens, *heads, 64, page_size=page_size, dtype="float32", causal=causal)
    q, k, v, table = batch.tensors()
    out, lse = hybrid_attention(q, k, v, q_lens, kv_lens, table, causal)
    assert np.isfinite(out).all(), "poison was read"
    start = 0
    for i, (n, s) in enumerate(zip(q_lens, kv_lens, strict=True)):
        rows = slice(start, start := start + n)
        if page_size:
            where = [(int(table[i, t // page_size]), t % page_size) for t in range(s)]
        else:
            where = [(i, t) for t in range(s)]
        keys, values = (torch.stack([cache[a, b] for a, b in where]).double().numpy() for cache in (k, v))
        expected = by_torch(q[rows].double().numpy(), keys, values, causal)
        np.testing.assert_allclose(out[rows], expected[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(lse[rows], expected[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_paged_equals_contiguous(dtype):
    paged = HybridBatch((5, 1, 1, 12), (40, 7, 33, 12), 8, 2, 64, page_size=16, dtype=dtype)
    q, *caches, table = paged.tensors()
    flat = []
    for cache in caches:
        rows = [cache[table[i].long()].reshape(-1, *cache.shape[2:]) for i in range(len(table))]
        flat.append(torch.stack(rows))
    lens = paged.q_lens, paged.kv_lens
    for a, b in zip(hybrid_attention(q, *caches, *lens, table), hybrid_attention(q, *flat, *lens), strict=True):
        np.testing.assert_array_equal(a, b)


def test_numpy_and_torch_inputs_agree():
    batch = HybridBatch((4, 1), (9, 6), 4, 2, 64, page_size=4, dtype="float32")
    tensors = batch.tensors()
    q, k, v, table = (t.numpy() for t in tensors)
    lens = batch.q_lens, batch.kv_lens
    for a, b in zip(
        hybrid_attention(*tensors[:3], *lens, tensors[3]), hybrid_attention(q, k, v, *lens, table), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def tokens(n, heads=2, dim=4, dtype=float):
    return np.zeros((n, heads, dim), dtype)


@pytest.mark.parametrize(("arguments", "message"), [
    ((tokens(2)[0], tokens(3), tokens(3)), "q: got shape"),
    ((tokens(0), tokens(3), tokens(3)), "q: got shape"),
    ((tokens(2), tokens(3), tokens(4)), r"v: got shape \(4, 2, 4\), allowed is the shape of k"),
    ((tokens(2), tokens(3, dim=8), tokens(3, dim=8)), "k: got head_dim 8, allowed is that of q, 4"),
    ((tokens(2, heads=3), tokens(3), tokens(3)), "q: got 3 heads, allowed are multiples of the 2 KV heads"),
    ((tokens(4), tokens(3), tokens(3)), "k: got 3 tokens, allowed with causal=True are at least the 4 of q"),
    ((tokens(2, dtype=int), tokens(3), tokens(3)), "q: got dtype int64, allowed are floating-point types"),
    ((torch.zeros(2, 2, 4, dtype=torch.int32), tokens(3), tokens(3)), "q: got dtype torch.int32"),
])  # fmt: skip
def test_attention_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        attention(*arguments)


def cache(*shape):
    return np.zeros((*shape, 2, 4))


PAGED = dict(
    q=tokens(3), k_cache=cache(5, 4), v_cache=cache(5, 4), q_lens=[2, 1], kv_lens=[7, 3], block_table=[[0, 1], [2, 4]]
)


@pytest.mark.parametrize(("wrong", "message"), [
    (dict(q=tokens(4)), r"q: got shape \(4, 2, 4\), allowed is \[3"),
    (dict(q_lens=[]), "q_lens: got"),
    (dict(q_lens=[3, -1]), "q_lens: got"),
    (dict(kv_lens=[7]), "kv_lens: got 1 lengths"),
    (dict(kv_lens=[7, -3]), "kv_lens: got"),
    (dict(kv_lens=[1, 3]), r"kv_lens: got 1 at 0, allowed is at least q_lens\[0\] = 2"),
    (dict(kv_lens=[9, 3]), "block_table: got room for 8 tokens a sequence, allowed are at least 9"),
    (dict(k_cache=tokens(5)), "k_cache: got shape"),
    (dict(v_cache=cache(5, 8)), "v_cache: got shape"),
    (dict(block_table=[[0, 1]]), "block_table: got 1 sequences, allowed are at least 2"),
    (dict(block_table=[[0, 1], [5, 4]]), "block_table: got page 5 in row 1, allowed are 0 to 4"),
    (dict(block_table=[[0, -1], [2, 4]]), "block_table: got page -1 in row 0"),
    (dict(block_table=[0, 1]), "block_table: got int64 of shape"),
    (dict(block_table=[[0.0, 1.0], [2.0, 4.0]]), "block_table: got float64"),
    (dict(block_table=None), "k_cache: got room for 4 tokens a sequence, allowed are at least 7"),
    (dict(block_table=None, k_cache=cache(1, 8), v_cache=cache(1, 8)), "k_cache: got 1 sequences"),
])  # fmt: skip
def test_hybrid_attention_refuses(wrong, message):
    hybrid_attention(**PAGED)
    with pytest.raises(ValueError, match=message):
        hybrid_attention(**PAGED | wrong)


def test_state_refuses():
    with pytest.raises(ValueError, match="scores, values: got shapes"):
        State.of(np.zeros((2, 3)), np.zeros((4, D)))
    with pytest.raises(ValueError, match="other: got a state of shape"):
        State.identity(2, D).merge(State.identity(3, D))
    for rows, dim in ((0, D), ((2, 0), D), (2, 0), ((), -1)):
        with pytest.raises(ValueError, match="rows, head_dim: got"):
            State.identity(rows, dim)


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_attention_refuses_a_scale_that_is_no_number(scale):
    with pytest.raises(ValueError, match="scale: got"):
        attention(tokens(2), tokens(3), tokens(3), scale=scale)


def test_padding_is_zero_and_sequences_without_tokens_are_nobody():
    rng = np.random.default_rng(0)
    q, cache = rng.normal(size=(3, 2, 4)), rng.normal(size=(2, 4, 5, 1, 4))
    out, lse = hybrid_attention(q, *cache, [1, 0, 1, 1], [5, 3, 0, 2])
    alone, alone_lse = hybrid_attention(q[[0, 2]], *cache[:, [0, 3]], [1, 1], [5, 2])
    np.testing.assert_array_equal(out[[0, 2]], alone)
    np.testing.assert_array_equal(lse[[0, 2]], alone_lse)
    assert not out[1].any() and np.isneginf(lse[1]).all()


def test_the_lines_of_leanattentions_proof_as_printed_and_as_they_should_be():
    """Chapter 11 names the indices that slipped in §IV-A; line 1 alone is right as it is printed."""
    scores, values = np.array([1.0, 3, 2, 0, 5, 2, 4, 1]), np.repeat(np.eye(2), 4, axis=0)
    x, y, z = (State.of(scores[None, a:b], values[a:b]) for a, b in ((0, 2), (6, 8), (2, 6)))
    xy, xyz = x.merge(y), x.merge(y).merge(z)
    e = lambda m, new: np.exp(m.m - new.m)  # noqa: E731
    last = e(z, xyz) * z.o
    right = [
        e(xy, xyz) * xy.o + last,
        e(xy, xyz) * (e(x, xy) * x.o + e(y, xy) * y.o) + last,
        e(x, xyz) * x.o + e(y, xyz) * y.o + last,
    ]
    printed = [
        e(x, xyz) * xy.o + last,
        e(x, xyz) * (e(x, xy) * x.o + e(y, xyz) * y.o) + last,
        e(y, xyz) * y.o + last + last,
    ]
    truth = State.of(scores[None], values).o
    assert all(np.allclose(line, truth, rtol=1e-12) for line in right)
    assert all(abs(line / truth - 1).max() > 0.1 for line in printed)
