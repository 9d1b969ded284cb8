"""The figures of chapter 17 say what its recordings say, and its small models count right."""

import json

import numpy as np
import pandas as pd
import pytest

from pod import data
from pod.batch import HybridBatch
from pod.experiments.basics import chat_band
from pod.experiments.hopper import (
    hopper_any,
    hopper_any_plans,
    hopper_any_roof,
    hopper_band,
    hopper_beside,
    hopper_dry,
    hopper_dtypes,
    hopper_halves,
    hopper_mixed,
    hopper_peers,
    hopper_plan,
    hopper_roofs,
    hopper_sweep,
    hopper_trace,
)
from pod.experiments.joules import joules_prices
from pod.experiments.ladder import ladder
from pod.experiments.pod import pod_11
from pod.hardware import H200
from pod.lab import notebooks
from pod.lab.show import hopper as pictures
from pod.lab.show import overlap, style
from pod.learn.exercises import hopper_parts
from pod.schedule import choose
from pod.schedule.choose import DECODE_BYTES
from pod.schedule.decide import hopper
from pod.schedule.decode import segments
from pod.simulate import tensor_core_queue


def recorded(name):
    return pd.read_csv(data.RECORDED / "h200" / f"hopper-{name}.csv")


def test_sweep_takes_the_faster_call_for_each_part_and_the_papers_filter():
    raw, df = recorded("sweep"), hopper_sweep.table()
    assert len(df) == len(raw)
    assert (df.prefill == raw[["prefill_p10", "prefill_exact_p10"]].min(axis=1)).all()
    assert (df.decode == raw.decode_p10).all(), "a short call alone waits for the host now and then"
    assert (df.larger == np.maximum(df.prefill, df.decode)).all()
    some = hopper_sweep.filtered(df)
    assert (np.minimum(some.prefill, some.decode) >= 0.2 * (some.prefill + some.decode) - 1e-12).all()
    assert 0 < len(some) < len(df) and set(hopper_sweep.balanced(df).index) <= set(some.index)
    gains = some.fa3_serial / some.ours
    assert hopper_sweep.over_serial() == pytest.approx(np.prod(gains.to_numpy()) ** (1 / len(gains)))
    assert hopper_sweep.over_best_peer() <= hopper_sweep.over_serial()
    assert hopper_sweep.least() == (raw.fa3_serial / raw.ours).min()


def test_chapter_17c_says_what_the_prefill_with_a_cache_costs_flash_attention_3():
    raw, df = recorded("sweep"), hopper_sweep.table()
    longer = raw.prefill / raw.prefill_exact
    assert [round(x, 2) for x in (longer.min(), longer.max())] == [0.23, 1.35]
    assert 100 * (longer.median() - 1) == pytest.approx(2.6, abs=0.05)
    some = hopper_sweep.filtered(df).index
    fairer = (raw.fa3_serial - (raw.prefill - raw.prefill_exact).clip(lower=0)) / raw.ours
    assert np.exp(np.log(fairer[some]).mean()) == pytest.approx(1.43, abs=0.006)


def test_chapter_17d_says_what_a_gain_is_back_to_back():
    df = hopper_peers.table()
    means = [np.exp(np.log(gain).mean()) for gain in (df.fa3_serial / df.ours,
                                                      df.fa3_serial_steady_ms / df.ours_steady_ms)]  # fmt: skip
    assert len(df) == 11 and means == [pytest.approx(1.39, abs=0.005), pytest.approx(1.42, abs=0.005)]


def test_exponentials_need_as_long_as_products_at_head_dimension_64():
    a_score = 4 * 64 / (H200.tensor_flops / H200.sms / H200.clock_hz)  # cycles of an SM's tensor cores
    assert a_score == pytest.approx(1 / 16, rel=0.01), "an SM makes 16 exponentials a cycle"


def test_a_lead_at_one_request_is_partly_a_plan():
    raw = recorded("halves").query("side == 'decode' and head_dim == 128 and dtype == 'bfloat16'").set_index("batch")
    assert 1e3 * raw.fa3["1 x 4K"] == pytest.approx(19.9, abs=0.05)
    assert 1e3 * raw.auto["1 x 4K"] == pytest.approx(15.7, abs=0.05)
    for batch in ("1 x 4K", "1 x 16K"):
        assert 1e3 * (raw.fa3 - raw.auto)[batch] == pytest.approx(4, abs=0.2)


