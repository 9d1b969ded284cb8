"""Each half of the sm_80 family alone: prefill beside torch's FlashAttention-2, decode beside a bare read of DRAM."""

from __future__ import annotations

from functools import partial

from pod.batch import HybridBatch
from pod.measure import peers
from pod.measure.suites import table_row
from pod.measure.suites.gpusim_calibrate import bare_read

DOC = "prefill alone and decode alone, ours beside torch's FlashAttention-2 and a bare read of as many bytes."
KEYS = ("side", "q_heads", "kv_heads", "sequences", "tokens")
UNITS = ("hybrid", "rates")
ROUNDS, REPEATS = 5, 15
K = 1024
PREFILLS = [(*heads, 1, tokens * K) for tokens in (2, 4, 8, 16) for heads in ((32, 32), (32, 8))]
DECODES = [(32, 4, 64, 16 * K), (32, 4, 66, 16 * K), (32, 4, 67, 16 * K), (16, 4, 80, 12 * K), (16, 16, 32, 8 * K),
           (32, 8, 128, 4 * K), (32, 8, 1, 128 * K)]  # fmt: skip


def read(s: peers.Setting):
    """As many bytes as the batch has in its caches, read and thrown away: what DRAM gives."""
    call = bare_read(s.batch.kv_bytes)

    def run():
        call()
        return None, None

    return run


ours = partial(peers.family, method="serial")
WAYS = {
    "prefill": {"ours": partial(ours, ctas_per_sm=2), "ours_4": partial(ours, ctas_per_sm=4), "fa2": peers.fa2_prefill},
    "decode": {"ours": partial(ours, ctas_per_sm=2), "ours_4": partial(ours, ctas_per_sm=4),
               "stream_k": partial(ours, decode_splits="stream-k"), "fa2": peers.fa2_decode, "read": read},
}  # fmt: skip


def cases() -> list[dict]:
    rows = [("prefill", *row) for row in PREFILLS] + [("decode", *row) for row in DECODES]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def batch_of(case: dict) -> HybridBatch:
    heads, tokens = (case["q_heads"], case["kv_heads"]), case["tokens"]
    if case["side"] == "prefill":
        return HybridBatch.of(tokens, tokens, 0, 1, *heads)
    return HybridBatch.of(0, 1, case["sequences"], tokens, *heads)


def measure(case: dict) -> dict:
    return table_row(peers.Setting(batch_of(case)), WAYS[case["side"]], ROUNDS, ms=4.0)
