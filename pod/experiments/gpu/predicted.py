"""data/computed/gpusim.csv: what the GPU model predicts for all that chapter 10's figures ask."""

from functools import partial

from pod.experiments.gpu import gpu_a100, gpu_calibration, gpu_choices, gpu_chunks, gpu_gains, gpu_model, gpu_ranges
from pod.experiments.gpu.shared import KEYS, asked, batch_of
from pod.hardware import gpu
from pod.simulate import gpusim

COMPUTED = "gpusim"
READS = ("gpusim-calibrate", "gpusim-sample", "methods-sweep", "methods-chunks", "methods-ctas", "methods-policy",
         "methods-grid", "hopper-peers")  # fmt: skip


def cases() -> list[dict]:
    ask = (gpu_calibration.table, gpu_model.table, gpu_model.hopper, gpu_a100.table, gpu_a100.step_here,
           gpu_a100.gains_more, gpu_chunks.table, gpu_gains.table, gpu_choices.table, gpu_ranges.table,
           gpu_gains.recut, partial(gpu_a100.over_next_best_recut, gpu_a100.EVEN),
           partial(gpu_a100.over_next_best_recut, gpu_a100.ODD))  # fmt: skip
    with asked() as found:
        for figure in ask:
            figure()
    return [dict(zip(KEYS, case.key, strict=True)) for case in found]


def measure(case: dict) -> dict[str, float]:
    choice = dict(_pair(*pair.split("=")) for pair in case["choice"].split())
    time = gpusim.seconds(batch_of(case["batch"]), gpu(case["gpu"]), case["method"], kernel=case["kernel"], **choice)
    return {"ms": 1e3 * time}


def _pair(name: str, value: str) -> tuple[str, str | int]:
    return name, int(value) if value.isdigit() else value
