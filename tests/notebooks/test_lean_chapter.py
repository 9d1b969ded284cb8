"""The figures of chapter 11 say what its recordings say, its model counts right, its suites name what they measure."""

import numpy as np
import pytest
from matplotlib import pyplot as plt

from pod import kernels
from pod.batch import HybridBatch
from pod.data import read
from pod.experiments.lean import (
    lean,
    lean_01,
    lean_03,
    lean_05,
    lean_06,
    lean_07,
    lean_08,
    lean_09,
    lean_11,
    lean_12,
    lean_shapes,
    lean_tiles,
    phi3,
    shared,
)
from pod.hardware import A100, H200
from pod.lab.measure import peers, timing
from pod.lab.show.line import draw_line, draw_rule, shares
from pod.schedule.decode import equal_cuts

emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)


# ---------------------------------------------------------------- by hand
def test_figure_1_takes_five_three_and_two_tiles():
    df = lean_01.table()
    assert list(lean_01.latency(df).values()) == [5, 3, 2]
    assert (df.end - df.begin).groupby(df.method).sum().tolist() == [10, 10, 10]


def test_ragged_ranges_are_equal_within_a_tile():
    df = lean_06.table()
    ends = df[df.cut == lean_06.LEAN].groupby("sm").stop.max()
    assert len(ends) == lean_06.SMS and np.ptp(ends) <= 1
    assert df[df.cut == lean_06.FIXED].stop.max() > ends.max()


def test_a_range_goes_to_the_first_free_worker():
    rows = shares([3, 1, 2], [3, 4, 6], workers=2)  # as a GPU starts three CTAs on two SMs
    assert rows == [(0, 0, 0, 3, 0), (1, 1, 0, 1, 0), (1, 2, 0, 2, 1)]
    ax = draw_line(plt.subplots()[1], [3, 2], equal_cuts(np.array([3, 2]), 2), "AB", 2)
    assert len(ax.patches) == 5


@pytest.mark.parametrize("units, rule, end", [(288, "today's", 1.83), (128, "2.5.6", 2.06), (128, "today's", 1.03)])
def test_a_rule_fills_its_slots_wave_after_wave(units, rule, end):
    ax = draw_rule(plt.subplots()[1], units, 256, 132, rule)
    waves = ax.patches
    assert f"{end:.2f}x" in ax.get_title()
    assert waves[-1].get_x() + waves[-1].get_width() == pytest.approx(end, abs=0.005)
    filled = sum(wave.get_width() * wave.get_height() for wave in waves)
    assert filled == pytest.approx(264), "equal ranges would fill all slots for a time of 1"


def test_a_comb_passes_through_the_heads_of_the_table():
    every, heads = lean_07.comb().set_index("heads"), lean_07.table().query("panel == 'heads'")
    assert every.loc[list(heads.heads), "2.5.6"].to_list() == heads["2.5.6"].to_list()
    assert (every.loc[54] == 1).all() and every.loc[55, "today"] == pytest.approx(1.64, abs=0.005)


# ---------------------------------------------------------------- the model of two CTAs an SM
@pytest.mark.parametrize("lengths, sms, end", [
    ([3.0], 1, 2.0),  # alone: 1.5 times as fast
    ([1.0, 1.0], 1, 1.0),  # two on an SM
    ([1.0, 1.0], 2, 2 / 3),  # one on each
    ([2.0, 1.0], 1, 1 + 1 / 1.5),  # the longer one is alone after the shorter has ended
    ([1.0] * 5, 2, 1 + 2 / 3),  # a second wave of one
])  # fmt: skip
def test_pace_depends_on_company(lengths, sms, end):
    assert lean_07.makespan(lengths, sms) == pytest.approx(end)


@pytest.mark.parametrize("ctas, sms", [(3, 4), (8, 4), (9, 4), (13, 4), (15, 4), (64, 3)])
def test_even_ctas_end_as_in_the_simulation(ctas, sms):
    assert lean_07._even_time(ctas, 5.0, sms) == pytest.approx(lean_07.makespan([5.0] * ctas, sms))


