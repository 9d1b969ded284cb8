"""The attention methods that only the GPU model knows, as the serving simulator uses them."""

import csv
import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod.__main__ import main
from pod.hardware import A100, H200, TOY
from pod.serving.shapes import shape
from pod.simulate import attention_model
from pod.simulate.attention_model import AXES, GPUS, METHODS, measure, ratio
from pod.simulate.cost import AnalyticalCost, Work

HYBRID = Work(((512, 8192),), 64, 64 * 8192)


def cost(method, gpu=A100, tp=2):
    return AnalyticalCost(shape("llama-3-8b"), gpu, tp, attention=method)


def test_the_table_is_a_full_grid_of_plausible_ratios():
    with attention_model.TABLE.open() as file:
        rows = list(csv.DictReader(file))
    points = [(row["gpu"], *(int(row[axis]) for axis in AXES)) for row in rows]
    assert sorted(points) == sorted((gpu, *p) for gpu in GPUS for p in product(*AXES.values()))
    assert all(0.4 < float(row[m]) < 1.6 for row in rows for m in METHODS)


@pytest.mark.parametrize("gpu, place", [("a100", (64, 4096, 256, 8192)), ("h200", (128, 1024, 64, 2048))], ids=str)
def test_the_table_is_what_the_model_says(gpu, place):
    for method, now in measure(dict(zip(("gpu", *AXES), (gpu, *place), strict=True))).items():
        assert ratio(gpu, method, *place) == pytest.approx(now, abs=1e-4)


@given(st.sampled_from(GPUS), st.sampled_from(list(METHODS)), st.floats(1, 2000), st.floats(0, 90000),
       st.floats(1, 4000), st.floats(1, 90000))  # fmt: skip
def test_between_the_points_and_beyond_it_stays_within_the_table(gpu, method, tiles, before, lanes, context):
    assert 0.4 < ratio(gpu, method, tiles, before, lanes, context) < 1.6


def test_a_method_is_its_share_of_serial_time_and_nothing_without_both_parts():
    for method in METHODS:
        tiles, lanes = 4 * 16, 64 * 4
        share = ratio("a100", method, tiles, 8192, lanes, 8192)
        assert cost(method).attention(HYBRID) == pytest.approx(share * cost("serial").attention(HYBRID))
        for alone in (Work(HYBRID.chunks, 0, 0), Work((), 64, 64 * 8192)):
            assert cost(method).attention(alone) == cost("serial").attention(alone)


def test_the_heads_of_a_gpu_decide_not_the_model():
    """One GPU of two with Llama-3-8B has as many tiles and lanes as one of one with half the heads."""
    one, two = cost("hfuse", tp=1).modelled(Work(((256, 8192),), 32, 32 * 8192)), cost("hfuse", tp=2).modelled(HYBRID)
    assert one == pytest.approx(two)


def test_labels_say_that_a_model_spoke():
    assert cost("streams", H200, tp=1).label == "analytical H200 SXM, streams by the GPU model"


def test_other_gpus_are_refused():
    with pytest.raises(ValueError, match="gpu: got 'toy', allowed with attention streams are a100, h200"):
        cost("streams", TOY, tp=1)


def test_a_lookup_costs_microseconds():
    c = cost("cta")
    c.attention(HYBRID)
    begin = time.process_time()
    for i in range(2000):
        c.attention(Work(((512, 100 + i),), 64, 64 * (4096 + i)))
    assert time.process_time() - begin < 1.0


def test_on_the_command_line(capsys):
    assert main("simulate --tp 2 --attention streams hfuse cta --requests 40 --workload uniform".split()) == 0
    out = capsys.readouterr().out
    assert "streams by the GPU model" in out and all(name in out for name in METHODS)
