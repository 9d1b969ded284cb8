"""Work lists and binding policies: every key of every tile is read once, in an order that ends early."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.batch import HybridBatch
from pod.hardware import GPUS
from pod.reference import hybrid_attention
from pod.schedule import binding, choose, decide, prefill
from pod.schedule.execute import execute, rows
from pod.schedule.work import SHAPES, Pack, Side

heads = st.sampled_from([(1, 1), (4, 1), (8, 2), (6, 6), (24, 1), (40, 2)])
lengths = st.lists(st.integers(1, 700), min_size=1, max_size=6)
KEYS, ROWS = SHAPES[2].decode_keys, SHAPES[2].decode_rows


def singles(kv_lens, q_heads: int, kv_heads: int) -> Side:
    """Decodes whose tokens are three apart."""
    n = np.arange(len(kv_lens))
    return Side(3 * n, np.ones_like(n), np.array(kv_lens), n, q_heads, kv_heads)


def split(side: Side, workers: int, splits: int | str = "auto"):
    return decide.warp_pieces(side, SHAPES[2], workers, choose.decode_parts(side, SHAPES[2], workers, splits))


def cover(work):
    """Each (token, head) of the list, with how often it meets each key; and the parts of each group in order."""
    met, groups = {}, {}
    for w in rows(work):
        for token in range(w["token"], w["token"] + w["tokens"]):
            for head in range(w["head"], w["head"] + w["heads"]):
                met.setdefault((token, head), []).append((w["begin"], w["end"]))
        if w["parts"] > 1:
            groups.setdefault(w["group"], []).append(w)
        assert w["begin"] % 16 == 0 and w["begin"] < w["end"]
    for group in groups.values():
        assert [w["part"] for w in group] == list(range(group[0]["parts"]))
        assert len({(w["partial"], w["token"], w["head"], w["parts"]) for w in group}) == 1
    assert len(groups) == work.groups
    starts = sorted((g[0]["partial"], g[0]["parts"]) for g in groups.values())
    assert [s for s, _ in starts] == list(np.cumsum([0, *(p for _, p in starts)])[:-1])  # no two in one place
    assert work.partials == sum(p for _, p in starts)
    return met


def is_line(ranges, end):
    """Whether ranges, in order, cover 0 .. end without a gap."""
    borders = [0, *(e for _, e in ranges)]
    return [b for b, _ in ranges] == borders[:-1] and borders[-1] == end


@settings(max_examples=40)
@given(
    heads,
    lengths,
    st.one_of(st.sampled_from(["auto", "shrinking"]), st.integers(1, 40)),
    st.integers(1, 64),
    st.booleans(),
)
def test_decode_lists_read_every_key_of_every_head_once(heads, kv_lens, splits, workers, streamed):
    q_heads, kv_heads = heads
    work = split(singles(kv_lens, *heads), workers, "stream-k" if streamed else splits)
    met = cover(work)
    assert met.keys() == {(3 * i, h) for i in range(len(kv_lens)) for h in range(q_heads)}
    for (token, _), ranges in met.items():
        assert is_line(sorted(ranges), kv_lens[token // 3])
    for w in rows(work):
        assert w["tokens"] == 1 and w["heads"] <= ROWS
        assert w["pos"] == kv_lens[w["seq"]] - 1 and w["token"] == 3 * w["seq"]
        group = q_heads // kv_heads
        assert {h // group for h in range(w["head"], w["head"] + w["heads"])} == {w["kv_head"]}
    assert work.pieces[0] == 0 and work.pieces[-1] == len(work) and (np.diff(work.pieces) > 0).all()


@settings(max_examples=40)
@given(heads, lengths, st.integers(1, 9), st.sampled_from([2, 4]), st.booleans(), st.integers(0, 300))
def test_prefill_lists_read_what_the_mask_leaves_once_and_longest_first(heads, q_lens, splits, ctas, causal, before):
    q_heads, kv_heads = heads
    q_lens = np.array(q_lens) + 1
    kv_lens, starts, seqs = q_lens + before, np.cumsum(q_lens) - q_lens, np.arange(len(q_lens))
    side, shape = Side(starts, q_lens, kv_lens, seqs, *heads), SHAPES[ctas]
    tiles = prefill.longest_first(prefill.tiles(side, Pack(shape.prefill_rows, 1), causal))
    work = prefill.cut(tiles, splits, shape.prefill_keys)
    met = cover(work)
    assert met.keys() == {(t, h) for t in range(q_lens.sum()) for h in range(q_heads)}
    for (token, _), ranges in met.items():
        seq = int(np.searchsorted(starts, token, side="right")) - 1
        sees = kv_lens[seq] - q_lens[seq] + token - starts[seq] + 1 if causal else kv_lens[seq]
        borders = [0, *(e for _, e in ranges)]
        assert [b for b, _ in ranges] == borders[:-1] and sees <= borders[-1] <= kv_lens[seq]
    for w in rows(work):
        assert w["head"] // (q_heads // kv_heads) == w["kv_head"] and w["heads"] == 1
        assert w["pos"] == kv_lens[w["seq"]] - q_lens[w["seq"]] + w["token"] - starts[w["seq"]]
    assert (np.diff(tiles.end) <= 0).all()


def test_decode_pieces_come_longest_first_and_neighbours_are_equally_long():
    work = split(singles([512, 4096, 100], 8, 4), workers=16)
    costs = work.costs.reshape(-1, 4)  # four KV heads
    assert (np.ptp(costs, axis=1) == 0).all()
    assert (np.diff(costs[:, 0]) <= KEYS).all() and costs[-1, 0] == 100


def test_stream_k_ranges_differ_by_one_block():
    work = split(singles([64 * n for n in (3, 1, 40, 7, 2)], 4, 2), 11, "stream-k")
    assert set(work.costs // decide.STREAM_K) <= {9, 10} and len(work.costs) == 11


def test_auto_splits_fill_the_machine_and_leave_full_machines_alone():
    keys = partial(choose.even_keys, workers=1056, step=KEYS)
    assert keys(np.full(264, 4096), 4) == 4096  # exactly one wave
    few = keys(np.full(1, 131072), 8)
    assert -(-131072 // few) * 8 >= 1000
    parts = -(-16384 // keys(np.full(67, 16384), 4))
    waves = parts * 67 * 4 / 1056
    assert waves / np.ceil(waves) > 0.95  # where one part a request would take two waves, a quarter full


def test_shrinking_pieces_are_a_share_of_what_is_left():
    work = split(singles([12288] * 67, 16, 4), 800, "shrinking")
    costs = work.costs
    assert (np.diff(costs) <= KEYS).all()  # longest first
    left = costs.sum() - np.cumsum(costs) + costs
    assert (costs <= left / 800 + 12288 * 4 / 800 + KEYS)[costs > choose.SHORTEST].all()
    assert costs[0] > 3000 and costs[-1] <= choose.SHORTEST


def test_prefill_splits_follow_the_papers_table_7():
    # Llama-3-8B on two GPUs, chunk 512 at 16K, on an A100: 64 tiles of 128 rows, 256 key blocks, 216 slots.
    assert choose.vanilla_splits(64, 256, 216) == 3
    assert choose.limited_splits(64, 256, 216) == 3
    assert choose.vanilla_splits(200, 256, 216) == 1
    assert choose.vanilla_splits(150, 256, 216) == 4 and choose.limited_splits(150, 256, 216) == 2


def test_prefill_beside_decode_is_cut_only_as_far_as_the_batch_needs():
    limited = choose.limited_splits
    assert limited(64, 256, 216, tile_time=0.8, batch_time=1.0) == 1
    assert limited(64, 256, 216, tile_time=1.7, batch_time=1.0) == 2
    assert limited(64, 256, 216, tile_time=99.0, batch_time=1.0) == 2 * 216 // 64  # two waves are the limit
    assert limited(1, 3, 216, tile_time=99.0, batch_time=1.0) == 3  # no part is shorter than a block


ways = st.fixed_dictionaries({
    "ctas_per_sm": st.sampled_from([2, 4]), "prefill_splits": st.sampled_from(["limited", "vanilla", 3]),
    "decode_splits": st.sampled_from(["auto", "stream-k", 5]),
})  # fmt: skip


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 150), st.integers(0, 300)), min_size=1, max_size=4), heads, ways, st.booleans()
)
def test_executed_work_lists_give_attention(lens, heads, ways, causal):
    q_lens, kv_lens = [n for n, _ in lens], [n + before for n, before in lens]
    batch, rng = HybridBatch(q_lens, kv_lens, *heads, 64, causal=causal), np.random.default_rng(0)
    q = rng.normal(size=(sum(q_lens), heads[0], 4))
    k, v = rng.normal(size=(2, len(q_lens), max(kv_lens), heads[1], 4))
    wanted = hybrid_attention(q, k, v, q_lens, kv_lens, causal=causal)
    schedules = [decide.hybrid(batch, GPUS["a100"], 3, **ways, causal=causal)]
    schedules += [decide.lean(batch, 3, worker=worker) for worker in ("warp", "cta64") if not batch.prefill]
    for made in schedules:
        for mine, truth in zip(execute(q, k, v, made.prefill, made.decode, causal), wanted, strict=True):
            np.testing.assert_allclose(mine, truth, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------- binding


def ops(policy, prefills, decodes, sms, order=None):
    prefill, decode = np.ones(prefills), np.ones(decodes)
    table = binding.deal(policy, prefill, decode, sms)
    order = [i % sms for i in range(prefills + decodes)] if order is None else order
    return binding.draw(table, order, prefills, decodes, sms)


@given(st.sampled_from(list(binding.POLICIES)), st.integers(0, 40), st.integers(0, 40), st.integers(1, 7), st.data())
def test_every_cta_gets_work_and_every_work_a_cta(policy, prefills, decodes, sms, data):
    order = data.draw(st.lists(st.integers(0, 2 * sms), min_size=prefills + decodes, max_size=prefills + decodes))
    drawn = ops(policy, prefills, decodes, sms, order)
    for op, slots in ((binding.PREFILL, prefills), (binding.DECODE, decodes)):
        assert [a.id for a in drawn if a.op == op] == list(range(slots))


def test_fifty_fifty_alternates_on_every_sm():
    drawn = ops("50:50", 12, 12, 3)
    for sm in range(3):
        assert [a.op for a in drawn if a.sm == sm] == [0, 1] * 4


def test_integer_ratio_rounds_the_ratio_of_counts_down():
    assert [a.op for a in ops("integer ratio", 4, 11, 1)][:9] == [0, 1, 1, 0, 1, 1, 0, 1, 1]  # 11 // 4 = 2
    assert [a.op for a in ops("integer ratio", 7, 2, 1)] == [0, 0, 0, 1, 0, 0, 0, 1, 0]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9))
def test_proportional_keeps_equal_work_in_step(prefills, decodes, sms):
    drawn = ops("proportional", prefills, decodes, sms)
    is_prefill = np.array([a.op == binding.PREFILL for a in drawn])
    prefill, decode = np.cumsum(is_prefill) / prefills, np.cumsum(~is_prefill) / decodes
    a_round = sms / prefills, sms / decodes
    assert (prefill * binding.LEAD <= decode + a_round[0] + a_round[1] + 1e-9).all()
    assert (decode <= prefill * binding.LEAD + a_round[0] + a_round[1] + 1e-9)[prefill < 1].all()
    if prefills % sms == decodes % sms == 0:  # then no SM draws twice, and all SMs do the same
        mine = [[a.op for a in drawn if a.sm == sm] for sm in range(sms)]
        assert mine == [mine[0]] * sms


def test_proportional_weighs_work_where_counts_would_not():
    """Three prefills of work 3, 2 and 1, six decodes of 1: neither gets far ahead, in work."""
    table = binding.deal("proportional", [3, 2, 1], [1] * 6, sms=1)
    drawn = binding.draw(table, [0] * 9, 3, 6, 1)
    work = {binding.PREFILL: [3, 2, 1], binding.DECODE: [1] * 6}
    ahead = np.cumsum([work[a.op][a.id] * (1 if a.op == binding.PREFILL else -1) for a in drawn])
    assert ahead.max() <= 3 and ahead.min() >= 0  # prefill leads


@pytest.mark.parametrize("policy", binding.POLICIES)
def test_one_sided_batches_deal_only_what_there_is(policy):
    assert {a.op for a in ops(policy, 5, 0, 2)} == {binding.PREFILL}
    assert {a.op for a in ops(policy, 0, 5, 2)} == {binding.DECODE}


def test_begin_is_on_a_page_border_for_every_split():
    work = split(singles([1000], 1, 1), 8, 7)
    assert (work.begin % KEYS == 0).all() and len(work) == 7


def made_for(batch):
    return decide.hybrid(batch, GPUS["h200"], 132, ctas_per_sm=2)


def test_decode_pieces_are_smaller_where_prefill_is_long():
    batches = [HybridBatch.of(2048, seen + 2048, 64, 8192, 32, 8) for seen in (0, 14336)]
    assert len(made_for(batches[0]).decode.pieces) < len(made_for(batches[1]).decode.pieces)


def test_no_decode_piece_beside_a_tiny_prefill_outlasts_an_even_share():
    """Decode has nearly all slots then, and a longer piece would end after the others."""
    costs = made_for(HybridBatch.of(512, 512, 51, 20480, 16, 4)).decode.costs
    warps = 132 * 2 * SHAPES[2].virtual
    assert len(costs) > warps and costs.max() <= costs.sum() / warps + KEYS


def test_prefill_on_few_sms_is_cut_further():
    """Where decode has most SMs, it has the DRAM rate too, and an uncut tile would end after it."""
    few, many = (HybridBatch.of(512, 12800, 122, 16384, heads, 1) for heads in (16, 20))
    assert made_for(few).prefill.parts.max() > made_for(many).prefill.parts.max()


def test_four_ctas_an_sm_serve_short_prompts_beside_few_decodes():
    def choice(chunk, context, decodes, method="pod"):
        batch = HybridBatch.of(chunk, context, decodes, context, 32, 8)
        return choose.ctas_per_sm(batch, GPUS["h200"], 132, method)

    assert choice(1024, 1024, 16) == choice(1024, 1024, 32) == 4
    assert choice(1024, 1024, 40) == choice(1024, 1024, 128) == 2
    assert choice(1024, 4096, 16) == choice(2048, 2048, 16) == 2
    assert choice(1024, 1024, 16, "serial") == choice(1024, 1024, 0) == 2


def test_pod_takes_turns_with_two_ctas_an_sm_and_shares_of_the_work_with_four():
    batch = HybridBatch.of(8192, 8192, 64, 8192, 32, 4)
    for ctas, policy in ((2, "50:50"), (4, "proportional"), ("auto", "50:50")):
        plan = partial(decide.hybrid, batch, GPUS["h200"], 132, ctas_per_sm=ctas)
        chosen, named = plan(), plan(policy=policy)
        assert np.array_equal(chosen.deal, named.deal) and len(chosen.deal)
    turns, shares = (decide.hybrid(batch, GPUS["h200"], 132, policy=p).deal for p in ("50:50", "proportional"))
    assert not np.array_equal(turns, shares)