def test_chapters_17c_and_17d_say_which_batches_lose():
    """Drafts alone are "spec", and each kind that has drafts begins so. Numbers are printed, and not typed."""
    df = hopper_any.table()
    lost = df[df.gain < hopper_any.LOST]
    assert (lost.kind == "spec").sum() > len(lost) / 2, "mostly drafts alone"
    again = hopper_any.in_repeats()
    there = [table[table.gain < hopper_any.LOST] for table in again]
    everywhere = df.loc[sorted(set(lost.index).intersection(*(table.index for table in there)))]
    assert everywhere.model.tolist() == ["GLM-4-9B", "Falcon-7B"] and everywhere.ours.iloc[0] < 0.04
    falcon = everywhere[everywhere.group == 71]
    assert (falcon.turns == falcon.ours).item(), "the plan takes all of it as prefill"
    said = hopper_any.lost_in_words(df)
    lines, (slower, *elsewhere) = said[: len(lost)], said[len(lost) :]
    assert [line.split(", ")[0] for line in lines] == [f"lost: {kind}" for kind in hopper_any.from_worst(lost).kind]
    assert [f", {100 / gain - 100:.0f} % longer" in line for gain, line in zip(sorted(lost.gain), lines, strict=True)]
    assert slower == f"slower at all: {(df.gain < 1).sum()} of {len(df)}"
    for line, table in zip(elsewhere, there, strict=True):
        assert line.startswith(f"on another card: {len(table)} lost, {len(set(table.index) & set(lost.index))} of them")


def test_chapter_17c_says_which_of_the_worst_are_long_and_what_a_short_one_loses():
    worst, near = hopper_any.worst(hopper_any.table()), hopper_any_roof.table().set_index("batch")
    long = worst[worst.ours > 0.04]
    behind = long.gain / near.like[long.batch].to_numpy()
    assert 0 < len(long) < 10 and (behind > 0.99).sum() == len(long) - 1, "most long ones are at the black line"
    one = hopper_any.table().loc[151]
    assert one.batch == 151 in set(worst.batch) and one.words.endswith("4 x 6 @ 4,616 to 16,430")
    assert 1e3 * (one.ours - one.two) == pytest.approx(0.45, abs=0.005)


def test_chapter_17c_says_where_there_is_something_to_fuse_and_where_fusing_loses():
    df = hopper_any.table()
    both = df[df.turns != df.ours]
    assert 0.6 < 1 - len(both) / len(df) < 0.667, "nearly two thirds have nothing to fuse"
    by_kind = hopper_any.summary(df).drop(["all", "head_dim 128"])
    most = by_kind.loc[["returning+decode", "mixed"]].round(2)
    others = by_kind.drop(most.index)
    assert (most.fusing >= most["better halves"]).all() and (others.fusing - 1 < others["better halves"] - 1).all()
    assert ((others.fusing - 1) < 0.2 * (others["better halves"] - 1)).all(), "nearly all is better halves"
    loses = [set(some.index[some.turns < some.ours]) for some in (df, *hopper_any.in_repeats())]
    lines = hopper_any.where_fusing_loses(df)
    assert [int(line.split(": ")[1].split()[0]) for line in lines] == [len(some) for some in loses]
    assert all(len(some) < 0.05 * len(both) for some in loses), "on few"


def test_chapter_17c_says_on_how_many_batches_prefill_is_cut_in_ranges(monkeypatch):
    def plans():
        made = [hopper(mix.batch, H200.sms) for mix in hopper_any.drawn()]
        return [([column.tolist() for column in (m.prefill.token, m.prefill.begin, m.prefill.end)], m) for m in made]

    now = plans()
    monkeypatch.setattr(choose, "ranges_may_pay", lambda *_: False)
    some = [i for i, (mine, before) in enumerate(zip(now, plans(), strict=True)) if mine[0] != before[0]]
    assert all(len(now[i][1].decode.pieces) == 1 for i in some), "nothing decodes"
    assert len(some) == 16


def test_chapter_17c_says_how_soon_ranges_of_five_tiles_end():
    tiles, price = np.full(5, 40), 3
    ranges, tile, begin, end = segments(tiles, np.array([50, 100, 150, 200]))
    parts = np.bincount(tile)
    loads = np.bincount(ranges, end - begin + price * (parts > 1)[tile])
    assert loads.tolist() == [53, 56, 56, 53] and sorted(parts) == [1, 1, 2, 2, 2]
    assert hopper_parts.best(tiles.tolist(), 4, price) > 56, "no parts of one length end so soon"


def test_chapter_17c_says_where_a_best_plan_takes_all_as_prefill():
    df = hopper_any_plans.table()
    some = df[df.lost > 1.05]
    least = [min(hopper_any.drawn()[i].batch.q_lens) for i in some.batch]
    now = [choose.roles(hopper_any.drawn()[i].batch).tokens for i in some.batch]
    best = [int(plan.split("decode up to ")[1].split(",")[0]) for plan in some.plan]
    whole = [up_to < fewest <= chosen for up_to, fewest, chosen in zip(best, least, now, strict=True)]
    assert 0.17 < sum(whole) / len(some) < 0.23, "a fifth of them"


def test_chapter_17c_says_how_times_in_fp16_differ_from_those_in_bf16():
    bf16, raw = recorded("peers"), recorded("dtypes")
    fp16 = raw[(raw.head_dim == 128) & (raw.dtype == "float16")].reset_index(drop=True)
    ours, fa3 = fp16.ours / bf16.ours, (fp16.fa3_serial / bf16.fa3_serial)[bf16.ours > 1]
    assert abs(ours - 1).max() < 0.065 and [round(100 * x - 100) for x in sorted(fa3)] == [5, 10, 11]


