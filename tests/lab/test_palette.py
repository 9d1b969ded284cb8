"""The hues that stand side by side in a picture stay apart for whoever sees no green: deuteranopia, one man in a
hundred."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from pod.experiments.methods.shared import TONES
from pod.lab.show import style
from pod.lab.show.states import SHARES

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE, ALL = XYZ.sum(axis=1), np.eye(3)
APART = 15.0  # in CIELAB, where 2 can just be told side by side


def hues(*kinds: str) -> tuple[str, ...]:
    return tuple(style.KINDS[kind] for kind in kinds)


def linear(colour: str) -> np.ndarray:
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIELAB of a colour as it is seen."""
    xyz = XYZ @ np.clip(seen @ linear(colour), 0, 1) / WHITE
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str, seen=DEUTERANOPIA) -> float:
    return float(np.linalg.norm(lab(one, seen) - lab(other, seen)))


def nearest(colours) -> float:
    return min(distance(*pair, seen) for pair in combinations(colours, 2) for seen in (DEUTERANOPIA, ALL))


def test_the_simulation_knows_what_is_confused():
    assert distance("#ff0000", "#00ff00", ALL) > 150 and distance("#a0522d", "#556b2f") < APART
    assert distance("#ffffff", "#000000") == pytest.approx(100, abs=0.5)
    assert distance("#0000ff", "#ffff00") > 100


def test_prefill_and_decode_could_hardly_be_further_apart():
    assert nearest(hues("prefill", "decode")) > 100


BESIDE = (
    ("prefill", "decode", "hybrid", "host", "wait"),
    ("prefill", "decode", "linear", "wait"),
    ("prefill", "decode", "hybrid", "load"),
    ("prefill", "decode", "merge", "wait"),
    ("linear", "load", "hybrid"),
    ("linear", "merge", "load"),
)


@pytest.mark.parametrize("kinds", BESIDE)
def test_kinds_that_share_a_picture_stay_apart(kinds):
    assert nearest(hues(*kinds)) > APART


def test_neither_workers_nor_sms_have_a_hue_of_prefill_or_decode():
    for others in (style.WORKERS, style.SMS):
        assert nearest((style.PREFILL, style.DECODE, *others)) > APART


def test_sms_that_share_a_head_are_told_apart_at_once():
    assert nearest(SHARES) > 2 * APART and nearest((style.PREFILL, style.DECODE, *SHARES)) > APART


def test_what_is_wrong_stays_apart_from_what_is_right():
    assert nearest((style.ALARM, *hues("hybrid", "prefill", "decode"))) > APART


def test_what_counters_say_has_no_hue_of_prefill_or_decode():
    assert nearest((style.PREFILL, style.DECODE, *style.BUSY.values())) > APART


def test_the_ways_to_run_a_batch_stay_apart():
    assert nearest(set(TONES.values())) > APART


@pytest.mark.parametrize("tone", [*style.WORKERS, *style.SMS, *style.KINDS.values()])
def test_letters_on_a_colour_can_be_read(tone):
    light = sorted(np.dot(linear(c), XYZ[1]) + 0.05 for c in (tone, style.letters_on(tone)))
    assert light[1] / light[0] > 3.5
