"""The figures of chapter 09 on a recording that we make up and therefore know: what they select, count and divide."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pod import data
from pod.batch import MODELS
from pod.experiments.methods import methods_band, methods_fa2, methods_place, methods_tiles, methods_wins
from pod.experiments.pod import pod_01, pod_06, pod_11, pod_13, pod_14, pod_t3, pod_t7
from pod.hardware import H200
from pod.lab import claims, registry
from pod.lab.measure import ncu, peers, timing
from pod.lab.measure.run import _write
from pod.lab.show import style, verdicts, violins
from pod.schedule.binding import OPS, POLICIES
from pod.schedule.choose import seconds

ROWS = {"methods-sweep": 420}
FIGURES = (methods_band, methods_place, methods_tiles, methods_wins,
           pod_01, pod_06, pod_11, pod_13, pod_14, pod_t3, pod_t7)  # fmt: skip
HOLE = "fi_persistent"


def made_up(way: str, batch) -> float:
    """Milliseconds that depend on the batch in a known way: each method leaves its own share of the smaller part."""
    prefill, decode = (1e3 * seconds + 0.01 for seconds in seconds(batch, H200, H200.sms, 2))
    waves = np.ceil(len(batch.decode.q_lens) * batch.num_kv_heads / 264) if batch.decode else 0
    fa2_decode = decode * (1 + 0.25 * (waves > 1))
    left = {"serial": 1, "streams": 0.9, "cta": 0.8, "warp": 0.6, "pod": 0.3, "pod_2": 0.2, "pod_4": 0.4}
    alone = {"prefill": prefill, "decode": decode, "hopper": 0.5 * prefill}
    alone |= {"fa2_prefill": prefill, "fa2_decode": fa2_decode}
    if way in alone:
        return alone[way]
    if way in left:
        return max(prefill, decode) + left[way] * min(prefill, decode)
    speed = 0.5 if "fa3" in way else 1.1
    return speed * prefill + fa2_decode


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All suites of the chapter, run without a GPU on made-up times."""
    home = tmp_path_factory.mktemp("recorded")
    (home / "h200").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "Setting", lambda batch: SimpleNamespace(batch=batch, q=SimpleNamespace(device="cuda")))
        patch.setattr(peers, "ready", _ready)
        patch.setattr(
            timing, "shuffled", lambda calls, *_, **__: {way: _time(made_up(way, b)) for way, b in calls.items()}
        )
        patch.setattr(pod_01, "gpu_of", lambda device: H200)
        patch.setattr(ncu, "profile", lambda suite: [_counters(case) for case in pod_01.cases()])
        pod_01._counters.cache_clear()
        for name in registry.measured():
            if name.startswith("methods-"):
                suite = registry.maker(name)
                if name == "methods-splits":
                    patch.setattr(suite, "_parts", lambda batch, rule: {"none": 1, "vanilla": 4, "limited": 2}[rule])
                rows = suite.cases()[: ROWS.get(name)]
                _write(home / "h200" / f"{name}.csv", [case | suite.measure(case) for case in rows])
        pod_01._counters.cache_clear()
    return home


def _ready(setting, makers):
    calls = {way: setting.batch for way in makers if way != HOLE}
    return calls, {HOLE: "RuntimeError: too long; really"} if HOLE in makers else {}


def _time(ms: float):
    return timing.Time(ms, 0.99 * ms, 1.02 * ms)


def _counters(case):
    rows = {"ours": 12, "ours_64": 35, "ours_128": 60, "fa2": 70, "fa3": 20}
    busy = {"prefill": (70, 3), "decode": (15, 85), "tile": (rows.get(case["way"]), 80)}
    busy["hybrid"] = (60, 60) if case["way"] == "pod" else (40, 30)
    return dict(zip(("us", "compute", "dram", "tensor"), (100.0, *busy[case["panel"]], 10), strict=True))


@pytest.fixture(autouse=True)
def made_up_recordings(folder, monkeypatch):
    monkeypatch.setattr(data, "RECORDED", folder)


@pytest.mark.parametrize("module", FIGURES, ids=lambda m: m.__name__)
def test_figure_draws_its_table(module):
    df = module.table()
    assert len(df) and module.draw(df).get_axes()


# ---------------------------------------------------------------- Figure 11


