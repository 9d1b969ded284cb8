"""Mixed reality: several chunks, ragged decodes, pages; against the uniform batch of the same work."""

from __future__ import annotations

from random import Random

from pod.batch import HybridBatch
from pod.measure import timing

DOC = "several chunks and ragged decodes in pages, beside one chunk and equal decodes of the same work."
KEYS = ("batch", "page")
UNITS = ("hopper",)
ROUNDS, REPEATS = 5, 15
K = 1024


def _ragged(seed: int, count: int, total: int) -> list[int]:
    """`count` lengths from 1K to 64K, log-uniform, scaled to `total` tokens."""
    draw = Random(seed)
    lengths = [K * 2 ** draw.uniform(0, 6) for _ in range(count)]
    return [max(K, round(x * total / sum(lengths))) for x in lengths]


BATCHES = {
    "uniform 32/8": ([2 * K], [8 * K], [4 * K] * 128, 32, 8),
    "ragged decodes 32/8": ([2 * K], [8 * K], _ragged(1, 64, 512 * K), 32, 8),
    "three chunks 32/8": ([700, 1000, 348], [8 * K + 300, 8 * K - 100, 8 * K], [4 * K] * 128, 32, 8),
    "three chunks, ragged 32/8": ([700, 1000, 348], [8 * K + 300, 8 * K - 100, 8 * K], _ragged(1, 64, 512 * K), 32, 8),
    "uniform 32/4": ([1 * K], [16 * K], [16 * K] * 64, 32, 4),
    "three chunks, ragged 32/4": ([400, 200, 424], [16 * K - 77, 16 * K, 16 * K + 60], _ragged(2, 64, 1024 * K), 32, 4),
}


def cases() -> list[dict]:
    return [{"batch": name, "page": page} for name in BATCHES for page in (0, 16, 64, 256)]


def measure(case: dict) -> dict:
    """The batch, and in the same rounds the uniform one of its heads: alone they would meet different clocks."""
    batch, uniform = batch_of(case["batch"], case["page"]), batch_of(f"uniform {case['batch'].split()[-1]}", 0)
    times = timing.shuffled({"ours": _call(batch), "uniform": _call(uniform)}, ROUNDS, 4.0)
    row = {"flops": batch.prefill.flops, "kv_bytes": batch.decode.kv_bytes}
    for name, time in times.items():
        row |= time.columns(name)
    return row


def batch_of(name: str, page: int) -> HybridBatch:
    chunks, contexts, decodes, q_heads, kv_heads = BATCHES[name]
    q_lens, kv_lens = (*chunks, *[1] * len(decodes)), (*contexts, *decodes)
    return HybridBatch(q_lens, kv_lens, q_heads, kv_heads, 128, page_size=page or None)


def _call(batch: HybridBatch):
    from pod import hopper

    plan, tensors = hopper.make_plan(batch), batch.tensors(device="cuda")
    return lambda: hopper.run(plan, *tensors)
