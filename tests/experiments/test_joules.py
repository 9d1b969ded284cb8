"""The pages of energy: their rows, what they assume of csrc/micro/energy.cu, and what they make of known numbers."""

import re

import pytest

from pod.data import ROOT
from pod.experiments.joules import joules, joules_prices
from pod.lab.measure import meter

SOURCE = (ROOT / "csrc" / "micro" / "energy.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [joules, joules_prices])
def test_suites_name_every_row_once(page):
    keys = [tuple(case.values()) for case in page.cases()]
    assert len(keys) == len(set(keys)) and all(tuple(case) == page.KEYS for case in page.cases())


def test_prices_count_what_the_source_does():
    number = lambda name: int(re.search(rf"\b{name} = (\d+)", SOURCE)[1])  # noqa: E731
    assert joules_prices.PANEL == number("kPanelRows") * number("kRowBytes")
    assert (joules_prices.THREADS, joules_prices.VALUES) == (number("kThreads"), number("kValues"))
    assert joules_prices.DEPTH == number("kDepth")
    assert [int(n) for n in re.findall(r"^POD_PRODUCT\((\d+),", SOURCE, re.MULTILINE)] == list(joules_prices.SHAPES)
    waits, ops = (re.search(rf"enum class {name} : int {{ (.*) }}", SOURCE)[1] for name in ("Wait", "Op"))
    assert waits == "test, try_, hinted, barrier, alone" and ops == "fma, exponential, packed"
    assert len(joules_prices.WAITS) == 5 and len(joules_prices.OPS) == 3


def test_a_rested_call_is_what_it_takes_over_the_rest():
    train = meter.Energy(4.0, 900.0, 890.0, 905.0, 225.0, 1980, 50)
    rest = meter.Energy(3.0, 400.0, 399.0, 401.0, 133.3, 1980, 50)
    assert joules._less(train, rest, "ours") == {
        "ours_ms": 1.0, "ours_mj": 500.0, "ours_rest_watts": 133.3, "ours_mhz": 1980}  # fmt: skip