def test_sweep_filters_by_the_smaller_part_and_keeps_the_fair_sample():
    df = pod_11.table()
    some = pod_11.filtered(df)
    small = np.minimum(df.prefill, df.decode) / (df.prefill + df.decode)
    assert list(some.index) == list(df.index[small >= 0.2]) and 0 < len(some) < len(df)
    assert len(pod_11.even(df)) == 300


def test_gains_are_over_our_serial_and_never_an_oracle():
    df = pod_11.filtered(pod_11.table())
    want = 100 * (df.serial / df["pod"] - 1)
    assert pod_11.gains("pod").describe().equals(want.describe())
    assert (df.best == df.pod_2).all(), "two CTAs an SM were made the fastest"
    assert pod_11.chosen_over_best() == pytest.approx((df["pod"] / df.pod_2).mean())


def test_near_peak_counts_batches_within_a_tenth_of_the_longer_part():
    df = pod_11.filtered(pod_11.table())
    count = sum(t <= 1.1 * max(p, d) for t, p, d in zip(df["pod"], df.prefill, df.decode, strict=True))
    assert pod_11.pod_near_peak() == pytest.approx(100 * count / len(df))


def test_time_saved_is_the_place_in_the_band_of_all_batches_together():
    df = pd.DataFrame({"serial": [3.0, 6.0], "larger": [2.0, 3.0], "pod": [2.5, 3.5]})
    assert pod_11.time_saved(df) == pytest.approx(100 * (9 - 6) / (9 - 5))


def test_warp_leads_the_baselines_by_its_median():
    df = pod_11.filtered(pod_11.table())
    median = lambda way: (100 * (df.serial / df[way] - 1)).median()  # noqa: E731
    assert pod_11.warp_over_next() == pytest.approx(median("warp") - median("cta"))


def test_summary_has_a_row_a_way_and_counts_holes_out():
    df = pod_11.table()
    df.loc[df.index[:7], "fi_pod"] = np.nan
    out = pod_11.summary(df)
    assert len(out) == len(pod_11.NAMES) and out.loc["Flash-Infer's POD".replace("-", ""), "batches"] == len(df) - 7
    assert out.loc["POD, as it chooses", "mean %"] == round((100 * (df.serial / df["pod"] - 1)).mean(), 1)


def test_summaries_have_the_fair_sample_at_their_right():
    df = pod_11.table()
    out = pod_11.summaries(df)
    assert list(out.columns[-2:]) == ["mean %, no filter", "min %, no filter"]
    assert out["mean %"].equals(pod_11.summary(pod_11.filtered(df))["mean %"])
    assert out["min %, no filter"].tolist() == pod_11.summary(pod_11.even(df))["min %"].tolist()


def test_every_base_has_the_same_times_of_pod(monkeypatch):
    sweep = pod_11.table()
    some, fair = pod_11.filtered(sweep), pod_11.even(sweep)
    other = sweep[pod_11.BATCH].assign(fa3_varlen=1.2 * sweep["pod"], fa3_whole=1.1 * sweep["pod"])
    monkeypatch.setattr(pod_11.hopper_sweep, "table", lambda: other)
    monkeypatch.setattr(methods_fa2.hopper_dry, "rates", lambda side: (1.0, 2.0))
    monkeypatch.setattr(methods_fa2, "swept", lambda: pd.DataFrame({"serial_64": [3.0, 1.0], "pod": [2.0, 2.0]}))
    out = methods_fa2.bases(some, fair)
    assert out["mean %"].is_monotonic_increasing
    want = 100 * (some.serial / some["pod"] - 1)
    serial = out.loc["our two kernels in turn"]
    assert serial.to_list()[:3] == [round(x, 1) for x in (want.mean(), want.max(), want.min())]
    assert serial.batches == len(some)
    assert float(serial["mean %, no filter"]) == pytest.approx((100 * (fair.serial / fair["pod"] - 1)).mean(), abs=0.05)
    for cut, gain in (("", 20), (", faster cut", 10)):
        one = out.loc[f"FlashAttention-3, one call{cut}"]
        assert (one["mean %"], one["ahead on, %"], one["mean %, no filter"]) == (gain, 100, f"{gain}.0")
    fastest = 100 * ((some.prefill + some.kv_bytes / 2e9) / some["pod"] - 1)
    assert out.loc["our prefill and the fastest decode", "mean %"] == round(fastest.mean(), 1)
    assert out.loc["FlashAttention-2 with the paper's tile"].to_list() == [0, 50, -50, 50, 2, ""]
    ax = methods_fa2.draw_bases(out).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(out.index)
    assert list(ax.lines[len(out)].get_xdata()) == list(out["mean %"]), "a dot a base"
    words = [text.get_text() for text in ax.texts]
    assert words.count("2 batches") == 1 and words.count("100 %") == (out["ahead on, %"] == 100).sum()