def test_chapter_17c_says_where_there_is_little_to_fuse_and_how_long_decodes_take():
    sweep, df = hopper_sweep.table(), hopper_any.table()
    assert 0.74 < 1 - len(hopper_sweep.filtered(sweep)) / len(sweep) < 0.77, "three of four fail the filter"
    fusing = hopper_any.summary(df).fusing
    assert (fusing[["decode", "spec", "fresh+chunk"]] < 1.015).all()
    more = hopper_any.summary(df).loc[["returning+decode", "mixed"]]
    assert more.fusing.round(2).tolist() == [1.17, 1.17] and more.fusing.min() > fusing.drop(more.index).max()
    assert fusing["spec+chunk"] > 1.05
    assert (df[df.kind == "decode"].ours < 0.1).mean() > 0.5
    assert hopper_any.summary(df).gain[["spec+chunk"]].between(1.3, 1.36).all(), "about a third"
    assert hopper_any.worst(df, 1).kind.item() == "spec+chunk", "the worst batch of all"


def test_the_rings_of_chapter_17c_lie_at_the_left_and_at_the_top_but_falcons():
    near, worst = hopper_any_roof.table().set_index("batch"), hopper_any.worst(hopper_any.table())
    share, roof = near.share[worst.batch].to_numpy(), near.roof[worst.batch].to_numpy()
    falcon = (worst.model == "Falcon-7B").to_numpy()
    assert (roof < 0.02).sum() == 4 and ((share > 0.79) & ~falcon).sum() == 5 and falcon.sum() == 1
    like = near.like[worst.batch].to_numpy() / near.gain[worst.batch].to_numpy()
    assert like[falcon].item() > 2, "far below what others of its size reach"


def test_chapter_17c_says_how_many_of_the_sweep_come_near_the_longer_part_and_the_stricter_goal():
    df = hopper_sweep.table()
    some, near = hopper_sweep.filtered(df), sum(t <= 1.1 * m for t, m in zip(df.ours, df.larger, strict=True))
    assert hopper_sweep.near_larger(df) == pytest.approx(100 * near / len(df))
    said = 100 * (df.ours < df.larger).mean(), hopper_sweep.near_larger(df), hopper_sweep.near_larger(some)
    assert [round(x) for x in said] == [65, 92, 69]
    assert [round(hopper_roofs.near_bound(rows, "ours")) for rows in (df, some)] == [82, 38]


def test_chapter_17c_says_where_the_chat_servers_batch_ends_in_the_band():
    places = chat_band.table().set_index("way").place
    assert [round(places[chat_band.WAYS[way][1]], 2) for way in ("hopper", "fa3_serial")] == [0.94, 0.40]


def test_chapter_17c_says_how_near_to_the_roof_the_median_batch_is():
    df = hopper_sweep.table()
    halves = hopper_sweep.filtered(df), hopper_sweep.balanced(df)
    shares = [hopper_any_roof.of_sweep(some).share.median() for some in halves]
    assert [round(100 * x) for x in (*shares, hopper_any_roof.table().share.median())] == [87, 74, 63]


def test_bars_would_be_met_on_the_best_quarter_of_the_same_sort_too():
    df = hopper_any_roof.table()
    alone = df.kind.isin(hopper_any_roof.ALONE)
    for mine in (alone, ~alone):
        some = df[mine]
        best = hopper_any_roof.best_quarter(np.log(some.roof.to_numpy()), some.share.to_numpy())
        df.loc[mine, "like"] = some.fa3 / some.roof * np.maximum(some.share, best)
    bars = hopper_any_roof.bars(df)
    assert (bars["today"] < bars.bar).all() and (bars["as its best quarter"] > bars.bar).all()
    over_two = hopper_any.over_plain()
    assert (np.array(over_two) < bars.bar).tolist() == [True, False, False]
    assert over_two[0] > bars.today["all"], "missed by less"


def test_band_places_agree_with_overlap():
    df, sweep = hopper_band.table(), hopper_sweep.table()
    mine = df[df.method == "this kernel"].reset_index(drop=True)
    row = sweep.iloc[7]
    assert mine.place[7] == pytest.approx(overlap(row.ours, row.prefill, row.decode))
    assert mine.time[7] == pytest.approx(row.ours / row.larger)


def test_hump_is_the_highest_median_near_equal_parts():
    df = hopper_sweep.table()
    some = df[df.ratio.between(0.7, 2)]
    assert (some.ours / some.larger).median() < hopper_band.hump() < (some.ours / some.larger).max()
    ten = df[df.ratio.between(1, 2**0.5)]
    said = len(ten), round((ten.ours / ten.larger).median(), 2), round(hopper_band.hump(), 2)
    assert said == (10, 1.28, 1.28), "as chapter 17c says"