def test_the_best_split_gains_nothing_where_heads_fill_the_machine():
    assert lean_07.speedup(216, 1024, lean_07.BEST) == 1
    assert lean_07.speedup(128, 1024, lean_07.BEST) < 1.02 < lean_07.speedup(128, 1024, "2.5.6")


def test_model_is_near_the_recordings_of_an_h200():
    assert lean_07.model_error() < 0.07  # two recordings, each on a card of its own: 0.033 and 0.062
    assert lean_07.alone_measured() == pytest.approx(lean_07.ALONE, rel=0.07)


# ---------------------------------------------------------------- recordings
def test_speedups_are_ratios_of_recorded_times():
    raw = read("lean-sweep")
    row = raw[(raw.panel == "8a") & (raw.context == 64 << 10)].iloc[0]
    assert lean_08.gain_at_64k() == pytest.approx(row.paper_rule_256 / row.paper_lean)
    shape = raw[raw.panel == "7a"][["q_heads", "batch", "head_dim", "ratio"]].drop_duplicates()
    assert shape.to_numpy().tolist() == [[32, 4, 64, 1]] and lean_08.gains_of_128_units()[0] > 1.2
    assert lean_08.never_slower() == pytest.approx((raw.best_split / raw.lean).min())
    assert set(lean_08.table().panel) == {"8a", "8b", "8c"} and not lean_08.table().isna().any().any()


def test_chapter_11b_says_how_its_means_and_leasts_are_counted():
    raw, df = read("lean-sweep"), lean_08._multi_head()
    every = raw[(raw.head_dim == 64) & (raw.ratio == 1)]
    assert (len(df), len(every), lean_08.batches()) == (43, 51, 43)
    assert (every.paper_rule_256 / every.paper_lean).mean() == pytest.approx(lean_08.mean_gain(), abs=0.005)
    least = (raw.paper_rule_256 / raw.paper_lean).idxmin()
    assert lean_08.least_of_the_papers_tile() == pytest.approx(0.82, abs=0.005)
    for row in (raw.loc[least], raw.loc[(raw.best_split / raw.lean).idxmin()]):
        assert (row.batch, row.context, row.q_heads) == (4, 1024, 32)
    modelled = lean_07.table()
    fewest = modelled[(modelled.panel == "heads") & (modelled.heads == 48)]["2.5.6"].item()
    a100, h200 = (gpu.dram_bytes_per_s / gpu.sms for gpu in (A100, H200))
    assert fewest == pytest.approx(1.12, abs=0.005) and a100 == pytest.approx(h200 / 2, rel=0.05)


def test_a_lead_on_short_requests_is_about_a_plan():
    lag, saved = lean_shapes.lags(), lean_shapes.saved_ahead()
    short = lag[["1 x 4K", "1 x 8K", "1 x 16K"]]
    few, most = saved.quantile([0.1, 0.9])  # of long batches the noise is larger than a plan
    assert short.between(few, most).all() and abs(short.mean() - saved.median()) < 0.3
    assert lag[["1 x 32K", "1 x 64K", "1 x 128K"]].min() > most and len(saved) == 50
    assert "flashinfer_plain" not in read("lean"), "the picture has one of FlashInfer's two decodes"
    both = read("lean-sweep").query("panel == '8a' and context == 65536").iloc[0]
    assert both.flashinfer_plain == pytest.approx(1.19, abs=0.005) and both.flashinfer == pytest.approx(1.55, abs=0.005)


def test_flashinfer_is_the_faster_of_its_two_decodes():
    raw = read("lean-sweep")
    same = (raw.head_dim == 64) & (raw.ratio == 1)
    same &= ~raw.duplicated(["head_dim", "ratio", "q_heads", "kv_heads", "batch", "context"])
    faster = np.minimum(raw.flashinfer, raw.flashinfer_plain)
    assert lean_08.mean_gain("flashinfer") == pytest.approx((faster / raw.lean)[same].mean())
    assert (lean_11.table().FlashInfer <= 1.01 * (raw.flashinfer / raw.lean)[raw.panel == "11"].max()).all()
    long = (raw.panel == "7a") & (raw.context > 16 << 10)
    assert lean_08.least_gain("flashinfer", "7a", 16) == pytest.approx((faster / raw.lean)[long].min())
    alone = shared.with_faster_flashinfer(raw.drop(columns="flashinfer_plain"))
    assert (alone.flashinfer == raw.flashinfer).all()