def test_one_call_of_fa3_stands_beside_its_own_batch(monkeypatch):
    some = pod_11.filtered(pod_11.table())
    cut = np.arange(len(some)) + 0.5
    other = some[pod_11.BATCH].assign(fa3_varlen=cut, fa3_whole=cut[::-1]).iloc[::-1]
    monkeypatch.setattr(pod_11.hopper_sweep, "table", lambda: other)
    both = pod_11.with_one_call(some)
    assert list(both.fa3_varlen) == list(cut) and list(both.serial) == list(some.serial)
    assert list(both.fa3_one) == list(np.minimum(cut, cut[::-1]))


def test_prefill_heavy_batches_decide_against_fa3():
    df = pod_11.table()
    long = df[df.prefill > 2 * df.decode]
    mean = np.exp(np.log(long["pod"] / long.fa3_serial).mean())
    assert len(long) and pod_11.under_fa3_when_prefill_is_long() == pytest.approx(mean)


# ---------------------------------------------------------------- Figure 6


def test_the_step_is_where_the_waves_are():
    assert pod_06.step_place() == pytest.approx(25, abs=2)
    assert pod_06.pod_flat() == pytest.approx(1, abs=0.02)
    assert pod_06.total_step_max() > 5


def test_next_best_is_the_best_of_all_others():
    df = pod_06.table()
    df = df[df.decodes.isin((66, 67))]
    others = df[["fa2_serial", "fa2_streams", "serial", "streams", "cta", "warp"]].min(axis=1)
    assert pod_06.over_next_best() == pytest.approx(100 * (others / df["pod"] - 1).max())
    assert pod_06.orderings() == 3


def test_rises_compare_the_same_chunk():
    df = pod_06.table()
    full, more = (df[df.decodes == n].set_index("chunk").fa2_serial for n in (66, 67))
    assert pod_06.rises(df).loc["FA2, two calls", "66 to 67"] == pytest.approx(100 * ((more / full).mean() - 1))


def test_the_paper_is_beside_ours_as_it_counts():
    """Its largest step beside our largest, not beside the mean of the bar; its best gain above our violin of POD."""
    points = {line.get_label(): line.get_xdata()[0] for line in pod_06.draw(pod_06.table()).axes[2].lines}
    assert points["paper's largest"] == 17 and points["largest"] == pytest.approx(pod_06.total_step_max())
    texts = pod_11.draw(pod_11.table()).axes[0].get_legend().get_texts()
    assert [t.get_text() for t in texts] == ["the paper, A100: halves of a CTA, median and worst; POD, mean and best"]


# ---------------------------------------------------------------- Figures 13 and 14, Table 7


def test_two_against_four_ctas():
    df = pod_13.table()
    assert (df[["two", "four"]].min(axis=1) == 1).all()
    cell = df[df.context == 16384]
    assert pod_13.four_over_two_long() == pytest.approx((cell.pod_4 / cell.pod_2).mean())


def test_policies():
    df = pod_14.table()
    np.testing.assert_allclose(df.gain, 100 * (df["50:50"] / df["integer ratio"] - 1))
    np.testing.assert_allclose(df.own_gain, 100 * (df["50:50"] / df.proportional - 1))
    assert pod_14.own_gain_max() == df.own_gain.max()


def test_the_papers_proportional_policy_is_the_one_by_counts():
    """50 CTAs of prefill and 100 of decode: one prefill, two decodes, and again (POD-Attention, section 5.4.2)."""
    dealt = POLICIES[pod_14.INTEGER]([1.0] * 50, [9.0] * 100, 4, 6)
    assert [OPS[op] for op in dealt] == ["prefill", "decode", "decode"] * 2
    labels = [text.get_text() for text in pod_14.draw(pod_14.table()).axes[0].get_legend().get_texts()]
    assert set(POLICIES) <= set(labels), "a bar goes by the name that chapters 07 and 09 and the code use"