def test_halves_compare_with_the_faster_call():
    raw, df = recorded("halves"), hopper_halves.table()
    worst = df[df.side == "prefill"].contiguous.idxmin()
    fa3 = min(raw.fa3[worst], raw.fa3_exact[worst])
    assert df.contiguous[worst] == pytest.approx(100 * fa3 / raw.ours[worst])
    decode = raw[raw.side == "decode"].index[0]
    assert df.contiguous[decode] == pytest.approx(100 * raw.fa3[decode] / raw.ours[decode])
    assert df.ours[decode] == pytest.approx(raw.kv_bytes[decode] / raw.ours[decode] / 1e6)
    assert df.unit[decode] == "GB/s"
    assert df.same_pages[decode] == pytest.approx(100 * raw.fa3_page16[decode] / raw.ours_page16[decode])
    bf16 = df[(df.dtype == "bfloat16") & (df.head_dim == 128)]
    assert 100 * hopper_halves.prefill_pages_least() == pytest.approx(bf16[bf16.side == "prefill"].same_pages.min())
    paged = bf16[bf16.side == "decode"].same_pages
    behind = len(paged), (paged < 100).sum(), (paged < 99.5).sum()
    assert behind == (14, 5, 5) and round(paged.min(), 1) == 96.6, "as chapter 17d says"
    assert 100 * hopper_halves.decode_least() == pytest.approx(bf16[bf16.side == "decode"].contiguous.min())


def test_halves_have_their_means_with_a_contiguous_cache_and_in_pages():
    raw = recorded("halves").query("dtype == 'bfloat16' and head_dim == 128")
    for side, column in (("prefill", "contiguous"), ("decode", "same_pages")):
        some = raw[raw.side == side]
        fa3 = some[["fa3", "fa3_exact"]].min(axis=1) / some.ours, some.fa3_page16 / some.ours_page16
        gains = fa3[column == "same_pages"]
        assert hopper_halves.mean(side, column) == pytest.approx(np.exp(np.log(gains).mean()))
    assert hopper_halves.mean("prefill", "same_pages") > hopper_halves.mean("prefill") > 1, "as chapter 17c says"


def test_sweep_tells_which_flash_attention_3_and_what_its_plan_costs():
    meta = json.loads((data.RECORDED / "h200" / "hopper-sweep.meta.json").read_text())
    text = notebooks.find(["17c"])[0].read_text()
    assert meta["packages"]["flash_attn_interface"].split()[-1] in text
    assert meta["torch"].startswith("2.11") and meta["cuda"] == "13.0"
    any_batch, sweep = recorded("any"), recorded("sweep")
    assert 0 < (any_batch.fa3_two - any_batch.fa3_two_ahead).median() < 5e-3 < 0.3 < sweep.fa3_serial.min(), "ms"


def test_halves_need_the_second_call_for_prefill_only(monkeypatch, tmp_path):
    """Early recordings timed decode's only call twice, later ones leave the second column empty there."""
    before, raw = hopper_halves.table(), recorded("halves")
    raw.loc[raw.side == "decode", [c for c in raw if c.startswith("fa3_exact")]] = float("nan")
    path = tmp_path / "h200" / "hopper-halves.csv"
    path.parent.mkdir()
    raw.to_csv(path, index=False)
    monkeypatch.setattr("pod.data.RECORDED", tmp_path)
    assert hopper_halves.table().equals(before)


def test_mixed_batches_are_measured_from_the_uniform_one_of_their_heads():
    df = hopper_mixed.table()
    plain = df[(df.batch == "uniform") & (df.page == 0)]
    assert len(plain) == df.heads.nunique()
    assert plain.excess_percent.abs().max() < 1.5, "the same batch twice, in the same rounds"
    assert hopper_mixed.worst() == df.excess_percent.max() > 0
    assert (df.excess_percent <= 100 * (df.time - 1) + 1e-9).all(), "more work explains time, never adds to it"


def test_peers_never_count_our_own_variants():
    df = hopper_peers.table()
    assert set(df.best_peer) <= set(hopper_peers.PEERS.values())
    columns = list(hopper_peers.PEERS)
    np.testing.assert_allclose(df.over_best_peer, df[columns].min(axis=1) / df.ours)
    holes = df[columns].isna().sum(axis=1)
    assert ((holes > 0) == (df.holes != "")).all(), "a time that is missing has a reason"


def test_other_tensors_are_compared_on_the_same_batches():
    df, raw = hopper_dtypes.table(), recorded("dtypes")
    assert df.kind.value_counts().to_dict() == dict.fromkeys(("bf16, 128", "fp16, 128", "bf16, 64", "fp16, 64"), 11)
    others = df[df.kind != "bf16, 128"].reset_index(drop=True)
    np.testing.assert_allclose(others.over_serial, raw.fa3_serial / raw.ours)
    assert (others.over_best <= others.over_serial).all()
    means = hopper_dtypes.summary(df)["over serial"]
    assert means["fp16, 64"] == pytest.approx(np.exp(np.log(others.over_serial[-11:]).mean()), abs=0.005)
    hopper_dtypes.draw(df)


