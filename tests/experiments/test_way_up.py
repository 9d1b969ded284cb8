"""How far a gain comes on its way to a user, and how much more load it is worth."""

import pandas as pd
import pytest

from pod.experiments.engine import engine_load, engine_runs, way_up
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
    in_a_run = 1 / (1 - engine_runs.saved() / 100)
    assert steps["over two calls"]["an iteration, real run"] == pytest.approx(in_a_run)
    assert (steps["over two calls"] > steps["by overlap alone"]).all() and (steps > 1).all(axis=None)


def test_the_faster_call_lies_between_and_is_blank_where_it_was_not_run():
    steps = way_up.by_base()
    run = steps.dropna()
    assert len(run) == 3 and (run["over the faster call"] < run["over two calls"]).all()
    assert steps[["over two calls", "over ours in turn"]].to_numpy() == pytest.approx(way_up.table().to_numpy())
