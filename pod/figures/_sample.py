"""What each half of a sample of Figure 11's batches takes on the paper's A100, by the GPU model."""

from __future__ import annotations

from random import Random

from pod.batch import HybridBatch

KEYS = ("batch",)
READS = ("gpusim-calibrate",)
MIXED = 240  # of the sweep's batches
HALVES = ("prefill", "decode")


def cases() -> list[dict]:
    from pod.figures._gpusim import text

    return [{"batch": text(batch)} for batch in mixed()]


def mixed() -> list[HybridBatch]:
    from pod.measure.suites.hopper_sweep import batch_of, cases

    return [batch_of(case) for case in Random(0).sample(cases(), MIXED)]


def measure(case: dict) -> dict[str, float]:
    from pod import gpusim
    from pod.figures._gpusim import batch_of
    from pod.hardware import A100

    batch = batch_of(case["batch"])
    return {half: 1e3 * gpusim.seconds(getattr(batch, half), A100, "serial", kernel="flash2") for half in HALVES}