def test_energy_is_power_times_time():
    df = hopper_peers.energy(hopper_peers.table())
    np.testing.assert_allclose(df.millijoules, df.watts * df.steady_ms, rtol=0.02)
    np.testing.assert_allclose(df.roof_ms * hopper_peers.hardware().power_w, df.millijoules)


def test_chapter_17d_says_that_time_falls_as_energy_at_the_same_power():
    df = hopper_peers.energy(hopper_peers.table())
    one = df[df.batch == "2K @ 8K + 128 x 4K, 32/8"].set_index("way")
    spent = one[["millijoules", "steady_ms"]]
    saved = 1 - spent.loc["this kernel"] / spent.loc["this kernel, halves in turn"]
    assert [round(100 * share) for share in saved] == [19, 19] and one.watts.between(675, 700).all()
    assert recorded("peers").kv_bytes.min() > 25 * H200.l2_bytes, "L2 that is not emptied has next to nothing of it"


def test_trace_puts_the_halves_one_after_the_other():
    df = hopper_trace.table()
    serial = df[df.way == hopper_trace.SERIAL]
    last = serial[serial.side == "prefill"].end_us.max()
    assert serial[serial.side == "decode"].start_us.min() >= last
    assert df.sm.nunique() == H200.sms and set(df.role) == set(hopper_trace.ROLES)
    ends = hopper_trace.ends(df)
    fused = max(ends[hopper_trace.FUSED, side] for side in ("prefill", "decode"))
    halves = sum(ends[hopper_trace.SERIAL, side] for side in ("prefill", "decode"))
    assert fused < halves


def test_products_take_the_cycles_that_the_chapter_says():
    assert tensor_core_queue.prefill_product(H200) == pytest.approx(64, rel=1e-3)
    assert tensor_core_queue.decode_product(H200) == 16
    assert tensor_core_queue.product_cycles(H200, 8, 0) == pytest.approx(4, rel=1e-3), "its arithmetic alone"


@pytest.mark.parametrize("queued, cycles", [(0, 16), (1, 80), (2, 144), (3, 208)])
def test_whoever_waits_is_served_once_a_round(queued, cycles):
    served = tensor_core_queue.serve(tensor_core_queue.queue(H200, queued), 5000)
    starts = [start for name, start, _ in served if name == "decode"]
    np.testing.assert_allclose(np.diff(starts), cycles, rtol=1e-3)
    assert all(a[2] == b[1] for a, b in zip(served, served[1:], strict=False)) and served[-1][2] <= 5000
    assert tensor_core_queue.shares(served, "decode")[1] == pytest.approx(16 / cycles, rel=1e-3)
    assert tensor_core_queue.decode_bytes_per_s(H200, queued, 1e9) == pytest.approx(2048 / cycles * 1e9 * 132, rel=1e-3)


def test_a_narrow_product_takes_a_thirtieth_of_the_flops_and_an_eighth_of_the_time():
    a_second = DECODE_BYTES / H200.sms / tensor_core_queue.KV_BYTES  # products of decode, on an SM
    assert a_second * tensor_core_queue.product_cycles(H200, 8, 0) / H200.clock_hz == pytest.approx(1 / 29, rel=0.01)
    assert a_second * tensor_core_queue.decode_product(H200) / 1.97e9 == pytest.approx(1 / 8, rel=0.03)


def test_decode_beside_endless_products_gets_less_than_a_queue_in_turn_would_give():
    df = hopper_beside.table().set_index(["keys", "beside"])
    alone, one, two = df.loc["DRAM"].tb_per_s
    assert [round(x, 1) for x in (alone, one, two)] == [4.5, 4.5, 2.7]
    assert 1 - two / alone == pytest.approx(0.4, abs=0.01)
    assert df.loc["DRAM", 2].model_tb_per_s / two == pytest.approx(1.36, abs=0.005)
    near = df.loc["shared memory"]
    assert [round(x, 1) for x in near.others] == [0, 1.0, 2.3] and (near.a_cycle < near.model_a_cycle).all()
    assert near.model_a_cycle.tolist() == pytest.approx([128, 2048 / 80, 2048 / 144], rel=1e-3)
    shown = hopper_beside.shown(df.reset_index())
    assert shown.loc[2].tolist() == [2.7, 3.7, 12.4, 14.2, 2.3]
    assert len(hopper_beside.draw(df.reset_index()).axes) == 2


def test_scores_ahead_lose_alone_and_gain_with_turns_as_17a_says():
    df = ladder.table().query("batch == 'prefill'").set_index("kernel")
    rates = df.tflops[["roles", "early", "turns", "sm90"]].round().astype(int).tolist()
    assert rates == [542, 533, 582, 729]
    assert df.ms_p10["early"] > df.ms_p90["roles"] and df.ms_p90["turns"] < df.ms_p10["roles"]
    times = [df.ms["roles"] / df.ms["early"], df.ms["early"] / df.ms["turns"], df.ms["turns"] / df.ms["sm90"]]
    assert [round(100 * (x - 1)) for x in times] == [-2, 9, 25]


