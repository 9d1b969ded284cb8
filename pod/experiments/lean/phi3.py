"""A Phi-3-Medium-shaped model, one request, from its measured operations: the time of prefill and of decode steps."""

from functools import cache

import numpy as np

from pod.data import read

LAYERS, RATIO = 40, 8  # prompt tokens an output token: P:D of the paper
LINEAR = ("qkv", "o", "gate_up", "down")
PROMPTS = tuple(1024 << n for n in range(8))


@cache
def _recorded():
    return read("lean-layers").set_index(["operation", "phase", "tokens"]).sort_index()


def linear(phase: str) -> dict[str, float]:
    """Milliseconds of the linear operations of a layer: a decode step, or one token of prefill at full speed."""
    df = _recorded()
    tokens = 1 if phase == "decode" else max(n for op, p, n in df.index if op == "qkv" and p == "prefill")
    return {name: df.ms[name, phase, tokens] / tokens for name in LINEAR}


def prefill_attention(prompt: int) -> float:
    """Milliseconds a layer, FlashAttention-3: as the square of the prompt between the measured lengths."""
    part = _recorded().loc["attention", "prefill"].ms
    known = min(prompt, max(part.index))
    return float(np.exp(np.interp(np.log(known), np.log(part.index), np.log(part)))) * (prompt / known) ** 2


def decode_attention(contexts, way: str):
    """Milliseconds a layer of one step at each context: straight between the measured ones."""
    part = _recorded().loc["attention", "decode"][way]
    return np.interp(contexts, part.index, part)


def phases(prompt: int, way: str) -> dict[str, float]:
    """Milliseconds of a whole answer: prefill, and the parts of all decode steps, with attention by `way`."""
    contexts = prompt + 1 + np.arange(prompt // RATIO)
    steps, once = len(contexts), linear("decode")
    prefill = prompt * sum(linear("prefill").values()) + prefill_attention(prompt)
    return {
        "prefill": LAYERS * prefill,
        "decode attention": LAYERS * float(decode_attention(contexts, way).sum()),
        "decode QKV and output": LAYERS * steps * (once["qkv"] + once["o"]),
        "decode FFN": LAYERS * steps * (once["gate_up"] + once["down"]),
    }
