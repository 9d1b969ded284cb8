"""What the model of a GPU foretells as a gain, and how far off that was where it could be checked."""

import pytest

from pod.experiments.gpu import gpu_gains, gpu_model


def test_the_error_of_a_gain_is_that_of_two_times():
    df, gains = gpu_model.table(), gpu_model.gains()
    one = df[df.batch == 3].set_index("method")
    row = gains[gains.method == "pod"].loc[3]
    assert row.measured == pytest.approx(100 * (one.measured.serial / one.measured["pod"] - 1))
    assert row.off == pytest.approx(100 * (one.model.serial / one.model["pod"] - 1) - row.measured)
    off = gains[gains.method == "pod"].off.abs()
    assert (off <= gpu_model.gain_error()).mean() == pytest.approx(0.9, abs=0.01)


def test_the_sizes_of_a_gain_share_all_batches_and_their_errors():
    mine = gpu_model.gains().query("method == 'pod'")
    by = gpu_model.gain_error_by_size()
    assert by.batches.sum() == len(mine) == gpu_model.MOST
    assert (by["mean error"] * by.batches).sum() == pytest.approx(mine.off.abs().sum())
    assert by["largest error"].max() == pytest.approx(mine.off.abs().max())
    large = mine[mine.measured >= 40]
    assert by.loc["40 or more", "too high by"] == pytest.approx(large.off.mean())
    assert by.loc["40 or more", "mean error"] > by.loc["below 20", "mean error"]


def test_a_stricter_order_is_right_less_often():
    df = gpu_model.table()
    times = df[df.batch == 3].set_index("method")
    measured, model = (list(times[name].sort_values().index) for name in ("measured", "model"))
    assert gpu_model.ranked(df, 1)[3] == (measured == model)
    assert gpu_model.ranking(1) <= gpu_model.fastest() and gpu_model.ranking(1) <= gpu_model.ranking()


def test_a_window_takes_the_batches_between_its_ends():
    df = gpu_gains.table()
    windows = gpu_gains.by_window(((0, 100), (0.5, 2)))
    assert windows.loc["0.00 to 100.00", "A100"] == pytest.approx(df[df.gpu == "a100"].gain.mean())
    inside = df[(df.gpu == "h200") & (df.ratio >= 0.5) & (df.ratio <= 2)]
    assert windows.loc["0.50 to 2.00", "H200"] == pytest.approx(inside.gain.mean())


def test_uncut_tiles_of_prefill_gain_least_and_end_last():
    df = gpu_gains.cuts(0.6, 1)
    assert (df.ratio.between(0.6, 1)).all() and (df.ctas >= df.tiles).all()
    few = (df.tiles == 128) & (df.ctas == 128)
    assert few.sum() == 9 and df[few].gain.max() < df[~few].gain.min()
    assert (df[few].prefill > df[few].decode).all()


def test_an_a100_leads_around_equal_halves_when_tiles_are_cut_for_its_sms():
    df = gpu_gains.recut()
    assert df.rule.to_list() == pytest.approx(df.gain.to_list())
    by = gpu_gains.by_cut(((0.85, 1.6), (0.5, 2)))
    assert by.loc["all 60", ("best", "A100")] == pytest.approx(df[df.gpu == "a100"].best.mean())
    assert (by["best"].A100 > by["best"].H200).all() and (by["two parts"].A100 > by["two parts"].H200).all()
