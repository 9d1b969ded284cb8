"""The size of a LeanTile: how many keys csrc/lean.cu never cuts apart, beside the Hopper kernel's decode half. What it
brings to read neighbouring heads side by side, and whole parts where they fill the warps. And whether a tail of small
ranges, for whoever is free first, ends sooner than equal ranges."""

from __future__ import annotations

from functools import partial
from math import gcd

from pod import lean as method
from pod.batch import HybridBatch
from pod.measure import peers
from pod.measure.suites import lean, table_row
from pod.schedule import hopper as schedule

DOC = "decode by stream-K with tiles of 64 to 1,024 keys, by warps (csrc/lean.cu), beside the Hopper kernel's decode."
KEYS = ("q_heads", "kv_heads", "head_dim", "batch", "context")
UNITS = lean.UNITS
ROUNDS, REPEATS = 5, 15
K = lean.K
TILES = (64, 128, 256, 512, 1024)
TAIL, ROUNDS_OF_TAIL = 0.12, 2  # share of the tiles that are left for small ranges, and how many of them an SM may take


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
    makers |= {"hopper": partial(lean.lean, splits="stream-k", worker="hopper"), "tail": tail}
    makers |= {f"tile_{n}": partial(lean.lean, splits="stream-k", worker="warp", block=n) for n in TILES}
    makers |= {"head_by_head": partial(lean.lean, splits="stream-k", worker="warp", alike=1),
               "warps": partial(lean.lean, worker="warp")}  # fmt: skip
    return table_row(peers.Setting(batch), makers, ROUNDS)


class TailPlan(method.HopperPlan):
    """One equal range for each SM, and then small ones, which the SMs draw as they become free."""

    def decode_list(self) -> schedule.WorkList:
        lanes, workers = method._passes(*self.heads), self.sms * (1 + ROUNDS_OF_TAIL)
        ranges = self.sms // gcd(lanes & -lanes, workers)
        weights = [1 - TAIL] * ranges + [TAIL / ROUNDS_OF_TAIL] * ranges * ROUNDS_OF_TAIL
        return schedule.decode_work(*self.decode, workers, weights, least=1)


def tail(s):
    plan = TailPlan(s.batch, s.k.device, lean.SMS)
    plan.lists(True)
    return lambda: (None, method.run(plan, s.q, s.k, s.v))