def test_the_picture_of_the_queue_counts_the_turns_of_its_title():
    axes = style.axes(9.5, 1.8, columns=2)
    titles = [pictures.in_turn(ax, queued).get_title(loc="right") for ax, queued in zip(axes, (2, 1), strict=True)]
    assert [int(title.split(": ")[1].split()[0]) for title in titles] == [5, 9], "1.8 times as many"


def test_rooms_fill_the_sm_as_the_source_says():
    assert sum(pictures.registers().values()) * 128 == H200.registers_per_sm
    for head_dim in (64, 128):
        assert 0.9 * H200.smem_per_cta < sum(pictures.shared_memory(head_dim).values()) <= H200.smem_per_cta
    pictures.rooms()


def test_chapter_17a_lists_the_roles_that_the_source_gives_its_warps():
    listed = pictures.roles().text
    for role in ("prefill::Producer", "decode::Producer", "prefill::consume", "decode::Consumer"):
        assert listed.count(f"{role}<…>(…);") == 1
    assert listed.count("setmaxnreg_dec") == 2 and listed.count("setmaxnreg_inc") == 1
    assert len(listed.splitlines()) <= 16 and "stamp" not in listed, "what the chapter does not explain stays away"


def test_the_plan_holds_every_unit_and_every_tile():
    made = hopper(HybridBatch((416, 1, 1), (416, 1024, 1000), 8, 2, 128), 4)
    prefill, decode = made.prefill, made.decode
    bars = pictures.plan(prefill, decode, 4, block=2.0, tile=1.0)
    sums = {side: sum(end - start for _, start, end, kind, _ in bars if kind == side) for side in ("prefill", "decode")}
    assert sums == {"prefill": 2.0 * 56, "decode": 2 * (16 + 16)}
    assert {row for row, *_ in bars} == set(pictures.plan_rows(4))
    ax = pictures.decode_line(decode, "AB")
    area = sum(p.get_width() for p in ax.patches)
    assert area == 64 and {t.get_text()[0] for t in ax.texts} == {"A", "B"}


# ---------------------------------------------------------------- which roof


def test_roofs_are_counted_from_the_plan():
    df = hopper_roofs.table().set_index(["batch", "state"])
    batch, ms = HybridBatch.of(2048, 8192, 128, 4096, 32, 8), recorded("peers").ours[6]
    row = df.loc["2K @ 8K + 128 x 4K, 32/8", "single"]
    assert row.ms == ms and row.dram == pytest.approx(100 * batch.bytes / (ms / 1e3) / hopper_roofs.fastest_read())
    decode = 2 * 128 * 4096 * 8 * 128 * 2 * 2
    smem = 512 * np.mean(range(49, 65)) * 224 * 1024 + decode
    assert row.smem_bytes_a_cycle * ms / 1e3 * 1.98e9 * 132 == pytest.approx(smem, rel=0.03)


def test_a_single_call_reaches_no_roof_and_repeated_ones_do():
    df = hopper_roofs.table()
    limits = ["tensor", "dram", "l2", "smem"]
    assert (df[limits] < 90).all(axis=None), "nothing that moves bytes or multiplies is full"
    alone = hopper_halves.table().query("side == 'prefill' and dtype == 'bfloat16' and head_dim == 128").ours.max()
    a_cycle, full = hopper_roofs.flops_a_cycle(), 1e6 * hopper_roofs.FULL_MHZ
    reached = 1e14 * alone / (a_cycle * full), *hopper_roofs.spread("single", "tensor")
    assert [round(x) for x in reached] == [76, 43, 60], "prefill alone and even batches, as chapter 17d says"
    assert round(a_cycle, -3) == 492_000 and round(a_cycle * H200.clock_hz / H200.tensor_flops, 2) == 0.91
    assert round(hopper_roofs.fastest_from_l2(), 1) == 9.6 and round(hopper_roofs.fastest_read() / 1e12, 2) == 4.61
    prices = joules_prices.table()
    shared = prices[prices.work == "shared"].eval("1e3 * rate / ghz").max() / H200.sms
    assert shared == pytest.approx(hopper_roofs.SMEM_BYTES_A_CYCLE, rel=0.01), "plain reads get all"
    single = df[df.state == "single"].sort_values("ratio")
    assert round(max(hopper_roofs.spread("single", limit)[1] for limit in limits)) == 77, "as chapter 17d says"
    assert [round(x) for x in (single.dram[:5].min(), single.dram[:5].max())] == [85, 88]
    assert (single.ratio[:5] < 0.5).all() and single.ratio[5:].between(0.5, 2).all()
    assert df[df.state == "steady"].power.between(95, 105).all() and df[df.state == "single"].power.isna().all()