def test_trend_is_one_when_the_gain_grows(monkeypatch):
    made = pd.DataFrame({"model": ["a"] * 3 + ["b"] * 3, "decodes": [1, 2, 3] * 2, "gain": [1, 2, 5, 3, 2, 1]})
    monkeypatch.setattr(pod_14, "table", lambda: made)
    assert pod_14.trend() == pytest.approx(0)
    monkeypatch.setattr(pod_14, "table", lambda: made.assign(gain=[1, 2, 5, 1, 3, 4]))
    assert pod_14.trend() == pytest.approx(1)


def test_splits_stand_beside_the_printed_ratios():
    df = pod_t7.table()
    row = df[(df.decodes == 64) & (df.chunk == 31)].iloc[0]
    assert (row.paper_vanilla, row.paper_limited) == (0.86, 0.73)
    assert pod_t7.at_31("limited_ratio") == pytest.approx(row.limited / row.serial)
    four = df[df.decodes == 64]
    saved = (four.serial - four.limited).sum() / (four.serial - four.vanilla).sum()
    assert pod_t7.saved_ratio() == pytest.approx(saved)


# ---------------------------------------------------------------- Figure 1, Table 3, who wins


def test_utilisation_is_read_where_there_are_counters(monkeypatch):
    assert set(pod_01.table().source) == {"counters"}
    assert pod_01.prefill_bandwidth() == 3 and pod_01.decode_compute() == 15 and pod_01.uses_both() == 2
    whole = pod_01.recorded("methods-counters")
    monkeypatch.setattr(pod_01, "recorded", lambda name: whole.drop(columns=["us", "compute", "dram", "tensor"]))
    df = pod_01.table()
    assert set(df.source) == {"counted"} and (df.compute == df.counted_compute).all()


def test_tiles_stand_beside_the_model():
    df = methods_tiles.table()
    assert (methods_tiles.compute_16(), methods_tiles.compute_128()) == (12, 70)
    assert df.model.between(5, 100).all() and set(df.requests) == {8, 16, 32} and set(df.rows) == {16, 64, 128}


def test_runtimes_are_those_of_table_1():
    df = pod_01.runtimes()
    assert list(df.batch.unique()) == ["C0", "C1", "C2"] and (df[df.way == "fa2_serial"].over_fa2 == 1).all()


def test_a_hole_keeps_its_reason_and_gets_no_number():
    df = pod_t3.table().set_index("method")
    hole = df.loc["FlashInfer persistent"]
    assert hole.batches == 0 and pd.isna(hole["speed-up over serial"])
    assert hole.holes == "RuntimeError: too long; really"
    assert df.loc["serial", "speed-up over serial"] == pytest.approx(1)
    assert df.loc["halves of a CTA", "paper"] == "Horizontally fused FA kernels with HFuse"
    texts = [text.get_text() for text in pod_t3.draw(pod_t3.table()).axes[0].texts]
    assert texts[0] == "1.00" and "no time" in texts and set(pod_t3.WHAT.values()) <= set(texts)


def test_a_way_that_some_batches_lack_says_on_how_many_it_ran():
    df = pod_t3.table()
    df.loc[1, ["batches", "speed-up over serial"]] = df.batches.max() - 1, 1.5
    texts = [text.get_text() for text in pod_t3.draw(df).axes[0].texts]
    assert f"1.50, on {df.batches.max() - 1} of {df.batches.max()}" in texts


def test_the_winner_is_the_least_time_and_the_margin_the_next():
    df, grid = methods_wins.table(), methods_wins.recorded("methods-grid")
    first = df[(df.field == "all ways")].iloc[5]
    times = grid.loc[5, methods_wins.FIELDS["all ways"]].astype(float).sort_values()
    assert first.winner == times.index[0] and first.margin == pytest.approx(100 * (times.iloc[1] / times.iloc[0] - 1))
    assert methods_wins.counts(df)["our five methods"].sum() == len(grid)
    titles = [ax.get_title() for ax in methods_wins.draw(df).get_axes()]
    assert titles == ["context 4K", "context 8K", "context 16K", "", "", ""]


