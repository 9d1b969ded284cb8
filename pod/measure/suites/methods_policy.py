"""Figure 14: which operation a CTA takes, by turns or in proportion, over the batch size."""

from __future__ import annotations

from functools import partial

from pod.batch import MODELS, HybridBatch
from pod.measure import peers
from pod.measure.suites import table_row
from pod.schedule.binding import POLICIES

DOC = "POD with each policy, at two and four CTAs an SM; a whole prompt of 8K, Yi-6B and Llama-3-8B on one GPU."
KEYS = ("model", "decodes")
UNITS = ("hybrid",)
ROUNDS, REPEATS = 5, 15
CONTEXT, DECODES, MODEL_KEYS = 8192, (32, 64, 96, 128, 192), ("yi-6b", "llama-3-8b")
WAYS = peers.HALVES | {"serial": peers.FAMILY["serial"]}
SIZES = {"": "auto", "_2": 2, "_4": 4}  # CTAs an SM, by the ending of a column's name
WAYS |= {
    policy + ending: partial(peers.family, method="pod", policy=policy, ctas_per_sm=size)
    for policy in POLICIES
    for ending, size in SIZES.items()
}


def cases() -> list[dict]:
    return [{"model": model, "decodes": batch} for model in MODEL_KEYS for batch in DECODES]


def measure(case: dict) -> dict:
    heads = MODELS[case["model"]].heads(1)
    batch = HybridBatch.of(CONTEXT, CONTEXT, case["decodes"], CONTEXT, **heads)
    return table_row(peers.Setting(batch), WAYS, ROUNDS, ms=1.0)
