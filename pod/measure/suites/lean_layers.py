"""One layer of a Phi-3-Medium-shaped model with random weights, operation by operation: figures 2 and 12."""

from __future__ import annotations

from functools import cache

from pod.batch import HybridBatch
from pod.measure import peers, timing
from pod.measure.suites import lean

DOC = "the operations of a Phi-3-Medium layer: linear ones by tokens, attention by context and by its kernel."
KEYS = ("operation", "phase", "tokens")
UNITS = lean.UNITS
ROUNDS, REPEATS = 3, 9
K = lean.K
Q_HEADS, KV_HEADS, HEAD_DIM, MODEL, HIDDEN = 40, 10, 128, 5120, 17920
LINEAR = {"qkv": ((Q_HEADS + 2 * KV_HEADS) * HEAD_DIM, MODEL), "o": (MODEL, MODEL), "gate_up": (2 * HIDDEN, MODEL),
          "down": (MODEL, HIDDEN)}  # fmt: skip
CHUNK = 8 * K  # rows of prefill in one linear operation: enough for full speed
WAYS = ("lean", "rule_256", "single")


def cases() -> list[dict]:
    rows = [(name, phase, n) for name in LINEAR for phase, n in (("prefill", CHUNK), ("decode", 1))]
    rows += [("attention", "prefill", n * K) for n in (1, 4, 16, 64)]
    rows += [("attention", "decode", n * K) for n in (1, 2, 4, 8, 16, 32, 64, 96, 144)]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


@cache
def _weights(name: str):
    import torch

    return torch.randn(LINEAR[name], device="cuda", dtype=torch.bfloat16) * 0.02


def measure(case: dict) -> dict:
    name, tokens = case["operation"], int(case["tokens"])
    if name in LINEAR:
        return _linear(name, tokens)
    prefill = case["phase"] == "prefill"
    batch = HybridBatch((tokens if prefill else 1,), (tokens,), Q_HEADS, KV_HEADS, HEAD_DIM)
    setting = peers.Setting(batch)
    if prefill:
        calls = {"ms": peers.fa3_prefill_exact(setting)}
    else:
        parts = lean.chosen_splits(batch) | {"lean": "stream-k"}
        calls = {"fa3": peers.fa3_decode(setting)} | {way: lean.lean(setting, parts[way]) for way in WAYS}
    return _columns(timing.shuffled(calls, ROUNDS, 2.0))


def _linear(name: str, tokens: int) -> dict:
    import torch

    weight = _weights(name)
    x = torch.randn(tokens, weight.shape[1], device="cuda", dtype=torch.bfloat16)
    return _columns(timing.shuffled({"ms": lambda: torch.nn.functional.linear(x, weight)}, ROUNDS, 2.0))


def _columns(times: dict) -> dict:
    return {column: value for name, time in times.items() for column, value in time.columns(name).items()}