def test_figure_11_shows_each_batch_and_no_gain_of_one_alone(monkeypatch):
    df = lean_11.table()
    assert df.batch.is_monotonic_increasing and set(df.batch) == set(lean_08.BATCHES)
    assert lean_11.gain(128) == df[df.context == 128 << 10]["the rule of 2.5.6"].max()
    raw = read("lean-sweep")
    monkeypatch.setattr(lean_11, "read", lambda name: raw[(raw.panel != "11") | (raw.batch == 1)])
    assert np.isnan(lean_11.gain(128))


def test_best_split_is_the_best_of_the_splits():
    raw = read("lean-sweep")
    for name in ("rule_256", "rule_now", "single"):
        assert (raw.best_split <= raw[name] + 1e-9).all()


def test_shapes_have_rates_below_the_data_sheet():
    df = lean_shapes.table()
    shares_of_peak = df[[c for c in df if c.endswith(", %")]]
    assert (shares_of_peak.max() < 100).all()
    assert len(df) == len(lean.cases())


def test_pages_and_single_requests_are_those_that_were_recorded():
    raw, pages = read("lean"), lean_shapes.in_pages()
    assert len(pages) == sum(c["head_dim"] == 128 and not c["page"] for c in lean.cases()) and (pages.cost > 0.9).all()
    assert lean_shapes.least_in_pages() == pytest.approx((raw.fa3_page16 / raw.auto_page16).min())
    singles = lean_shapes.singles()
    assert singles.batch.str.startswith("1 x").all() and len(singles) >= 3
    assert lean_shapes.least_of_small() <= singles.speedup.min()


def test_heads_side_by_side_are_read_no_slower():
    orders = lean_tiles.orders()
    assert len(orders) == (read("lean-tiles").kv_bytes > 1e9).sum()
    gain = orders["side by side"] / orders["head after head"]
    assert gain.min() > 0.98 and gain.mean() > 1.01


def test_several_gpus_share_the_heads():
    df = lean_09.table()
    assert set(df.panel) == set(lean_09.PANELS) and df.gpus.min() >= 2 and not df.isna().any().any()
    assert lean_09.least_gain() == df[df.panel == "9a"]["paper's tile over the rule of 2.5.6"].min()


def test_busy_share_counts_all_sms():
    df = lean_03.table()
    busy = lean_03.busy(df)
    assert busy.between(0, 100).all() and busy["single"] < 50 < busy["rule_256"] < busy["lean"]
    assert lean_03.busy_under_stream_k() == busy["lean"]


def test_every_cut_head_is_merged_once_by_its_host_or_its_last_part():
    df = lean_05.table()
    for run, part in df[df.parts > 1].groupby(["run", "head"]):
        assert part.merges.sum() == 1
        winner = part[part.merges == 1].iloc[0]
        assert winner.part == 0 if run[0] == "paper_host" else winner.end_us == part.end_us.max()


def test_each_head_of_the_trace_is_merged_by_one_cta():
    merging = lean_05.merging(lean_05.table())
    assert (merging["size"] == 56).all() and (merging["mean"] < merging["max"]).all()
    assert merging["mean"].paper_host > merging["mean"].paper_last  # a host waits as well


def test_an_answer_is_the_sum_of_its_steps():
    parts = phi3.phases(8192, "lean")
    step = sum(phi3.linear("decode").values())
    attention = [phi3.decode_attention(8193 + i, "lean") for i in range(1024)]
    total = 40 * (1024 * step + sum(attention))
    assert sum(parts.values()) - parts["prefill"] == pytest.approx(total)
    assert phi3.prefill_attention(128 << 10) == pytest.approx(4 * phi3.prefill_attention(64 << 10))
    df, raw = lean_12.table(), read("lean-served").set_index(["prompt", "way", "reading"]).seconds
    assert lean_12.served(1024) == raw[8192, "rule_256", 0] / raw[8192, "lean", 0]
    assert lean_12.served_uncut(2048) == raw[16384, "single", 0] / raw[16384, "lean", 0]
    assert df.served.notna().sum() == 3 + 3 + 2 + 1 and lean_12.missing_time().between(0, 15).all()
    assert (df.speedup > 0.9).all() and (lean_11.table().query("batch == 1")["no split"] > 1).all()