def test_place_counts_every_batch_once_by_its_ctas():
    df = methods_place.table()
    assert methods_place.means(df).batches.sum() == len(df) == len(pod_11.filtered(pod_11.table()))
    row = df.iloc[0]
    assert (
        row.prefill_ctas >= -(-min(row.chunk, row.context - row.seen) // 128) * MODELS[row.model].num_q_heads // row.tp
    )
    low, high = methods_place.CLASSES[row.place]
    assert low < row.prefill_ctas <= high


def test_policies_are_compared_at_equal_ctas():
    times = {"50:50_4": 2.2, "proportional_4": 2.0, "integer ratio_4": 2.2, "50:50_2": 1.0, "proportional_2": 1.0}
    gains = pod_14.by_ctas(pod_14.table().assign(**times, **{"integer ratio_2": 0.8}))
    assert gains.T.drop_duplicates().to_numpy().tolist() == [[25, 0, 0, 10]]
    assert gains.index[0] == "2 CTAs an SM, integer ratio"


def test_band_places_every_method():
    df = methods_band.table()
    assert df[df.method == "POD"].place.to_numpy() == pytest.approx(0.7, abs=1e-3)
    assert df[df.method == "two streams"].place.to_numpy() == pytest.approx(0.1, abs=1e-3)


def test_violins_write_the_mean_above_each_shape():
    spreads = {"a": pd.Series([1.0, 2.0, 6.0]), "b": pd.Series([1.0, 1.0, 4.0])}
    ax = violins(style.axes(4, 3), spreads, ["red", "blue"], lambda values: values.mean())
    assert [t.get_text() for t in ax.texts] == ["3.00×", "2.00×"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b"]


# ---------------------------------------------------------------- the verdicts


@pytest.fixture
def three(monkeypatch):
    """A claim of the paper's that holds, one that does not, and one of our own that holds."""
    own = {"id": "c", "statement": "C", "measure": "of c, %", "kind": "number", "band": (0, 9), "figure": "pod-11"}
    theirs = own | {"paper": "pod.f06.hfuse"}
    made = [claims.Claim(**own), claims.Claim(**theirs | {"id": "b", "statement": "B"}),
            claims.Claim(**theirs | {"id": "a", "statement": "A", "figure": "pod-06"})]  # fmt: skip
    values = {"a": 10, "b": 1, "c": 2}
    monkeypatch.setattr(claims, "load", lambda: made)
    monkeypatch.setattr(claims, "judge", lambda c: claims.Result(c, values[c.id], f"over {c.id}", f"why {c.id}"))


def test_verdicts_stand_in_the_order_of_what_they_are_about_and_our_own_last(three):
    df = verdicts.judged({"pod-06": "Figure 6", "pod-11": "Figure 11"})
    assert df.about.tolist() == ["Figure 6", "Figure 11", verdicts.OWN]
    assert df.claim.tolist() == ["a: A", "b: B", "c: C"]
    assert verdicts.counted(df)["all"].to_dict() == {"Figure 6": 1, "Figure 11": 1, verdicts.OWN: 1, "all": 3}
    assert verdicts.counted(df).loc["all", [claims.FAILS, claims.HOLDS]].tolist() == [1, 2]


def test_the_failed_are_in_a_fold_and_all_in_another(three):
    df = verdicts.judged({"pod-06": "Figure 6", "pod-11": "Figure 11"})
    summary, _, head, _, *rows, _, _ = verdicts.failed(df).data.splitlines()
    assert summary == "<details><summary>Those that do not hold: 1</summary>"
    assert head == "| about | claim | paper | here | holds within |" and len(rows) == 1
    assert rows[0].startswith("| Figure 6 | a: A | ") and "| 10 % | 0 to 9 † |" in rows[0]
    whole = verdicts.grouped(df).data
    assert whole.startswith("<details><summary>All 3,") and all(f"over {x} | why {x} |" in whole for x in "abc")


def test_batches_that_claims_share_are_said_once_for_what_they_are_about(three, monkeypatch):
    monkeypatch.setattr(claims, "judge", lambda c: claims.Result(c, 1, f"measure {c.id}; such batches", ""))
    df = verdicts.judged({"pod-06": "Figure 6", "pod-11": "Figure 6"})
    text = verdicts.grouped(df).data
    theirs, own = text.split("**our own**")
    assert theirs.count("such batches") == 1 and "- (a) such batches.\n\n| verdict |" in theirs
    assert "| measure a (a) |" in theirs and "| measure b (a) |" in theirs
    assert "| measure c; such batches |" in own and "(a)" not in own


def test_before_looking_there_are_ranges_and_no_values(three):
    text = verdicts.before("pod-11", "B").data
    assert text.splitlines()[2:] == ["| degrades in later chunks | B | 0 to 9 † |"]
