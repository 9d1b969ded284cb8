"""Who gets the tensor cores of an SM: waiting warpgroups are served in turn, one product each."""

from collections.abc import Mapping
from itertools import cycle

from pod.hardware import GPU

ROWS, DEPTH = 64, 16  # of every wgmma: 64 rows, 16 products a sum
SHARED_BYTES = 128  # that shared memory delivers in a cycle
KV_BYTES = ROWS * DEPTH * 2  # of K or V that one product of decode uses up, two bytes a number


def product_cycles(gpu: GPU, columns: int, shared_bytes: int) -> float:
    """Cycles of one product of 64 rows: the longer of its arithmetic and of reading its operands from shared memory."""
    per_cycle = gpu.tensor_flops / gpu.sms / gpu.clock_hz / 2
    return max(ROWS * columns * DEPTH / per_cycle, shared_bytes / SHARED_BYTES)


def prefill_product(gpu: GPU) -> float:
    """64 query rows against 128 keys, both operands from shared memory."""
    return product_cycles(gpu, 128, (ROWS + 128) * DEPTH * 2)


def decode_product(gpu: GPU) -> float:
    """64 tokens of K (or V) against 8 query heads: little arithmetic, and 2 KB to read from shared memory."""
    return product_cycles(gpu, 8, KV_BYTES)


def serve(waiting: Mapping[str, float], until: float) -> list[tuple[str, float, float]]:
    """(name, start, end) of each product up to `until` cycles. Whoever was served queues again at once, at the end."""
    now, served = 0.0, []
    for name in cycle(waiting):
        if now + waiting[name] > until:
            return served
        served.append((name, now, now + waiting[name]))
        now += waiting[name]


def shares(served, name: str) -> tuple[float, float]:
    """Products of `name` in a thousand cycles, and its share of the time, up to the end of its last product."""
    mine = [(start, end) for who, start, end in served if who == name]
    until = mine[-1][1]
    return 1000 * len(mine) / until, sum(end - start for start, end in mine) / until


def queue(gpu: GPU, prefill: int) -> dict[str, float]:
    """Decode and `prefill` warpgroups of prefill, all with a product to do."""
    return {f"prefill {i}": prefill_product(gpu) for i in range(prefill)} | {"decode": decode_product(gpu)}


def decode_bytes_per_s(gpu: GPU, prefill: int, clock_hz: float) -> float:
    """How fast decode could read KV, if DRAM kept up, beside so many queued warpgroups of prefill."""
    waiting = queue(gpu, prefill)
    served = serve(waiting, 100 * sum(waiting.values()))
    products, _ = shares(served, "decode")
    return products / 1000 * clock_hz * KV_BYTES * gpu.sms