def test_chapter_17a_says_which_layers_are_shorter_than_a_plan():
    plans, layers = hopper_plan.table().groupby("kind").update_us.max(), 1e3 * hopper_any.table().ours
    assert (round(plans.decodes, 1), round(plans.drafts, 1), round(plans.mixed, 1)) == (9.7, 9.6, 13.6)
    shorter = []
    for mix, us in zip(hopper_any.drawn(), layers, strict=True):
        chunks = max(mix.batch.q_lens) > 1 and len(hopper(mix.batch, H200.sms).prefill)  # on the device ones are decode
        if us < plans.max() and us < (plans.mixed if chunks else plans.drafts):
            shorter.append((mix.kind, us))
    assert hopper_plan.shorter_layers() == shorter and {kind for kind, _ in shorter} == {"spec"} and len(shorter) < 10
    assert f"in {300 - len(shorter)} of 300 batches" in hopper_plan.layers_in_words()


def test_chapter_17b_says_that_sections_lose_less_than_single_calls_differ():
    row = recorded("ladder").set_index("idea").loc["heads in sections that L2 holds"]
    assert [round(x, 1) for x in (row.ours_p10, row.ours_p90)] == [2.9, 3.4]
    assert [round(x, 1) for x in (row.without_p10, row.without_p90)] == [3.0, 3.4]
    assert row.ours_p10 < row.without < row.ours_p90
    df = recorded("ladder").query("without > ours and without_p10 < ours_p90")
    assert sorted(df.idea) == ["heads of a group share a tile", "longest tile first", "pieces of at least 4 tiles"]


def test_chapter_17b_says_that_the_plan_yields_where_that_gains():
    df = hopper_peers.table()
    assert list(df.batch) == [hopper_peers.batch_name(pd.Series(case)) for case in hopper_peers.cases()]
    planned = [hopper(hopper_peers.batch_of(case), H200.sms).yields for case in hopper_peers.cases()]
    assert planned == list(df.ours_always_yields < df.ours_never_yields)


def test_chapter_17b_says_that_no_gain_by_yielding_is_above_the_models_bound():
    lacks = 1 - tensor_core_queue.decode_bytes_per_s(H200, 2, 1.98e9) / choose.DECODE_BYTES
    assert lacks == pytest.approx(1 / 8, rel=0.01)
    other = pd.read_csv(data.REPEATS / "2026-11-27-3bcc4842/h200/hopper-peers.csv")  # another H200
    other = other.assign(prefill=other[["prefill", "prefill_exact"]].min(axis=1))
    for df, most in ((hopper_peers.table(), 4.8), (other, 8.6)):
        gain, ratio = 100 * (df.ours_never_yields / df.ours_always_yields - 1), df.prefill / df.decode
        yields = [hopper(hopper_peers.batch_of(case), H200.sms).yields for case in hopper_peers.cases()]
        assert list(gain > 0) == yields and sum(yields) == 8 and round(gain.max(), 1) == most
        assert (gain < 100 * lacks * ratio)[yields].all() and gain[gain < 0].between(-5.1, -2.7).all(), most
    row = data.read("joules-rungs").query("chunk == 2048 and decodes == 128").iloc[0]
    assert round(100 * (row.greedy_ms / row.ours_ms - 1), 1) == 2.2
    assert round(100 * (row.greedy_mj / row.ours_mj - 1), 1) == 1.8


def test_chapter_17b_says_how_long_a_decode_product_takes_alone():
    row = joules_prices.table().query("how == 'n8 shared' and ctas == 132").iloc[0]
    cycles = 2 * 64 * 8 * 16 / (row.rate * 1e12 / row.ghz / 1e9 / H200.sms)
    assert cycles == pytest.approx(20, abs=0.3)
    lower = [100 * (1 - (64 * queued + 16) / (64 * queued + 20)) for queued in (2, 1)]
    assert [round(x) for x in lower] == [3, 5], "rates with 20 cycles instead of 16"
    assert tensor_core_queue.decode_bytes_per_s(H200, 1, 1.4e9) * (1 - lower[1] / 100) > DECODE_BYTES, "still enough"


def test_chapter_17c_says_on_how_many_of_the_300_it_is_slower():
    gain = hopper_any.table().gain
    assert (gain < 1).sum() == 11 and round(100 / gain.min() - 100) == 4


def test_chapter_17a_says_how_long_the_host_takes_for_lists():
    df = recorded("plan")
    update, plan = (df[f"{name}_us"] / 1e3 for name in ("update_from_host", "plan"))
    assert [round(x, 2) for x in (update.min(), update.max())] == [0.13, 0.38]
    assert [round(x, 1) for x in (plan.min(), plan.max())] == [0.6, 2.2]
    wide = df.pivot(index="kind", columns="sequences", values="plan_us")
    assert (wide[256] > 300).all() and (wide[16] > 0.85 * wide[256]).all()
    assert (df[df.sequences == 256].update_from_host_us < 300).all()


