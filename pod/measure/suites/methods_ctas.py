"""Figure 13: POD with two and with four CTAs an SM, over batch and context."""

from __future__ import annotations

from pod.batch import MODELS, HybridBatch
from pod.measure import peers
from pod.measure.suites import table_row

DOC = "POD with two and with four CTAs an SM, and as it chooses; whole prompts, Llama-3-8B on one GPU."
KEYS = ("context", "decodes")
UNITS = ("hybrid",)
ROUNDS, REPEATS = 5, 15
CONTEXTS, DECODES = (1024, 2048, 4096, 8192, 16384), (8, 16, 32, 64, 128)
WAYS = peers.HALVES | {name: peers.FAMILY[name] for name in ("serial", "pod")} | peers.CONFIGURATIONS


def cases() -> list[dict]:
    return [{"context": n, "decodes": batch} for n in CONTEXTS for batch in DECODES]


def measure(case: dict) -> dict:
    context = case["context"]
    batch = HybridBatch.of(context, context, case["decodes"], context, **MODELS["llama-3-8b"].heads(1))
    return table_row(peers.Setting(batch), WAYS, ROUNDS, ms=1.0)
