"""What a run's arithmetic is, and which of its seconds are whose."""

import re

import pytest

from pod.data import read
from pod.experiments.engine import engine_stock
from pod.serving.shapes import shape


def test_prompts_are_as_long_as_those_of_the_recording():
    assert set(read("engine-stock").prompt_tokens) == {engine_stock.lengths().sum()}


def test_operations_are_two_for_each_weight_and_a_little_attention():
    done = engine_stock.operations()
    tokens = engine_stock.lengths().sum() + engine_stock.REQUESTS * (engine_stock.OUTPUT - 1)
    s = shape(engine_stock.MODEL)
    weights = s.parameters - 2 * s.vocab * s.hidden  # without what embeds and what predicts
    assert done["matrices"] == pytest.approx(2 * weights * tokens)
    assert sum(done.values()) == pytest.approx(3.10e15, rel=2e-3) and done["attention"] < 0.05 * done["matrices"]


def test_the_batches_are_as_many_as_in_the_runs():
    runs = engine_stock.table().query("system == 'ours'")
    for run in runs.itertuples():
        assert len(engine_stock.batches(run.budget)) == int(re.search(r"(\d+) iterations", run.how)[1])


def test_the_parts_are_a_whole_run():
    parts = engine_stock.parts()
    assert parts.drop(columns="measured").sum(axis=1).to_list() == pytest.approx(parts.measured.to_list())
    assert (parts["beside them"] > 0).all() and (parts["beside them"] < 0.1 * parts.measured).all()
