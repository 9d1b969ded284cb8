"""Attention of hybrid batches by one call of FlashAttention-3: with the two calls of `operators`, the faster of both.

Measured: FlashAttention-3 in one call for a chunk and the chats beside it, on the grid of our fused kernel.
"""

from itertools import product

from pod.experiments.engine import operators

RECORDING = "operators-one"
KEYS, UNITS, REPEATS, TIMER = operators.KEYS, ("model",), operators.REPEATS, operators.TIMER


def cases() -> list[dict]:
    """Model by model, what heats the GPU last."""
    ordered = []
    for model in operators.MODELS:
        mine = [operators._case(model, "attention_fa3-one", chunk=c, context=p, requests=n, decode_context=d)
                for c, p, n, d in product(*operators.FUSED)]  # fmt: skip
        ordered += sorted(mine, key=operators._heat)
    return ordered


def measure(case: dict) -> dict:
    return operators.measure(case)
