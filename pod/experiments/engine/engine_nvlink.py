"""What engine-replayed shows of code with prompts apart, if their keys and values travel over NVLink.

Every split of the GPUs is judged on every stretch; the first stretch chooses among them.
"""

from pod.experiments.engine.chosen import PROMISES, RATES, arriving, decisive, felt_in, following
from pod.experiments.engine.engine_disaggregated import NVLINK, SPLITS, setup
from pod.simulate.run import Run

COMPUTED = "engine-nvlink"
KEYS, READS = ("knob", "stretch", "qps"), ("operators", "engine-runs")
CODE = "azure-code"


def cases() -> list[dict]:
    return [{"knob": knob, "stretch": stretch} for knob in SPLITS for stretch in (0, *following(CODE))]


def measure(case: dict) -> list[dict]:
    """The rates that decide which promises are kept."""
    on = setup(NVLINK, case["knob"])
    return decisive(CODE, PROMISES, lambda qps: felt_in(Run(on, arriving(CODE, case["stretch"], qps))), RATES[CODE])
