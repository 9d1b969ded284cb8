"""The sweeps of LeanAttention's figures 7, 8, 10 and 11 on an H200, every cut with the same tile code."""

from __future__ import annotations

from pod.batch import HybridBatch
from pod.measure import peers
from pod.measure.suites import lean

DOC = "decode over context, heads, batch and raggedness: stream-K, FlashDecoding's splits, the best split, the paper's."
KEYS = ("panel", "q_heads", "kv_heads", "head_dim", "batch", "context", "ratio")
UNITS = lean.UNITS
ROUNDS, REPEATS = 3, 9
K = lean.K


def cases() -> list[dict]:
    """Panels: 7 and 8 by what varies (a context, b heads, c batch), 10 by the ratio of average to longest, 11 by model.

    Figure 8 has the SMs of an H200; figure 7's shapes are those of an A100.
    """
    rows = [("7a", 32, 32, 64, 4, n * K, 1.0) for n in (1, 4, 16, 64, 128, 256, 512)]
    rows += [("7b", h, h, 64, 4, 256 * K, 1.0) for h in (8, 16, 24, 32, 40, 48, 64, 96)]
    rows += [("7c", 32, 32, 64, b, 64 * K, 1.0) for b in (1, 2, 4, 6, 8, 12, 16, 24)]
    rows += [("8a", 48, 48, 64, 6, n * K, 1.0) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    rows += [("8b", h, h, 64, 6, 64 * K, 1.0) for h in (8, 16, 24, 32, 40, 48, 56, 64, 96)]
    rows += [("8c", 48, 48, 64, b, 64 * K, 1.0) for b in (1, 2, 3, 4, 6, 8, 12, 16)]
    rows += [("10", 32, 32, 64, b, 64 * K, r) for b in (4, 8, 16) for r in (0.15, 0.3, 0.5, 0.75, 1.0) if r * b > 1.1]
    for heads in ((32, 32), (32, 8), (40, 10)):
        rows += [("11", *heads, 128, 1, n * K, 1.0) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def batch_of(case: dict, dtype: str | None = None) -> HybridBatch:
    q_heads, kv_heads, head_dim, requests, context = (int(case[key]) for key in KEYS[1:6])
    ratio = float(case["ratio"])
    lens = [context] * requests if ratio == 1 else lean.ragged(requests, context, ratio)
    dtype = dtype or ("float16" if head_dim == 64 else "bfloat16")  # bfloat16, because FlashInfer is there for it
    return HybridBatch((1,) * requests, tuple(lens), q_heads, kv_heads, head_dim, dtype=dtype)


def measure(case: dict) -> dict:
    batch = batch_of(case)
    others = {"fa3": peers.fa3_decode} | ({"flashinfer": lean.flashinfer} if batch.head_dim == 128 else {})
    rounds = ROUNDS if batch.kv_bytes < 4e9 else 2 * ROUNDS  # long calls are repeated less often within a round
    row = lean.compare(peers.Setting(batch), others, rounds, ms=1.0, paper=batch.head_dim == 64)
    return {"batch_bytes": batch.kv_bytes} | row
