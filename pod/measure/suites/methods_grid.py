"""Who wins where: a grid over the chunk, the number of decodes and the context."""

from __future__ import annotations

from functools import partial

from pod.batch import MODELS, HybridBatch
from pod.measure import peers
from pod.measure.suites import methods_sweep, table_row

DOC = "every way over chunk, decodes and context, from few decodes to many; Llama-3-8B on one GPU."
KEYS = ("context", "chunk", "decodes")
UNITS = ("hybrid",)
ROUNDS, REPEATS = 3, 9
CONTEXTS, CHUNKS, DECODES = (4096, 8192, 16384), (256, 512, 1024, 2048, 4096), (4, 16, 32, 64, 128)
WAYS = {name: make for name, make in methods_sweep.WAYS.items() if name not in (*peers.CONFIGURATIONS, "fa2_streams")}
WAYS["ranges"] = partial(peers.family, method="pod", decode_splits="stream-k")  # decode in equal ranges, beside prefill


def cases() -> list[dict]:
    return [{"context": n, "chunk": chunk, "decodes": d} for n in CONTEXTS for chunk in CHUNKS for d in DECODES]


def measure(case: dict) -> dict:
    context = case["context"]
    batch = HybridBatch.of(case["chunk"], context, case["decodes"], context, **MODELS["llama-3-8b"].heads(1))
    return table_row(peers.Setting(batch), WAYS, ROUNDS, ms=1.0)
