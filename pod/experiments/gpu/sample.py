"""What each half of a sample of Figure 11's batches takes on the paper's A100, by the GPU model."""

from random import Random

from pod.batch import HybridBatch
from pod.experiments.gpu import shared
from pod.experiments.hopper import hopper_sweep
from pod.hardware import A100
from pod.simulate import gpusim

COMPUTED = "gpusim-sample"
KEYS = ("batch",)
READS = ("gpusim-calibrate",)
MIXED = 240  # of the sweep's batches
HALVES = ("prefill", "decode")


def cases() -> list[dict]:
    return [{"batch": shared.text(batch)} for batch in mixed()]


def mixed() -> list[HybridBatch]:
    return [hopper_sweep.batch_of(case) for case in Random(0).sample(hopper_sweep.cases(), MIXED)]


def measure(case: dict) -> dict[str, float]:
    batch = shared.batch_of(case["batch"])
    return {half: 1e3 * gpusim.seconds(getattr(batch, half), A100, "serial", kernel="flash2") for half in HALVES}
