"""All that a user of an H200 could pick, on eleven hybrid batches, with the energy that each takes."""

from __future__ import annotations

from pod.batch import HybridBatch
from pod.measure import peers, timing
from pod.measure.suites import table_row

DOC = "eleven hybrid batches, ours and its variants beside every peer, with the energy that a batch takes."
KEYS = ("q_heads", "kv_heads", "chunk", "context", "decodes", "decode_context")
UNITS = ("hopper",)
ROUNDS, REPEATS = 5, 15
K = 1024
BATCHES = [
    (16, 4, 1 * K, 12 * K, 80, 12 * K), (16, 4, 12 * K, 12 * K, 220, 12 * K), (16, 4, 16 * K, 16 * K, 250, 12 * K),
    (32, 4, 512, 16 * K, 66, 16 * K), (32, 4, 512, 16 * K, 67, 16 * K), (32, 4, 2 * K, 16 * K, 64, 16 * K),
    (32, 8, 2 * K, 8 * K, 128, 4 * K), (32, 8, 4 * K, 8 * K, 64, 8 * K), (32, 8, 2 * K, 32 * K, 64, 32 * K),
    (16, 16, 1 * K, 8 * K, 32, 8 * K), (32, 8, 1 * K, 4 * K, 200, 2 * K),
]  # fmt: skip


def cases() -> list[dict]:
    return [dict(zip(KEYS, row, strict=True)) for row in BATCHES]


def measure(case: dict) -> dict:
    heads = (case["q_heads"], case["kv_heads"])
    batch = HybridBatch.of(case["chunk"], case["context"], case["decodes"], case["decode_context"], *heads)
    setting = peers.Setting(batch)
    alone = {"prefill": peers.fa3_prefill, "prefill_exact": peers.fa3_prefill_exact, "decode": peers.fa3_decode}
    variants = {
        "ours": peers.ours,
        "ours_serial": peers.ours_serial,
        "ours_never_yields": lambda s: peers.ours(s, yields=False),
        "ours_always_yields": lambda s: peers.ours(s, yields=True),
    }
    row = table_row(setting, alone | peers.PEERS | variants, ROUNDS, ms=6.0)
    for name, make in (("fa3_serial", peers.fa3_serial), ("ours_serial", peers.ours_serial), ("ours", peers.ours)):
        spent = timing.energy(make(setting))
        row |= {f"{name}_steady_ms": round(spent.ms, 5), f"{name}_mj": round(spent.millijoules, 2),
                f"{name}_watts": round(spent.watts, 1), f"{name}_mhz": spent.sm_clock_mhz}  # fmt: skip
    return row
