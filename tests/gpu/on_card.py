"""What the tests on a card share: batches for any method, and a clock that keeps a stream busy."""

import torch

import pod
from pod.attention import METHODS
from pod.batch import HybridBatch

DECODES = HybridBatch([1] * 9, [3000, 700, 1, 64, 127, 2048, 1999, 16, 5000], 16, 4, 128, page_size=16)
MIXED = HybridBatch([1, 300, 1, 1, 70, 1], [900, 1500, 64, 3000, 70, 1], 16, 4, 128, page_size=16)
# Some rows see no key: families that leave those alone have the plan write zeros there.
PADDED_DECODES = HybridBatch([1] * 9, [3000, 0, 1, 64, 0, 2048, 1999, 0, 5000], 16, 4, 128, page_size=16)
PADDED_MIXED = HybridBatch([1, 300, 1, 0, 70, 1], [0, 1500, 64, 0, 70, 0], 16, 4, 128, page_size=16)
BUSY = 20_000_000  # cycles, some 10 ms: longer than anything that follows takes


def batch_for(method: str) -> HybridBatch:
    return DECODES if method == "lean" else MIXED


def padded_for(method: str) -> HybridBatch:
    return PADDED_DECODES if method == "lean" else PADDED_MIXED


def asked():
    """Of every test that takes `method`."""
    return [(method, batch_for(method)) for method in METHODS]


def prepared(method: str, batch: HybridBatch | None = None):
    """A plan, the tensors of its batch on the card, and what comes out when nothing else is going on."""
    batch = batch or batch_for(method)
    q, k, v, table = batch.tensors(device="cuda")
    plan = pod.plan(batch, method=method)
    want = pod.hybrid_attention(q, k, v, plan, table)
    torch.cuda.synchronize()
    return plan, (q, k, v, table), want


def run(plan, tensors, **options):
    q, k, v, table = tensors
    return pod.hybrid_attention(q, k, v, plan, table, **options)


def spoil_free_memory() -> None:
    """What the allocator hands out next holds garbage, wherever it comes from."""
    rubbish = [torch.full((size,), 2**31 - 1, dtype=torch.int32, device="cuda") for size in (1 << 10, 1 << 16, 1 << 22)]
    torch.cuda.synchronize()
    del rubbish
