"""The energy model: made-up prices come back, the roof is where power allows, and counts are those of a schedule."""

import numpy as np
import pytest

from pod.batch import HybridBatch
from pod.schedule import choose, decide
from pod.simulate import joules
from pod.simulate.joules import Prices, Spent, Work

TRUE = Prices(Work(60.0, 20.0, 5.0, 0.4, 0.3, 0.9, 0.7), watts=150.0)


def spent(work: Work, seconds: float, prices=TRUE) -> Spent:
    return Spent(work, seconds, prices.joules(work, seconds))


def some_work(n: int) -> list[Work]:
    return [Work(*row) for row in np.random.default_rng(0).uniform(0, 1e-3, (n, len(Work._fields)))]


def test_made_up_prices_come_back():
    found = joules.fitted([spent(w, 1e-3 * i) for i, w in enumerate(some_work(12), 1)], TRUE.watts)
    assert found.each == pytest.approx(TRUE.each, rel=1e-3) and found.watts == TRUE.watts


def test_no_price_is_negative():
    """What costs nothing, measured with an error of 2 %, earns nothing either, and the others keep their prices."""
    true, error = Prices(TRUE.each._replace(dram=0.0), TRUE.watts), np.random.default_rng(1).normal(1, 0.02, 40)
    seen = [spent(w, 1e-4, true) for w in some_work(40)]
    seen = [s._replace(joules=s.joules * e) for s, e in zip(seen, error, strict=True)]
    amounts = np.array([s.work for s in seen]) / np.array([[s.joules] for s in seen])
    free = np.linalg.lstsq(amounts, 1 - TRUE.watts * 1e-4 / np.array([s.joules for s in seen]), rcond=None)[0]
    found = joules.fitted(seen, true.watts)
    assert free.min() < 0.0 == min(found.each)
    assert found.each.into_sms == pytest.approx(TRUE.each.into_sms, rel=0.1)


def test_what_nobody_saw_has_no_price():
    found = joules.fitted([spent(Work(dram=n), n) for n in (1e-3, 2e-3)], TRUE.watts)
    assert found.each == pytest.approx(Work(dram=60.0))


def test_at_the_power_limit_energy_over_time_is_the_limit():
    work = some_work(1)[0]
    seconds = TRUE.least_seconds(work, 700.0)
    assert TRUE.joules(work, seconds) / seconds == pytest.approx(700.0) == TRUE.under(work, 700.0) / seconds


def test_the_two_sides_add_where_power_is_the_limit():
    """The roof of both is the sum of the roofs of each, and not the larger one."""
    whole = HybridBatch.of(2048, 8192, 64, 4096, 32, 8)
    one, other = (TRUE.least_seconds(joules.of_batch(b, 132), 700.0) for b in (whole.prefill, whole.decode))
    both = TRUE.least_seconds(joules.of_batch(whole, 132), 700.0)
    assert both == pytest.approx(one + other, rel=0.02) and both > 1.2 * max(one, other)


def test_counts_of_a_batch_by_hand():
    """One tile of 128 rows over 3 blocks of 128 keys on one head, and a decode of 5 tiles of 64 keys."""
    batch = HybridBatch((128, 1), (384, 320), 1, 1, 128)
    work = joules.of_schedule(decide.hopper(batch, 4, roles=choose.Roles(8, 1)))
    prefill, decode = 128 * 384, 8 * 320
    assert work.scores * 1e12 == pytest.approx(prefill + decode)
    assert work.wide * 1e12 == work.wide_registers * 1e12 == pytest.approx(2 * prefill * 128)
    assert work.narrow * 1e12 == pytest.approx(4 * decode * 128) and work.narrow_16 == 0
    assert work.into_sms * 1e12 == pytest.approx((384 + 320) * 128 * 2 * 2)
    assert work.dram * 1e12 == pytest.approx((2 * 129 + 2 * (384 + 320)) * 128 * 2)


def test_a_warpgroup_without_rows_computes_nothing():
    few, many = (joules.of_batch(HybridBatch((n,), (4096,), 1, 1, 128), 4) for n in (64, 128))
    assert few.wide == many.wide / 2 and few.into_sms == many.into_sms


def test_sixteen_rows_of_decode_are_other_products():
    batch = HybridBatch((1, 1), (4096, 4096), 16, 1, 128)
    work = joules.of_schedule(decide.hopper(batch, 4, roles=choose.Roles(16, 1)))
    assert work.narrow == 0 < work.narrow_16