# ---------------------------------------------------------------- suites
def test_ratios_of_lengths_are_kept():
    for case in lean_08.cases():
        lens = lean_08.batch_of(case).kv_lens
        assert max(lens) == case["context"]
        assert np.mean(lens) / max(lens) == pytest.approx(case["ratio"], abs=0.12)
    with pytest.raises(ValueError, match="ratio: got 0.1"):
        lean.ragged(4, 1000, 0.1)


@emulated
def test_a_row_names_every_cut_and_keeps_the_best(monkeypatch):
    times = iter(range(1, 100))
    monkeypatch.setattr(timing, "shuffled", lambda calls, *_: {
        name: (call(), timing.Time(next(times) * 1.0, 0.5, 99.0))[1] for name, call in calls.items()})  # fmt: skip
    batch = HybridBatch((1,) * 3, (300, 64, 500), 2, 2, 64, dtype="float16")
    with kernels.machine(3):
        row = lean.compare(peers.Setting(batch, device="cpu"), {"read": lean.read}, 1, paper=True)
    cuts = {"lean", "auto", "single", "rule_256", "rule_now", "best_split"}
    paper = {"paper_lean", "paper_host", "paper_single", "paper_rule_256", "paper_rule_now"}
    assert {c for c in row if f"{c}_p10" in row} == cuts | paper | {"read"}
    assert row["holes"] == "" and row["best_split"] == min(row[c] for c in ("single", "rule_256", "best_split"))
    assert row["single_parts"] == 1


def test_a_tail_is_small_ranges_after_equal_ones():
    work = lean_tiles.with_tail(HybridBatch((1,) * 64, (16384,) * 64, 32, 4, 128)).decode
    sizes = np.add.reduceat(work.blocks(64), work.pieces[:-1])
    assert len(sizes) == 3 * 132 and sizes.sum() == 64 * 4 * 256
    assert np.ptp(sizes[:132]) <= 1 and sizes[:132].sum() / sizes.sum() == pytest.approx(1 - lean_tiles.TAIL, rel=0.01)


@emulated
def test_a_batch_in_pages_is_read_right():
    batch = HybridBatch((1,) * 3, (300, 64, 513), 4, 2, 64, dtype="float16", page_size=64)
    setting = lean.Paged(batch, device="cpu")
    calls, holes = peers.ready(setting, {"ours": lean.lean})
    assert holes == {} and list(calls) == ["ours"]
    _, _, ids, counts = setting.pages
    assert counts == [19, 4, 33] and len(set(ids.tolist())) == 56


@emulated
def test_a_batch_in_small_pages_in_random_order_is_read_right():
    setting = peers.Setting(HybridBatch((1,) * 3, (300, 64, 513), 4, 2, 64, dtype="float16"), device="cpu")
    calls, holes = peers.ready(setting, {"ours": lean.lean_in_pages})
    assert holes == {} and list(calls) == ["ours"]
    batch, (k, _), table = peers.in_pages(setting, 16)
    assert batch.page_size == 16 and k.shape[:2] == (table.numel(), 16)
    assert sorted(table.flatten().tolist()) == list(range(table.numel()))


@emulated
@pytest.mark.timeout(120)
def test_two_processes_share_the_heads_and_answer_with_the_slowest():
    rows = [dict(zip(lean_09.KEYS, ("9a", 2, 4, 1, 100), strict=True))]
    (row,) = lean_09.run(rows, 2, "cpu", repeats=3, ways=("lean", "fa3"))
    assert row["kv_bytes_per_gpu"] == 2 * 100 * 2 * 64 * 2
    assert row["lean_p10"] <= row["lean"] <= row["lean_p90"] and "fa3" not in row
