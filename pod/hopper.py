"""The Hopper method: prefill and decode of a hybrid batch in one persistent kernel with Hopper's own instructions.

`make_plan` decides on the host what each SM computes (pod/schedule/hopper.py); `run` launches one kernel: no host sync,
no memset, no second launch, so that it can be captured in a CUDA graph, for as long as no length changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pod import kernels
from pod.batch import HybridBatch
from pod.schedule import hopper as schedule
from pod.workplan import MOST, Lists, WorkPlan, results

PREFILL_FLOPS = 700e12  # FLOP/s that the prefill side reaches alone on an H200 (measured)
DECODE_BYTES = 4.25e12  # bytes/s of KV that the decode side reads alone (measured)
# Rows of a trace, per SM. Where the plan gives prefill the wide tile, the last is a third warpgroup of prefill.
ROLES = ("prefill producer", "decode producer", "prefill 0", "prefill 1", "decode")


def _fake(kind, q, k, v, table, lists, counters, partials, shape, scale, causal, yields, lse, trace):
    import torch

    ctas = shape[5] if trace else 0
    sums = q.new_empty((q.shape[0] if lse else 0, q.shape[1]), dtype=torch.float32)
    return q.new_empty(q.shape), sums, q.new_empty((ctas, len(ROLES), 2), dtype=torch.int64)


HOPPER = kernels.Family(
    "hopper", bindings="sm90/bindings90.cpp", kernels="sm90/hybrid.cu", fake=_fake, arch="90a"
)


def available(device="cuda") -> bool:
    """Whether this device can run the method: compute capability 9.0."""
    import torch

    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


def prefill_yields(batch: HybridBatch) -> bool:
    """Whether decode would end last and so deserves the tensor cores between two turns of prefill.

    The tensor cores serve waiting warps in turn. With two prefill warpgroups queueing, decode gets every third product;
    when they hand over only at the end of a turn, every second, at the price of 10 % of prefill's own rate.
    """
    prefill, decode = batch.prefill, batch.decode
    if not prefill or not decode:
        return False
    return prefill.flops / PREFILL_FLOPS < decode.kv_bytes / DECODE_BYTES


@dataclass
class Plan(WorkPlan):
    decode_weights: np.ndarray | None = None
    splits: int | None = None
    yields: bool = False

    def check_layout(self, q, k_cache, table) -> None:
        """Prefill's tensor map of small pages has no dimension left for heads that lie apart (grouped_map)."""
        if table is not None and table.stride(0) > MOST:
            raise ValueError(f"block_table: got a stride of {table.stride(0)} elements, allowed are up to {MOST}")
        b, step = self.batch, k_cache.stride(2)
        small = b.page_size is not None and b.page_size < schedule.PREFILL_TILE
        if b.prefill and small and b.head_dim > 64 and b.num_kv_heads > 1 and step != b.head_dim:
            raise ValueError(f"k_cache: got heads {step} elements apart, allowed for method 'hopper' with head_dim "
                             f"{b.head_dim} and pages under {schedule.PREFILL_TILE} are {b.head_dim}")  # fmt: skip

    def make(self, causal: bool) -> Lists:
        head_dim, rows = self.batch.head_dim, schedule.PREFILL_TILE
        if self.batch.decode:
            prefill = schedule.prefill_work(*self.prefill, head_dim, self.sms, causal, self.splits)
        else:
            rows, prefill = schedule.prefill_alone(self.prefill, head_dim, self.sms, causal, self.splits)
        decode = schedule.decode_work(*self.decode, self.sms, self.decode_weights)
        prefill_floats = prefill.slots * rows * 8 * (head_dim // 8 + 1)
        floats = prefill_floats + decode.slots * (128 * (head_dim // 16) + 16)
        counters = 4 + rows // 16 * prefill.groups + decode.groups  # queues, arrivals of prefill, arrivals of decode
        placed = self.place(prefill.work, decode.work, decode.chunks, counters=counters, floats=floats)
        chunks, pack_shift = len(decode.chunks) - 1, schedule.pack_shift(*self.heads)
        works = (len(prefill.work), len(decode.work))
        return Lists(*placed, [*works, chunks, prefill.groups, prefill_floats, self.sms, pack_shift, rows])


def build(_batch: HybridBatch, device) -> None:
    if not available(device):
        raise ValueError(f"device: got {str(device)!r}, the Hopper method needs a GPU of compute capability 9.0")
    kernels.operator(HOPPER, "", device)


def make_plan(batch: HybridBatch, device="cuda", splits: int | None = None, decode_weights=None, yields=None) -> Plan:
    """Plan one iteration. `splits`, `decode_weights` and `yields` override what the cost model would choose."""
    import torch

    device = torch.device(device)
    build(batch, device)  # in the first call it would spoil what is timed there
    yields = prefill_yields(batch) if yields is None else yields
    plan = Plan(batch, device, kernels.sm_count(device), decode_weights, splits, yields)
    plan.lists(batch.causal)
    return plan


def run(
    plan: Plan, q, k_cache, v_cache, block_table=None, softmax_scale=None, causal=True, return_lse=False, trace=False
):
    """Launch the kernel on the current stream. Returns out, then lse and the trace where asked for."""
    operator = kernels.operator(HOPPER, "", plan.device)
    options = (causal, plan.yields, return_lse, trace)
    out, lse, stamps = plan.launch(operator, q, k_cache, v_cache, block_table, softmax_scale, causal, *options)
    return results(out, (lse, return_lse), (stamps, trace))
