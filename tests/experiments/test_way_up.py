"""How far a gain comes on its way to a user, and how much more load it is worth."""

import pandas as pd
import pytest

from pod.experiments.engine import engine_load, engine_pareto, engine_runs, engine_served, engine_windows, way_up
from pod.simulate.scenarios import POD

LOADS = [1.0, 1.2, 1.4]
FIRST = [0.5, 1.5, 4.0, 0.4, 0.6, 1.9]  # seconds
SERVERS = pd.DataFrame({"system": ["Sarathi"] * 3 + [POD] * 3, "qps": LOADS * 2, "ttft_p50": FIRST})


def test_the_same_wait_is_found_on_straight_lines():
    assert engine_load.shift(SERVERS, 1.5) == pytest.approx(100 * ((1.2 + 0.2 * 0.9 / 1.3) / 1.2 - 1))


@pytest.mark.parametrize("seconds", [0.45, 2.0])
def test_a_wait_that_one_of_the_curves_does_not_reach_is_refused(seconds):
    with pytest.raises(ValueError, match="^seconds: got .* allowed for Sarathi.* are 0.[45] to (1.9|4)$"):
        engine_load.shift(SERVERS, seconds)


def test_every_curve_of_the_chapter_reaches_the_wait_that_it_compares():
    for df in (engine_load.table(), engine_load.table(engine_load.CALM), engine_load.beside_our_halves()):
        assert 0 < engine_load.shift(df) < 100


def test_a_step_up_is_what_its_page_says():
    steps = way_up.table()
    gpu = engine_runs.table().set_index(["model", "attention"]).gpu_ms[way_up.MODEL]
    two, turn, once = gpu[list(engine_runs.WAYS.values())]
    row = steps.loc["an iteration's GPU time, real run"]
    assert row["over two calls"] == pytest.approx(two / once) and row["by overlap alone"] == pytest.approx(turn / once)
    assert (steps["over two calls"] > steps["by overlap alone"]).all() and (steps > 1).all(axis=None)


def test_fusing_is_asked_of_the_same_models_in_the_same_way():
    gains = way_up.fusing()
    assert gains.shape == (4, 3) and (gains > 0).all(axis=None)
    assert gains.iloc[0].tolist() == [19, 22, 20] and (gains.iloc[0] > gains.iloc[1:].max()).all()
    assert gains["Yi-6B"].iloc[3] == engine_windows.fused("yi-6b")


def test_the_faster_call_lies_between_and_is_blank_where_it_was_not_run():
    steps = way_up.by_base()
    run = steps.dropna()
    assert len(run) == 3 and (run["over the faster call"] < run["over two calls"]).all()
    most = len(way_up.table())
    assert steps[["over two calls", "over ours in turn"]][:most].to_numpy() == pytest.approx(way_up.table().to_numpy())


def test_what_a_real_server_s_users_felt_ends_the_way_up():
    steps, served = way_up.by_base(), way_up.served()
    assert steps[-len(served) :].dropna(axis=1).equals(served)
    of = engine_served.measured()
    sarathi, pod = (of[engine_served.Run(engine_served.ARXIV, s).name]["ttft_p50"] for s in ("Sarathi", POD))
    assert served["over the faster call"]["median wait, real server, arXiv"] == pytest.approx(sarathi / pod)


def test_overlap_has_a_share_of_what_is_gained_at_every_chunk():
    waits, gaps = engine_pareto.overlap("ttft_p50"), engine_pareto.overlap("tbt_p99")
    assert len(waits) == len(gaps) == len(engine_pareto.CHUNKS)
    assert 0 < waits.min() and waits.max() < 25 and 100 / 7 < gaps.min() and gaps.max() < 45


def test_a_real_iteration_is_the_gpu_s_time_and_little_beside_it():
    beside = (runs := engine_runs.table()).ms - runs.gpu_ms
    assert beside.between(1, 3).all()
    by_way = beside.groupby(runs.attention).agg(["min", "max"])
    two, turn, once = (by_way.loc[way] for way in engine_runs.WAYS.values())
    assert two["max"] < once["min"] and once["max"] < turn["min"]


def test_the_picture_of_fusing_has_a_bar_more_than_ways_to_ask():
    fused = way_up.fusing()
    panels = way_up.draw_fusing(fused).axes
    assert [ax.get_title() for ax in panels] == list(fused.columns)
    assert {len(ax.patches) for ax in panels} == {len(fused) + 1}
