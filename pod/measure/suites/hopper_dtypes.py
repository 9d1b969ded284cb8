"""The fused kernel in fp16 and at head dimension 64, on the batches of hopper-peers, beside FlashAttention-3."""

from __future__ import annotations

from pod.batch import HybridBatch
from pod.measure import peers
from pod.measure.suites import hopper_peers, table_row

DOC = "the eleven hybrid batches in fp16 and at head dimension 64, ours beside FlashAttention-3."
KEYS = ("head_dim", "dtype", *hopper_peers.KEYS)
UNITS = ("hopper",)
ROUNDS, REPEATS = 5, 15
VARIANTS = ((128, "float16"), (64, "bfloat16"), (64, "float16"))


def cases() -> list[dict]:
    variants = [{"head_dim": head_dim, "dtype": dtype} for head_dim, dtype in VARIANTS]
    return [variant | case for variant in variants for case in hopper_peers.cases()]


def batch_of(case: dict) -> HybridBatch:
    sizes = (case["chunk"], case["context"], case["decodes"], case["decode_context"])
    return HybridBatch.of(*sizes, case["q_heads"], case["kv_heads"], case["head_dim"], dtype=case["dtype"])


def measure(case: dict) -> dict:
    makers = {"prefill": peers.fa3_prefill, "prefill_exact": peers.fa3_prefill_exact, "decode": peers.fa3_decode}
    makers |= {name: peers.PEERS[name] for name in ("fa3_serial", "fa3_streams", "fa3_varlen")} | {"ours": peers.ours}
    return table_row(peers.Setting(batch_of(case)), makers, ROUNDS)
