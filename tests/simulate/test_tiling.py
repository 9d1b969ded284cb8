import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.batch import HybridBatch
from pod.hardware import A100, H200
from pod.reference import attention
from pod.simulate.tiling import Memory, Tile, computed_flops, standard_attention, tiled_attention

SIZES = dict(n=st.integers(1, 40), extra=st.integers(0, 40), rows=st.integers(1, 17), cols=st.integers(1, 17))


def head(n, s, d=8, seed=0):
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.normal(size=(length, d))) for length in (n, s, s)]


@settings(max_examples=60, deadline=None)
@given(**SIZES, causal=st.booleans())
def test_tiled_and_standard_equal_the_reference(n, extra, rows, cols, causal):
    q, k, v = head(n, n + extra)
    expected = attention(*(x[:, None].numpy() for x in (q, k, v)), causal)[0][:, 0]
    tiled = tiled_attention(q, k, v, Tile(rows, cols, 8), Memory(), causal)
    np.testing.assert_allclose(tiled.numpy(), expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(standard_attention(q, k, v, Memory(), causal).numpy(), expected, rtol=1e-11, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(**SIZES, causal=st.booleans())
def test_steps_cover_every_visible_pair_once_and_no_dead_block(n, extra, rows, cols, causal):
    s = n + extra
    visible = np.tri(n, s, extra, dtype=bool) if causal else np.ones((n, s), bool)
    covered = np.zeros((n, s), int)
    for r, c in Tile(rows, cols).steps(n, s, causal):
        covered[r, c] += 1
        assert visible[r, c].any(), "a block that no query sees"
    assert (covered[visible] == 1).all() and covered.max() == 1


@settings(max_examples=8, deadline=None)
@given(**SIZES)
def test_meta_tensors_count_the_same_bytes(n, extra, rows, cols):
    q, k, v = head(n, n + extra)
    for run in (standard_attention, lambda *x: tiled_attention(*x[:3], Tile(rows, cols, 8), x[3])):
        real, shapes_only = Memory(), Memory()
        run(q, k, v, real)
        run(*(x.to("meta") for x in (q, k, v)), shapes_only)
        assert real == shapes_only and real.moved > 0


def test_bytes_by_hand():
    """256 queries and keys of 64 fp64 numbers; tiles of 128 x 128, so the causal mask drops one of four blocks."""
    q, k, v = head(256, 256, d=64)
    one, square = 256 * 64 * 8, 256 * 256 * 8
    memory = Memory()
    standard_attention(q, k, v, memory)
    assert (memory.loaded, memory.stored) == (3 * one + 2 * square, 2 * square + one)
    memory = Memory()
    tiled_attention(q, k, v, Tile(128, 128, 64), memory)
    assert (memory.loaded, memory.stored) == (one + 2 * (3 * one // 2), one)


def test_tiles_of_the_authors_kernel():
    """(rows + 2 * cols) * 128 * 2 bytes: the shared memory of the tile shapes that POD-Attention uses."""
    sizes = {(128, 64): 64, (64, 128): 80, (64, 32): 32, (16, 32): 20}
    for (rows, cols), kib in sizes.items():
        assert Tile(rows, cols).smem_bytes == kib * 1024
    assert (Tile(128, 64).ctas_per_sm(A100), Tile(64, 32).ctas_per_sm(A100)) == (2, 4)
    assert Tile(72, 128).smem_bytes * 2 == A100.smem_per_sm and Tile(72, 128).ctas_per_sm(A100) == 1, (
        "1 KiB is reserved"
    )


def test_a_tile_that_does_not_fit():
    assert Tile(128, 128, stages=2).ctas_per_sm(A100) == Tile(128, 128, stages=2).ctas_per_sm(H200) == 1
    assert Tile(128, 128, stages=3).smem_bytes > A100.smem_per_cta
    assert Tile(128, 128, stages=3).ctas_per_sm(A100) == 0
    assert Tile(256, 128).ctas_per_sm(H200) == 0, "shared memory would do, registers do not"


def padded_by_hand(batch, tile):
    """Cut each head's score matrix into tiles and count those that hold at least one visible pair."""
    tiles = 0
    for q_len, kv_len in zip(batch.q_lens, batch.kv_lens, strict=True):
        visible = np.tri(q_len, kv_len, kv_len - q_len, dtype=bool) if batch.causal else np.ones((q_len, kv_len), bool)
        heads = batch.num_q_heads
        if q_len == 1:
            visible, heads = np.repeat(visible, batch.group, axis=0), batch.num_kv_heads
        for r in range(0, len(visible), tile.rows):
            for c in range(0, kv_len, tile.cols):
                tiles += heads * bool(visible[r : r + tile.rows, c : c + tile.cols].any())
    return tiles * 2 * 2 * tile.rows * tile.cols * tile.head_dim


@settings(max_examples=40, deadline=None)
@given(
    q_lens=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    extra=st.lists(st.integers(0, 40), min_size=4, max_size=4),
    group=st.sampled_from([1, 4, 8]),
    rows=st.sampled_from([4, 16]),
    causal=st.booleans(),
)
def test_computed_flops_against_counting(q_lens, extra, group, rows, causal):
    kv_lens = [n + e for n, e in zip(q_lens, extra, strict=False)]
    batch, tile = HybridBatch(q_lens, kv_lens, 2 * group, 2, 128, causal=causal), Tile(rows, 8)
    assert computed_flops(batch, tile) == padded_by_hand(batch, tile)
    assert computed_flops(batch, tile) >= batch.flops


def test_a_lone_token_pays_for_the_whole_tile():
    batch = HybridBatch.of(0, 0, decodes=8, decode_context=4096, num_q_heads=32, num_kv_heads=32)
    for rows in (16, 32, 64, 128):
        assert computed_flops(batch, Tile(rows, 64)) == rows * batch.flops


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(dict(rows=0), "rows: got 0"), (dict(cols=-1), "cols: got -1"), (dict(dtype="int4"), "dtype: got 'int4'")],
)
def test_bad_tiles(wrong, message):
    with pytest.raises(ValueError, match=message):
        Tile(**dict(rows=16, cols=32) | wrong)


@pytest.mark.parametrize(
    "attend", [standard_attention, lambda *a, **k: tiled_attention(*a[:3], Tile(4, 4), *a[3:], **k)]
)
@pytest.mark.parametrize(("shapes", "message"), [
    (((2, 8), (4, 9), (4, 9)), "k: got shape (4, 9)"),
    (((2, 8), (4, 8), (5, 8)), "v: got shape (5, 8)"),
    (((0, 8), (4, 8), (4, 8)), "q: got shape (0, 8)"),
    (((2, 1, 8), (4, 8), (4, 8)), "q: got shape (2, 1, 8)"),
    (((5, 8), (4, 8), (4, 8)), "k: got 4 tokens"),
])  # fmt: skip
def test_attention_refuses(attend, shapes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        attend(*map(torch.zeros, shapes), Memory())


def test_a_window_is_refused_where_tiles_have_none():
    with pytest.raises(ValueError, match="^window: got 9, allowed is None"):
        computed_flops(HybridBatch((1,), (20,), 1, 1, 64, window=9), Tile(16, 16, 64))
