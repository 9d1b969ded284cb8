"""The work lists of the Hopper kernel: every query row meets every key exactly once, in pieces that can be merged."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.batch import HybridBatch
from pod.reference import hybrid_attention
from pod.schedule import choose, decide, prefill
from pod.schedule.execute import execute, queries, rows
from pod.schedule.work import DECODE_ROWS, NARROW, PERSISTENT, WIDE, Schedule, WorkList, sides
from pod.simulate.mixes import mixes

TILE = PERSISTENT.decode_keys
PAD = round(choose.TILE_PIECE_US / choose.tile_us(128))  # tiles that beginning a head is worth


def lists(b) -> tuple[WorkList, WorkList]:
    """Both work lists of a batch, as the plan makes them."""
    schedule = made(b)
    return schedule.prefill, schedule.decode


def made(b) -> Schedule:
    batch = HybridBatch(b.q_lens, b.kv_lens, b.hq, b.hkv, 128)
    roles = getattr(b, "roles", None) or choose.roles(batch)
    return decide.hopper(batch, b.workers, b.splits, b.weights, roles=roles, causal=b.causal)


@st.composite
def batches(draw, longest=900, chunk=300):
    sequences = []
    for _ in range(draw(st.integers(1, 4))):
        kv_len = draw(st.integers(2, longest))
        few, many = st.integers(1, min(8, kv_len)), st.integers(2, min(chunk, kv_len))
        sequences.append((draw(st.just(1) | few | many), kv_len))
    hkv = draw(st.sampled_from([1, 2, 3, 4, 8]))
    group = draw(st.sampled_from([1, 2, 3, 5, 7, 8, 12, 16, 40, 71])) if hkv < 4 else draw(st.sampled_from([1, 2, 4]))
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
    for work in lists(b):
        for piece in rows(work):
            tokens, heads, positions = queries(piece)
            sequence = np.searchsorted(starts, tokens, side="right") - 1
            assert set(sequence) == {piece["seq"]} and piece["kv_len"] == b.kv_lens[piece["seq"]]
            expected = tokens - starts[sequence] + piece["kv_len"] - np.array(b.q_lens)[sequence]
            np.testing.assert_array_equal(positions, expected)
            assert set(heads // (b.hq // b.hkv)) == {piece["kv_head"]}
            seen = np.arange(piece["begin"], piece["end"])
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
        for piece in rows(work):
            assert 0 <= piece["begin"] < piece["end"], "a piece without work"
            if piece["parts"] > 1:
                split.setdefault(piece["group"], []).append(piece)
            else:
                assert piece["part"] == 0
        assert set(split) == set(range(work.groups))
        partials = [piece["partial"] + piece["part"] for group in split.values() for piece in group]
        assert sorted(partials) == list(range(work.partials))
        for group in split.values():
            group.sort(key=lambda piece: piece["part"])
            assert [piece["part"] for piece in group] == list(range(group[0]["parts"]))
            assert len({(p["partial"], p["token"], p["tokens"], p["head"], p["heads"], p["parts"]) for p in group}) == 1
            assert [p["begin"] for p in group[1:]] == [p["end"] for p in group[:-1]]


@settings(max_examples=60)
@given(batches(longest=6000, chunk=2))
def test_decode_pieces_take_equally_long(b):
    """A head's beginning counts as so many tiles as it takes."""
    b.roles = choose.possible_roles(b.hq // b.hkv)[0]
    _, work = lists(b)
    if not len(work):
        return
    assert work.pieces[0] == 0 and work.pieces[-1] == len(work)
    sizes = np.add.reduceat(work.blocks(TILE), work.pieces[:-1])
    assert (np.diff(work.pieces) > 0).all() and len(sizes) <= max(b.workers, 1)
    heads = np.add.reduceat((work.begin == 0).astype(int), work.pieces[:-1])
    even = (sizes + PAD * heads).sum() / len(sizes)
    assert (sizes + PAD * heads).max() <= max(even, sizes.sum() / b.workers) + PAD + 1


@settings(max_examples=60)
@given(batches(longest=6000, chunk=2))
def test_pieces_of_a_team_read_the_same_tokens_of_neighbouring_heads(b):
    rows = made(b).shape.decode_rows
    _, work = lists(b)
    passes = b.hkv * -(-(b.hq // b.hkv) // rows)
    team = np.gcd(passes & -passes, b.workers)
    pieces = [slice(i, j) for i, j in pairwise(work.pieces)]
    assert len(pieces) % team == 0
    number = work.kv_head * (passes // b.hkv) + (work.head - work.kv_head * (b.hq // b.hkv)) // rows
    for first in range(0, len(pieces), team):
        for j, piece in enumerate(pieces[first : first + team]):
            for column in (work.seq, work.begin, work.end, work.part, work.parts):
                np.testing.assert_array_equal(column[piece], column[pieces[first]])
            np.testing.assert_array_equal(number[piece], number[pieces[first]] + j)


@settings(max_examples=30)
@given(batches(longest=6000, chunk=2), st.lists(st.integers(1, 9), min_size=132, max_size=132))
def test_weights_make_pieces_unequal_on_purpose(b, weights):
    batch = HybridBatch(b.q_lens, b.kv_lens, b.hq, b.hkv, 128)
    _, singles = sides(batch)
    if not len(singles.seq):
        return
    work, b.weights = decide.hopper_ranges(singles, b.workers, np.array(weights)), np.array(weights)
    tiles = work.blocks(TILE)
    sizes = np.array([tiles[first:last].sum() for first, last in pairwise(work.pieces)])
    passes = b.hkv * -(-(b.hq // b.hkv) // PERSISTENT.decode_rows)
    span = np.gcd(passes & -passes, b.workers)
    share = b.weights[: len(sizes) // span]
    np.testing.assert_allclose(sizes[::span], share / share.sum() * sizes[::span].sum(), atol=1.01)


@settings(max_examples=60)
@given(batches())
def test_long_prefill_tiles_are_drawn_first(b):
    work, _ = lists(b)
    whole = [
        sum(n for _, n in tile) for tile in _tiles(zip(rows(work), work.blocks(128).tolist(), strict=True))
    ]  # K and V of all heads fit in L2 at these lengths: one section
    assert whole == sorted(whole, reverse=True)


def _tiles(drawn):
    """Pieces of one tile, which stand together."""
    drawn = list(drawn)
    for i, (piece, _) in enumerate(drawn):
        if piece["part"] == 0:
            yield drawn[i : i + piece["parts"]]


def test_heads_that_do_not_fit_in_l2_together_come_in_sections():
    kv_len, hkv = 64 << 10, 8
    work = decide.hopper(HybridBatch([1024], [kv_len], 32, hkv, 128), 132).prefill
    at_once = prefill.L2_SHARE // (kv_len * 128 * 4)
    assert 1 <= at_once < hkv
    section = work.kv_head // at_once
    assert (np.diff(section) >= 0).all() and len(set(section)) == -(-hkv // at_once)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=40), st.sampled_from([1, 4, 132]))
def test_splitting_is_chosen_only_where_it_pays(blocks, workers):
    blocks = np.array(sorted(blocks, reverse=True))
    parts, time = choose.prefill_parts(blocks, workers)
    assert (parts >= 1).all() and (parts <= blocks).all()
    one = np.ones_like(blocks)
    assert [time] == choose.prefill_time(blocks, one, parts[None], workers)
    assert time <= choose.prefill_time(blocks, one, one[None], workers)


def test_beside_a_long_decode_prefill_stays_whole():
    blocks = np.array([64] * 20)
    assert choose.prefill_parts(blocks, 132)[0].max() > 1
    assert choose.prefill_parts(blocks, 132, beside=2000)[0].max() == 1


SERVED = HybridBatch((364, 120, 51), (8372, 364, 51), 24, 2, 128)  # 104 tiles, most of them of one long chunk


def test_prefill_alone_is_cut_in_ranges_where_these_end_sooner(monkeypatch):
    """As decode is: 104 tiles of up to 66 blocks would be 288 parts of one length, two for most SMs and three for some.
    Ranges leave nobody idle. Not beside decode, nor where a sequence must not depend on others, nor where parts are
    given."""
    beside = replace(SERVED, q_lens=(*SERVED.q_lens, *[1] * 40), kv_lens=(*SERVED.kv_lens, *[9000] * 40))
    for other in (decide.hopper(SERVED, 132, splits=3), decide.hopper(SERVED, 132, invariant=True),
                  decide.hopper(beside, 132)):  # fmt: skip
        assert _alike(other.prefill)
    work = decide.hopper(SERVED, 132).prefill
    monkeypatch.setattr(choose, "prefill_ranges", lambda blocks, workers: (None, float("inf")))
    parts = decide.hopper(SERVED, 132).prefill
    assert _alike(parts) and not _alike(work)
    assert work.blocks(128).sum() == parts.blocks(128).sum()
    assert _makespan(work, 132) < 0.9 * _makespan(parts, 132)


@pytest.mark.parametrize(("q_lens", "kv_lens", "heads", "taken"), [
    ((544,), (16928,), (64, 8), True),  # measured: 1.33 times as fast
    ((527, 137), (19367, 1134), (32, 8), True),  # 1.30
    ((4922, 832, 153), (40718, 1954, 5813), (32, 32), False),  # .91: 34 tiles read each of 32 heads again
    ((1854,), (11842,), (32, 32), False),  # .94
    ((205, 102), (115857, 68759), (16, 8), False),  # .86
    ((331,), (18100,), (32, 32), True),  # 1.16: three tiles do not
])  # fmt: skip
def test_ranges_are_taken_where_l2_spares_them_dram(q_lens, kv_lens, heads, taken, monkeypatch):
    """SMs that begin anywhere read all heads of all sequences at once. Heads of 128, where tiles are many, too."""
    asked, in_ranges = [], prefill.in_ranges
    monkeypatch.setattr(prefill, "in_ranges", lambda *what: asked.append(what) or in_ranges(*what))
    decide.hopper(HybridBatch(q_lens, kv_lens, *heads, 128), 132)
    assert bool(asked) == taken


@given(batches(longest=3000, chunk=700))
def test_what_is_read_again_is_counted_for_each_head(b):
    side = sides(HybridBatch(b.q_lens, b.kv_lens, b.hq, b.hkv, 128), 0)[0]
    tiles = prefill.tiles(side, choose.prefill_pack(side, 128), b.causal)
    work, read = prefill.cut(tiles, 1, 128), Counter()
    for seq, head, blocks in zip(work.seq, work.kv_head, work.blocks(128), strict=True):
        read[seq, head] += blocks
    there = dict(zip(side.seq, -(-side.kv_len // 128), strict=True))
    more = {of: n for of, n in read.items() if n > there[of[0]]}
    again = sum(n - there[seq] for (seq, _), n in more.items())
    assert prefill.read_again(tiles, side, 128) == (again, sum(there[seq] for seq, _ in more))


@settings(max_examples=60)
@given(batches(longest=3000, chunk=700), st.none() | st.integers(1, 900), st.randoms(use_true_random=False))
def test_pieces_of_any_ranges_cover_each_tile_once_and_join_in_order(b, window, random):
    side = sides(HybridBatch(b.q_lens, b.kv_lens, b.hq, b.hkv, 128, window=window), 0)[0]
    tiles = prefill.tiles(side, choose.prefill_pack(side, 128), b.causal)
    tiles = prefill.in_sections(tiles, side, 128, 128)
    blocks = tiles.blocks(128)
    total = int(blocks.sum())
    cuts = np.array(sorted({total, *(random.randint(1, total) for _ in range(random.randint(0, 40)))}))
    whole, work = prefill.cut(tiles, 1, 128), prefill.in_ranges(tiles, cuts, 128, blocks)
    wanted = {(token, head): (begin, end) for token, head, begin, end in
              zip(whole.token, whole.head, whole.begin, whole.end, strict=True)}  # fmt: skip
    got = {}
    for row in sorted(rows(work), key=lambda row: row["part"]):
        got.setdefault((row["token"], row["head"]), []).append(row)
    assert got.keys() == wanted.keys()
    for tile, parts in got.items():
        assert [(row["part"], row["parts"]) for row in parts] == [(i, len(parts)) for i in range(len(parts))]
        assert parts[0]["begin"] == wanted[tile][0] // 128 * 128 and parts[-1]["end"] == wanted[tile][1]
        assert all(a["end"] == c["begin"] and c["begin"] % 128 == 0 for a, c in pairwise(parts))
        assert len({(row["partial"], row["group"]) for row in parts}) == 1
    split = {tile: parts[0]["partial"] for tile, parts in got.items() if len(parts) > 1}
    slots = sorted(slot for tile, first in split.items() for slot in range(first, first + len(got[tile])))
    assert slots == list(range(work.partials)) and len(split) == work.groups


def _makespan(work: WorkList, workers: int) -> int:
    """In tenths of a block, where each piece goes to whoever is free."""
    cost = 10 * work.blocks(128) + choose.PIECE_COST + choose.PART_COST * (work.parts > 1)
    busy = [0] * workers
    for c in cost.tolist():
        busy[busy.index(min(busy))] += c
    return max(busy)


def _alike(work: WorkList) -> bool:
    """Whether no two parts of a tile differ by more than a block."""
    tile = list(zip(work.token, work.head, strict=True))
    blocks = work.blocks(128)
    lengths = {of: [b for b, t in zip(blocks, tile, strict=True) if t == of] for of in set(tile)}
    return all(max(b) - min(b) <= 1 for b in lengths.values())


@given(st.lists(st.integers(1, 90), min_size=1, max_size=300), st.sampled_from([1, 3, 4, 132]))
def test_ranges_cover_the_line_and_cut_no_tile_close_to_its_border(blocks, workers):
    blocks = np.array(blocks)
    cuts, time = choose.prefill_ranges(blocks, workers)
    ends = blocks.cumsum()
    assert cuts[-1] == ends[-1] and (np.diff(cuts) > 0).all() and len(cuts) <= workers
    for cut in cuts:
        tile = ends.searchsorted(cut)
        begun, left = cut - (ends - blocks)[tile], ends[tile] - cut
        assert left == 0 or min(begun, left) > choose.SHORTEST_PART
    longest = max(10 * np.diff(cuts, prepend=0))
    assert time >= longest + choose.PIECE_COST
    assert time >= 10 * ends[-1] / workers


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
        q_lens=(1, 200, 1), kv_lens=(700, 600, 500), hkv=2, hq=8, causal=True, workers=4, splits=2, weights=None,
        roles=choose.Roles(8, 1),
    )  # fmt: skip


@pytest.mark.parametrize("fault", ["lost", "twice", "short"])
def test_a_wrong_work_list_is_noticed(fault):
    b, rng = _example(), np.random.default_rng(0)
    q, (k, v) = rng.normal(size=(202, 8, 4)), rng.normal(size=(2, 3, 700, 2, 4))
    prefill, decode = lists(b)
    keep = {"lost": np.arange(1, len(decode)), "twice": np.append(np.arange(len(decode)), [0, 1])}
    columns = {name: column[keep.get(fault, slice(None))].copy() for name, column in decode.columns.items()}
    if fault == "short":
        columns["end"][-1] -= 1
    wrong = replace(decode, **columns)
    if fault == "twice":
        with pytest.raises(ValueError, match="second result"):
            execute(q, k, v, prefill, wrong)
        return
    out, _ = execute(q, k, v, prefill, wrong)
    wanted, _ = hybrid_attention(q, k, v, b.q_lens, b.kv_lens)
    assert not np.allclose(out, wanted)


def test_a_wide_tile_is_taken_where_its_units_end_sooner():
    """A third warpgroup fits at head_dim 64 only; with as many waves as before, the wider tile would only be slower."""

    def shape(chunk, context, heads, head_dim):
        return decide.hopper(HybridBatch([chunk], [context], *heads, head_dim), 132).shape

    assert shape(8192, 8192, (32, 8), 64) == WIDE
    assert shape(8192, 8192, (32, 8), 128) == PERSISTENT
    assert shape(100, 8192, (8, 8), 64) == PERSISTENT  # the wide tile has room for more tokens than there are
    beside = HybridBatch([8192, *[1] * 40], [8192, *[16384] * 40], 32, 8, 64)
    assert decide.hopper(beside, 132).shape == PERSISTENT


def test_a_wide_tile_would_hold_no_more_of_single_tokens_with_up_to_128_heads():
    """So nobody asks what it would cost; of more heads it saves a pass."""
    single = HybridBatch([1] * 64, [65536] * 64, 192, 1, 64)
    assert decide.hopper(single, 132).shape == WIDE
    for group in range(1, 129):
        chunks = sides(HybridBatch([1, 1, 1], [4096, 100, 7], 2 * group, 2, 64), 0)[0]
        for shape in (PERSISTENT, WIDE):
            made = prefill.tiles(chunks, choose.prefill_pack(chunks, shape.prefill_rows))
            assert len(made.order) == 3 * 2, "one for each KV head of each"


def test_a_narrow_tile_is_taken_where_no_warpgroup_has_many_rows_and_nothing_decodes():
    def shape(q_lens, heads, head_dim=128, **rules):
        return decide.hopper(HybridBatch(q_lens, [4096] * len(q_lens), *heads, head_dim, **rules), 132).shape

    assert shape([4, 3], (32, 4)) == NARROW
    assert shape([4, 9], (32, 4)) == PERSISTENT  # 36 rows or more of a warpgroup
    assert shape([8], (32, 4), 64) == NARROW  # as much to move
    assert shape([8], (5, 1)) == NARROW  # 40 rows, which two warpgroups share
    assert shape([4, 1], (32, 4)).decode_rows in DECODE_ROWS
    assert shape([4, 3], (32, 4), softcap=30.0) == PERSISTENT
    assert shape([4, 3], (32, 4), kv_dtype="float8_e4m3fn").decode_rows in DECODE_ROWS
    drafts = HybridBatch([4, 3], [4096, 4096], 32, 4, 128)
    assert decide.hopper(drafts, 132, invariant=True).shape.decode_rows in DECODE_ROWS  # it merges in another order
    roles, pack = choose.roles(drafts), choose.prefill_pack(sides(drafts, 1)[0], PERSISTENT.prefill_rows)
    assert decide.hopper(drafts, 132, roles=roles, pack=pack).shape == PERSISTENT  # as plans on the device have it


@settings(max_examples=60)
@given(batches(longest=9000, chunk=600), batches(longest=9000, chunk=600))
def test_an_invariant_plan_cuts_a_sequence_alike_in_any_company(b, company):
    heads = (b.hq, b.hkv, 128)

    def pieces(q_lens, kv_lens, seq):
        """Of one sequence, its tokens counted from its own first one."""
        plan = decide.hopper(HybridBatch(q_lens, kv_lens, *heads), b.workers, invariant=True, causal=b.causal)
        first, sides = sum(q_lens[:seq]), []
        for work in (plan.prefill, plan.decode):
            mine = [row for row in rows(work) if row["seq"] == seq]
            ignored = {"token": first, "partial": None, "group": None, "seq": None}
            sides.append(sorted(
                tuple((k, v - first if k == "token" else v) for k, v in row.items() if k == "token" or k not in ignored)
                for row in mine
            ))  # fmt: skip
        return sides, plan.shape, plan.pack

    alone = pieces(b.q_lens[:1], b.kv_lens[:1], 0)
    together = pieces((*company.q_lens, *b.q_lens), (*company.kv_lens, *b.kv_lens), len(company.q_lens))
    assert alone[0] == together[0] and alone[1] == together[1]
    if alone[0][0]:
        assert alone[2] == together[2]


def test_what_all_as_prefill_takes_at_least_hides_no_better_choice():
    """`roles` leaves that choice out where memory alone needs longer than another takes."""
    for mix in mixes(400, 22):
        batch, (q_lens, kv_lens) = mix.batch, mix.batch.lens
        possible = choose.possible_roles(batch.group)
        drafts = min(batch.q_lens) > 1 and max(batch.q_lens) <= max(made.tokens for made in possible)
        if batch.window is None and max(batch.q_lens) > 1 and not drafts:  # the others are not judged by cost
            costs = [choose._us(batch, q_lens, kv_lens, made) for made in possible]
            floors = [choose._floor_us(batch, q_lens, kv_lens, made) for made in possible]
            assert all(floor <= cost for floor, cost in zip(floors, costs, strict=True)) and floors[-1] > 0
            few = [(q_lens <= made.tokens).sum() for made in possible]
            chosen = choose.roles(batch)
            assert costs[possible.index(chosen)] == min(c for i, c in enumerate(costs) if few[i] not in few[:i])


def test_single_tokens_alone_are_few_rows_where_they_are_short_and_must_be_cut():
    decode, few = choose.possible_roles(4)[0], choose.possible_roles(4)[-1]
    short = HybridBatch((1,) * 5, (3000, 700, 1, 64, 5000), 16, 4, 128, page_size=16)
    one, whole = (replace(short, q_lens=(1,) * n, kv_lens=(kv_len,) * n) for n, kv_len in ((1, 8106), (64, 300)))
    long = replace(short, kv_lens=(64_000, *short.kv_lens[1:]))
    assert [choose.roles(batch) for batch in (short, one, whole, long)] == [few, few, decode, decode]
    for rule in ({"window": 500}, {"sinks": True}, {"kv_dtype": "float8_e4m3fn"}):  # no kernel for these
        assert choose.roles(replace(short, **rule)) == decode
    assert choose.roles(replace(short, q_lens=(2, 1, 1, 1, 1))) == decode  # beside others, it is a matter of cost
    made = decide.hopper(short, 132)
    assert len(made.decode.token) == 0 and made.shape == NARROW
    long_padding = replace(short, q_lens=(1, 1, 1, 1, 0), kv_lens=(3000, 700, 1, 64, 300_000))
    assert choose.roles(long_padding) == few, "nobody reads the keys of a row without a token"


@pytest.mark.parametrize("q_lens, kv_lens", [((1,), (0,)), ((1, 1), (0, 0)), ((1, 0), (0, 0)), ((0, 1), (50, 0))])
@pytest.mark.parametrize("group", [1, 4, 16, 71])
def test_batches_of_nothing_but_padding_are_planned(q_lens, kv_lens, group):
    batch = HybridBatch(q_lens, kv_lens, group, 1, 128, page_size=16)
    made = decide.hopper(batch, 132)
    assert sum(q_lens) * group == sum(int((side.tokens * side.heads).sum()) for side in (made.prefill, made.decode))
