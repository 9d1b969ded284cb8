"""The energy model: made-up prices come back, the roof is where power allows, and counts are those of a schedule."""

from dataclasses import replace

import numpy as np
import pytest

from pod.batch import HybridBatch
from pod.schedule import choose, decide
from pod.simulate import joules
from pod.simulate.joules import Prices, Spent, Work

EACH = Work(60.0, 20.0, 50.0, 0.4, 0.3, 0.9, 0.7)
LISTED = Prices(EACH, mhz=Work(1980, 1980, 1980, 1700, 1750, 1980, 1980), watts=120.0)
TRUE = replace(LISTED, each=EACH._replace(dram=72.0, wide=0.32, wide_registers=0.24), exponent=1.3)


def some_work(n: int) -> list[Work]:
    random = np.random.default_rng(0).uniform(0.1, 1, (n, len(Work._fields)))
    return [Work(*row * (1e-3, 5e-3, 1e-3, 0.5, 0.5, 0.02, 0.02)) for row in random]


def spent(work: Work, mhz: float, seconds: float = 1e-3, prices: Prices = TRUE) -> Spent:
    return Spent(work, seconds, prices.joules(work, mhz, seconds), mhz)


def test_three_numbers_are_learnt_from_a_few_kernels():
    found = joules.adjusted(LISTED, [spent(w, 1200 + 160 * i) for i, w in enumerate(some_work(5))])
    assert found.exponent == pytest.approx(1.3) and found.each == pytest.approx(TRUE.each, rel=1e-6)
    assert found.watts == LISTED.watts and found.mhz == LISTED.mhz


def test_what_was_learnt_holds_for_other_kernels():
    found = joules.adjusted(LISTED, [spent(w, 1200 + 90 * i) for i, w in enumerate(some_work(8))])
    other = Work(4e-3, 1e-3, 2e-4, 0.1, 0.1, 0.06, 0.0)
    assert found.joules(other, 1500, 2e-3) == pytest.approx(spent(other, 1500, 2e-3).joules)
    assert LISTED.joules(other, 1500, 2e-3) != pytest.approx(spent(other, 1500, 2e-3).joules, rel=0.02)


def test_dram_has_a_clock_of_its_own():
    slow, fast = (TRUE.parts(some_work(1)[0], mhz) for mhz in (990, 1980))
    assert slow.dram == fast.dram and slow.narrow / fast.narrow == pytest.approx(0.5**1.3)


def test_a_price_holds_at_the_clock_at_which_it_was_found():
    assert TRUE.parts(Work(wide=2.0), 1700).wide == pytest.approx(2 * 0.32)


def test_at_the_power_limit_energy_over_time_is_the_limit():
    work = some_work(1)[0]
    seconds = TRUE.least_seconds(work, 1400, 700.0)
    assert TRUE.joules(work, 1400, seconds) / seconds == pytest.approx(700.0)


def test_the_two_sides_add_where_power_is_the_limit():
    """The roof of both is the sum of the roofs of each, and not the larger one."""
    whole = HybridBatch.of(2048, 8192, 64, 4096, 32, 8)
    one, other = (TRUE.least_seconds(joules.of_batch(b, 132), 1400, 700.0) for b in (whole.prefill, whole.decode))
    both = TRUE.least_seconds(joules.of_batch(whole, 132), 1400, 700.0)
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


def test_the_work_is_that_of_the_mask_and_of_the_bytes_of_the_batch():
    batch = HybridBatch((512, 1), (1024, 4096), 8, 2, 128)
    masked, free = (joules.of_batch(replace(batch, causal=causal), 4) for causal in (True, False))
    assert free.scores > masked.scores
    halves = joules.of_batch(replace(batch, kv_dtype="float8_e4m3fn"), 4)
    assert halves.into_sms == masked.into_sms / 2 and halves.scores == masked.scores