def test_chapter_17a_says_with_which_plan_the_kernel_is_faster():
    longer = 1 / hopper_plan.table().set_index(["kind", "sequences"]).over_planned
    drafts = longer.xs("drafts")
    assert abs(longer.drop("drafts") - 1).max() < 0.002
    assert round(100 * (1 - drafts[16])) == 5 and {round(100 * x - 100) for x in drafts.drop(16)} == {2, 3}


def test_chapter_17d_says_what_two_sides_add_to_the_longer_one_while_both_run():
    df = hopper_dry.table()
    added = 1e3 * (df.ours - df[["prefill", "decode"]].max(axis=1))
    together = df.both * df[["prefill_last_us", "decode_last_us"]].max(axis=1)
    shares = 100 * added / together
    assert (len(df), round(shares.min()), round(shares.max())) == (24, 16, 26)
    assert hopper_dry.added(df).tolist() == pytest.approx(list(shares))
    by_side = hopper_dry.added_by_side()
    assert by_side["added while both run"].tolist() == ["16 to 19 %", "20 to 26 %", "20 to 25 %", "16 to 26 %"]
    assert by_side["prefill yields"].tolist() == ["10 of 10", "0 of 10", "2 of 4", "12 of 24"]
    most = df.both.groupby(df.grows).idxmax()
    assert all(0.95 < df.both[i] and 0.9 < df.prefill[i] / df.decode[i] < 1.1 for i in most), "at a ratio of 1"


def test_chapter_17d_says_what_limits_by_the_cycle_would_be():
    df = hopper_roofs.table().query("state == 'steady' and 0.5 < ratio < 2")
    some = df.tensor, df.l2_slowed, df.smem
    assert [round(x) for column in some for x in (column.min(), column.max())] == [59, 80, 92, 105, 72, 86]
    np.testing.assert_allclose(df.l2_slowed, df.l2 * hopper_roofs.FULL_MHZ / df.mhz)
    assert (df.tensor < df.smem).all() and (df.l2 < df.smem).all() and (df.smem < df.l2_slowed).all()
    assert df.mhz.between(1150, 1300).all(), "about 1.2 GHz"


def test_chapter_17d_says_where_flash_infers_pod_is_behind_and_what_the_prefill_with_a_cache_costs():
    df, raw = hopper_peers.table(), recorded("peers")
    behind = (df.fi_pod / df.fa3_serial)[df.prefill / df.decode > 0.5]
    assert len(behind) == 6 and 1.19 < behind.min() and behind.max() < 1.52
    assert (df.fi_pod / df.fa3_serial).drop(behind.index).max() < 1.01
    assert hopper_peers.one_call_over_ours().is_monotonic_increasing, "it loses more where more heads share keys"
    longer = raw.prefill / raw.prefill_exact
    assert (longer > 1).sum() == 6 and longer.max() < 1.055
    fairer = (raw.fa3_serial - (raw.prefill - raw.prefill_exact).clip(lower=0)) / raw.ours
    assert np.exp(np.log(fairer).mean()) == pytest.approx(1.38, abs=0.005)


def test_no_kernel_that_was_timed_beats_the_bound():
    ours, sweep = hopper_sweep.table(), pod_11.table()
    ways = [*pod_11.METHODS, "fa2_serial", "fa3_serial", "fi_fa2_serial", "fi_fa2_batched", "fi_pod", "hopper"]
    assert (ours[["fa3_serial", "fa3_streams", "fa3_varlen", "ours"]].min(axis=1) > hopper_roofs.bound(ours)).all()
    assert (sweep[ways].min(axis=1) > hopper_roofs.bound(sweep)).all()
    near = hopper_roofs.near_bound(ours, "ours")
    assert near < hopper_sweep.near_larger(ours), "the longer of FlashAttention-3's parts can be beaten"


def test_the_trace_shows_an_sm_that_ends_when_most_do():
    df = hopper_trace.table()
    ends = df.groupby(["way", "side", "sm"]).end_us.max()
    for (way, side), of in ends.groupby(level=["way", "side"]):
        assert abs(of[way, side, hopper_trace.typical(df)] - of.median()) < 10


def test_chapter_17d_says_that_fusing_is_cycles_times_the_clock():
    df, raw = hopper_peers.fusing_by_the_clock(), recorded("peers")
    clock = np.exp(np.log(raw.ours_mhz / raw.ours_serial_mhz).mean())
    assert df.loc["all eleven", "clock, fused over in turn"] == pytest.approx(clock)
    np.testing.assert_allclose(df["in cycles"] * df["clock, fused over in turn"], df["in time"])
    assert df.loc["all eleven", "in time"] == pytest.approx(hopper_peers.fusing("steady"))
    assert df.loc["even batches", "in time"] == pytest.approx(hopper_peers.fusing("steady", True))
    said = [round(x, 2) for x in (*df.loc["all eleven"], df.loc["even batches", "clock, fused over in turn"])]
    assert said == [1.48, 0.80, 1.19, 0.77] and df.loc["all eleven", "in cycles"] > hopper_peers.fusing("cold")
