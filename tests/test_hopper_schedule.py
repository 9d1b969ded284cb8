"""The work lists of the Hopper kernel: every query row meets every key exactly once, in pieces that can be merged."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pod
from pod.reference import hybrid_attention
from pod.schedule import hopper
from pod.schedule.execute import execute, rows_of, tokens_of
from pod.schedule.hopper import FIELDS, WorkList
from pod.workplan import WorkPlan


def lists(b) -> tuple[WorkList, WorkList]:
    """Both work lists of a batch, as the plan makes them."""
    q_lens, kv_lens = np.array(b.q_lens), np.array(b.kv_lens)
    starts = np.cumsum(q_lens) - q_lens
    chunks, tokens = np.flatnonzero(q_lens > 1), np.flatnonzero(q_lens == 1)
    prefill = hopper.prefill_work(
        starts[chunks], q_lens[chunks], kv_lens[chunks], chunks, b.hq, b.hkv, 128, b.workers, b.causal, b.splits
    )
    return prefill, hopper.decode_work(starts[tokens], kv_lens[tokens], tokens, b.hq, b.hkv, b.workers, b.weights)


def pieces(work: WorkList) -> list[dict[str, int]]:
    return [dict(zip(FIELDS, map(int, row), strict=True)) for row in work.work]


@st.composite
def batches(draw, longest=900, chunk=300):
    sequences = []
    for _ in range(draw(st.integers(1, 4))):
        kv_len = draw(st.integers(2, longest))
        sequences.append((draw(st.just(1) | st.integers(2, min(chunk, kv_len))), kv_len))
    hkv = draw(st.sampled_from([1, 2, 3, 4, 8]))
    group = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])) if hkv < 4 else draw(st.sampled_from([1, 2, 4]))
    q_lens, kv_lens = zip(*sequences, strict=True)
    return SimpleNamespace(
        q_lens=q_lens, kv_lens=kv_lens, hkv=hkv, hq=hkv * group, causal=draw(st.booleans()), weights=None,
        workers=draw(st.sampled_from([1, 2, 3, 4, 7, 8, 132])), splits=draw(st.none() | st.integers(1, 8)),
    )  # fmt: skip


@settings(max_examples=60)
@given(batches())
def test_every_query_row_meets_every_visible_key_exactly_once(b):
    starts = np.cumsum(b.q_lens) - b.q_lens
    met = np.zeros((sum(b.q_lens), b.hq, max(b.kv_lens)), np.int8)
    for side, work in zip(("prefill", "decode"), lists(b), strict=True):
        for piece in pieces(work):
            tokens, heads, positions = rows_of(piece, side, b.hq, hopper.pack_shift(b.hq, b.hkv))
            sequence = np.searchsorted(starts, tokens, side="right") - 1
            assert set(sequence) == {piece["seq"]} and piece["kv_len"] == b.kv_lens[piece["seq"]]
            expected = tokens - starts[sequence] + piece["kv_len"] - np.array(b.q_lens)[sequence]
            np.testing.assert_array_equal(positions, expected)
            kv_head = piece["head"] if side == "decode" else piece["head"] // (b.hq // b.hkv)
            assert set(heads // (b.hq // b.hkv)) == {kv_head}
            seen = tokens_of(piece, side)
            visible = seen <= positions[:, None] if b.causal else np.ones((len(tokens), len(seen)), bool)
            np.add.at(met, (tokens[:, None], heads[:, None], seen), visible)
    for start, q_len, kv_len in zip(starts, b.q_lens, b.kv_lens, strict=True):
        last = kv_len - q_len + np.arange(q_len) if b.causal else np.full(q_len, kv_len - 1)
        wanted = np.arange(max(b.kv_lens)) <= last[:, None]
        np.testing.assert_array_equal(met[start : start + q_len], np.repeat(wanted[:, None], b.hq, axis=1))


@settings(max_examples=60)
@given(batches())
def test_parts_fill_all_slots_once_and_join_without_gaps(b):
    for work in lists(b):
        split: dict[int, list] = {}
        for piece in pieces(work):
            assert 0 <= piece["begin"] < piece["end"], "a piece without work"
            if piece["parts"] > 1:
                split.setdefault(piece["group"], []).append(piece)
            else:
                assert piece["part"] == 0
        assert set(split) == set(range(work.groups))
        slots = [piece["slot"] + piece["part"] for group in split.values() for piece in group]
        assert sorted(slots) == list(range(work.slots))
        for group in split.values():
            group.sort(key=lambda piece: piece["part"])
            assert [piece["part"] for piece in group] == list(range(group[0]["parts"]))
            assert len({(p["slot"], p["q_row"], p["rows"], p["head"], p["seq"], p["parts"]) for p in group}) == 1
            assert [p["begin"] for p in group[1:]] == [p["end"] for p in group[:-1]]


@settings(max_examples=60)
@given(batches(longest=6000, chunk=2))
def test_decode_chunks_are_equal_within_one_tile(b):
    _, work = lists(b)
    if not len(work.work):
        return
    tiles = work.column("end") - work.column("begin")
    assert work.chunks[0] == 0 and work.chunks[-1] == len(work.work)
    sizes = np.add.reduceat(tiles, work.chunks[:-1])
    assert (np.diff(work.chunks) > 0).all() and len(sizes) <= max(b.workers, 1)
    assert np.ptp(sizes) <= 1
    if len(sizes) > b.hkv * 2:  # more than one cut a head: then a chunk is worth its merge
        assert sizes.min() >= hopper.MIN_TILES - 1


@settings(max_examples=60)
@given(batches(longest=6000, chunk=2))
def test_chunks_of_a_span_read_the_same_tokens_of_neighbouring_heads(b):
    _, work = lists(b)
    packs = -(-(b.hq // b.hkv) // hopper.DECODE_HEADS)
    span = np.gcd((b.hkv * packs) & -(b.hkv * packs), b.workers)
    chunks = [work.work[i:j] for i, j in zip(work.chunks, work.chunks[1:], strict=False)]
    assert len(chunks) % span == 0
    columns = [FIELDS.index(name) for name in ("seq", "begin", "end", "part", "parts")]
    for first in range(0, len(chunks), span):
        for j, chunk in enumerate(chunks[first : first + span]):
            np.testing.assert_array_equal(chunk[:, columns], chunks[first][:, columns])
            lane = chunk[:, FIELDS.index("head")] * packs + chunk[:, FIELDS.index("pos0")] // hopper.DECODE_HEADS
            lane0 = chunks[first][:, FIELDS.index("head")] * packs + chunks[first][:, FIELDS.index("pos0")] // 8
            np.testing.assert_array_equal(lane, lane0 + j)


@settings(max_examples=30)
@given(batches(longest=6000, chunk=2), st.lists(st.integers(1, 9), min_size=132, max_size=132))
def test_weights_make_chunks_unequal_on_purpose(b, weights):
    b.weights = np.array(weights)
    _, work = lists(b)
    if not len(work.work):
        return
    sizes = np.zeros(len(work.chunks) - 1)
    tiles = work.column("end") - work.column("begin")
    for i, (first, last) in enumerate(zip(work.chunks, work.chunks[1:], strict=False)):
        sizes[i] = tiles[first:last].sum()
    span = np.gcd((b.hkv * -(-(b.hq // b.hkv) // 8)) & -(b.hkv * -(-(b.hq // b.hkv) // 8)), b.workers)
    share = b.weights[: len(sizes) // span]
    np.testing.assert_allclose(sizes[::span], share / share.sum() * sizes[::span].sum(), atol=1.01)


@settings(max_examples=60)
@given(batches())
def test_long_prefill_tiles_are_drawn_first(b):
    work, _ = lists(b)
    whole = [
        sum(p["end"] - p["begin"] for p in group) for group in _tiles(pieces(work))
    ]  # K and V of all heads fit in L2 at these lengths: one section
    assert whole == sorted(whole, reverse=True)


def _tiles(drawn):
    """Pieces of one tile, which stand together."""
    for i, piece in enumerate(drawn):
        if piece["part"] == 0:
            yield drawn[i : i + piece["parts"]]


def test_heads_that_do_not_fit_in_l2_together_come_in_sections():
    kv_len, hkv = 64 << 10, 8
    work = hopper.prefill_work([0], [1024], [kv_len], [0], 32, hkv, 128, 132)
    at_once = hopper.L2_SHARE // (kv_len * 128 * 4)
    assert 1 <= at_once < hkv
    section = work.column("head") // 4 // at_once
    assert (np.diff(section) >= 0).all() and len(set(section)) == -(-hkv // at_once)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=40), st.sampled_from([1, 4, 132]))
def test_splitting_is_chosen_only_where_it_pays(blocks, workers):
    blocks = np.array(sorted(blocks, reverse=True))
    splits = hopper.choose_splits(blocks, workers)
    assert 1 <= splits <= 8 and (splits == 1 or len(blocks) * splits <= 2 * workers)

    def time(splits):
        return hopper._makespan(np.repeat(np.ceil(blocks / splits) + hopper.UNIT_OVERHEAD, splits), workers)

    assert time(splits) <= time(1)


@settings(max_examples=25)
@given(batches(longest=700, chunk=200), st.integers(0, 2**32 - 1))
def test_executed_work_lists_give_attention_in_any_order(b, seed):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(sum(b.q_lens), b.hq, 4))
    k, v = rng.normal(size=(2, len(b.q_lens), max(b.kv_lens), b.hkv, 4))
    for i, kv_len in enumerate(b.kv_lens):
        k[i, kv_len:] = v[i, kv_len:] = np.nan
    got = execute(q, k, v, *lists(b), b.causal)
    again = execute(q, k, v, *lists(b), b.causal, order=rng)
    wanted = hybrid_attention(q, k, v, b.q_lens, b.kv_lens, causal=b.causal)
    for mine, shuffled, truth in zip(got, again, wanted, strict=True):
        np.testing.assert_array_equal(mine, shuffled)  # merged in slot order: not a bit depends on who came last
        np.testing.assert_allclose(mine, truth, rtol=1e-10, atol=1e-12)


def _example():
    return SimpleNamespace(
        q_lens=(1, 200, 1), kv_lens=(700, 600, 500), hkv=2, hq=8, causal=True, workers=4, splits=2, weights=None
    )


@pytest.mark.parametrize("fault", ["lost", "twice", "short"])
def test_a_wrong_work_list_is_noticed(fault):
    b, rng = _example(), np.random.default_rng(0)
    q, (k, v) = rng.normal(size=(202, 8, 4)), rng.normal(size=(2, 3, 700, 2, 4))
    prefill, decode = lists(b)
    work = decode.work.copy()
    if fault == "lost":
        work = work[1:]
    elif fault == "twice":
        work = np.concatenate([work, work[:2]])
    else:
        work[-1, FIELDS.index("end")] -= 1
    wrong = WorkList(work, decode.chunks, decode.slots, decode.groups)
    if fault == "twice":
        with pytest.raises(ValueError, match="second result"):
            execute(q, k, v, prefill, wrong)
        return
    out, _ = execute(q, k, v, prefill, wrong)
    wanted, _ = hybrid_attention(q, k, v, b.q_lens, b.kv_lens)
    assert not np.allclose(out, wanted)


def test_auto_takes_the_fused_kernel_where_there_is_prefill_and_the_decode_method_elsewhere(monkeypatch):
    """Of decodes alone the method lean knows more: where a warp's tile reads faster, and where a fixed split does."""
    planned = {name: WorkPlan(None, None, 1) for name in ("hopper", "lean")}
    monkeypatch.setattr("pod.attention._is_hopper", lambda device: True)
    for name, work in planned.items():
        monkeypatch.setattr(f"pod.{name}.make_plan", lambda *_, work=work: work)
    for q_lens, method in (((64, 1), "hopper"), ((64,), "hopper"), ((1, 1), "lean")):
        plan = pod.plan(q_lens, (64,) * len(q_lens), 8, 2, 64, device="cpu", method="auto")
        assert (plan.method, plan.work) == (method, planned[method])
    named = pod.plan((1, 1), (64, 64), 8, 2, 64, device="cpu", method="auto", decode_splits=2)
    assert named.method == "pod"  # only that family has the option


def test_a_wide_tile_is_taken_where_its_units_end_sooner():
    """A third warpgroup fits at head_dim 64 only; with as many waves as before, the wider tile would only be slower."""

    def rows(chunk, context, heads, head_dim):
        prefill = (np.array([0]), np.array([chunk]), np.array([context]), np.array([0]), *heads)
        tile, work = hopper.prefill_alone(prefill, head_dim, 132, True, None)
        same = hopper.prefill_work(*prefill, head_dim, 132, tile_rows=tile)
        assert (work.work == same.work).all()
        return tile

    assert rows(8192, 8192, (32, 8), 64) == hopper.WIDE_TILE
    assert rows(8192, 8192, (32, 8), 128) == hopper.PREFILL_TILE
    assert rows(2048, 8192, (16, 16), 64) == hopper.PREFILL_TILE  # 176 wide units are two waves on 132 SMs, as 256 are
