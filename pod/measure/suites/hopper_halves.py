"""Each half of the Hopper kernel alone, beside FlashAttention-3: prefill by chunk and context, decode by batch."""

from __future__ import annotations

from random import Random

from pod.batch import HybridBatch
from pod.measure import peers
from pod.measure.suites import table_row

DOC = "prefill alone and decode alone, ours (contiguous, and in pages of 16, 64 and 256) beside FlashAttention-3."
KEYS = ("side", "batch", "q_heads", "kv_heads", "head_dim", "dtype")
UNITS = ("hopper", "lean")
ROUNDS, REPEATS = 5, 15
K = 1024
RAGGED = Random(1)

PREFILL = [
    (2 * K, 2 * K, 32, 8), (4 * K, 4 * K, 32, 8), (8 * K, 8 * K, 32, 8), (16 * K, 16 * K, 32, 8), (2 * K, 8 * K, 32, 8),
    (512, 16 * K, 16, 4), (1 * K, 16 * K, 16, 4), (2 * K, 16 * K, 16, 4), (512, 32 * K, 16, 4), (1 * K, 32 * K, 16, 4),
    (2 * K, 32 * K, 16, 4), (1 * K, 12 * K, 16, 4), (512, 16 * K, 32, 4), (2 * K, 16 * K, 32, 4),
    (2 * K, 8 * K, 16, 16),
]  # fmt: skip
DECODE = {
    "64 x 16K": ([16 * K] * 64, 32, 4), "66 x 16K": ([16 * K] * 66, 32, 4), "67 x 16K": ([16 * K] * 67, 32, 4),
    "80 x 12K": ([12 * K] * 80, 16, 4), "32 x 8K": ([8 * K] * 32, 16, 16), "128 x 4K": ([4 * K] * 128, 32, 8),
    "256 x 1K": ([1 * K] * 256, 32, 8), "16 x 2K": ([2 * K] * 16, 32, 8), "4 x 8K": ([8 * K] * 4, 32, 8),
    "1 x 4K": ([4 * K], 32, 8), "1 x 16K": ([16 * K], 32, 8), "1 x 64K": ([64 * K], 32, 8),
    "1 x 128K": ([128 * K], 32, 8),
    "64 ragged 1K to 64K": ([RAGGED.randint(1 * K, 64 * K) for _ in range(64)], 32, 4),
}  # fmt: skip
VARIANTS = [(128, "bfloat16"), (128, "float16"), (64, "bfloat16")]


def cases() -> list[dict]:
    rows = []
    for head_dim, dtype in VARIANTS:
        for chunk, context, q_heads, kv_heads in PREFILL:
            rows.append(("prefill", f"{chunk} @ {context}", q_heads, kv_heads, head_dim, dtype))
        for name, (_, q_heads, kv_heads) in DECODE.items():
            rows.append(("decode", name, q_heads, kv_heads, head_dim, dtype))
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    heads = (case["q_heads"], case["kv_heads"], case["head_dim"])
    if case["side"] == "prefill":
        chunk, context = (int(x) for x in case["batch"].split(" @ "))
        batch = HybridBatch((chunk,), (context,), *heads, dtype=case["dtype"])
        makers = {"fa3": peers.fa3_prefill, "fa3_exact": peers.fa3_prefill_exact}
    else:
        lens, _, _ = DECODE[case["batch"]]
        batch = HybridBatch((1,) * len(lens), tuple(lens), *heads, dtype=case["dtype"])
        makers = {"fa3": peers.fa3_decode, "auto": lambda s: peers.family(s, "auto")}
    makers |= {"fa3_page16": lambda s: peers.fa3_paged(s, 16), "ours": peers.ours}
    for page in (16, 64, 256):
        makers[f"ours_page{page}"] = lambda s, page=page: peers.ours_paged(s, page)
    return table_row(peers.Setting(batch), makers, ROUNDS, ms=4.0)
