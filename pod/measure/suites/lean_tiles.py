"""The size of a LeanTile: how many keys csrc/lean.cu never cuts apart, beside the Hopper kernel's decode half."""

from __future__ import annotations

from functools import partial

from pod.batch import HybridBatch
from pod.measure import peers
from pod.measure.suites import lean, table_row

DOC = "decode by stream-K with tiles of 64 to 1,024 keys, by warps (csrc/lean.cu), beside the Hopper kernel's decode."
KEYS = ("q_heads", "kv_heads", "head_dim", "batch", "context")
CSRC = lean.CSRC
ROUNDS, REPEATS = 5, 15
K = lean.K
TILES = (64, 128, 256, 512, 1024)


def cases() -> list[dict]:
    rows = [(32, 8, 128, 1, n * K) for n in (2, 4, 16, 64, 128)]
    rows += [(32, 32, 128, 1, 64 * K), (32, 32, 128, 1, 128 * K), (16, 16, 128, 32, 8 * K), (32, 8, 128, 128, 4 * K)]
    rows += [(32, 4, 128, b, 16 * K) for b in (64, 67)]
    rows += [(56, 56, 64, 1, 64 * K), (48, 48, 64, 6, 16 * K), (48, 48, 64, 6, 64 * K), (32, 32, 64, 4, 4 * K)]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    heads, requests = (case["q_heads"], case["kv_heads"], case["head_dim"]), case["batch"]
    dtype = "float16" if case["head_dim"] == 64 else "bfloat16"
    batch = HybridBatch((1,) * requests, (case["context"],) * requests, *heads, dtype=dtype)
    makers = {"fa3": peers.fa3_decode, "read": lean.read}
    makers |= {"hopper": partial(lean.lean, splits="stream-k", worker="hopper")}
    makers |= {f"tile_{n}": partial(lean.lean, worker="warp", block=n) for n in TILES}
    return table_row(peers.Setting(batch), makers, ROUNDS)
