"""The Hopper method: prefill and decode of a hybrid batch in one persistent kernel with Hopper's own instructions.

One launch: no host sync, no memset, no second kernel, so that it can be captured in a CUDA graph, for as long as no
length changes. Its sources are csrc/sm90.
"""

from __future__ import annotations

from functools import partial

from pod.batch import HybridBatch
from pod.kernels import build
from pod.kernels.build import Family
from pod.kernels.launch import Header, Kernel, Layout, Plan, fake
from pod.schedule import decide
from pod.schedule.work import PERSISTENT, Schedule, WorkList

# A trace has a row a CTA, and of each role when it began and ended. Where the plan gives prefill the wide tile, the
# last is a third warpgroup of prefill.
ROLES = ("prefill producer", "decode producer", "prefill 0", "prefill 1", "decode")

HOPPER = Family(
    "hopper", bindings="bindings.cpp", kernels="sm90/hybrid.cu", fake=fake(2 * len(ROLES)), arch="90a",
    kinds={"": (f"POD_OPERATOR(hopper, {2 * len(ROLES)}, 64)", "")},
)  # fmt: skip


def available(device="cuda") -> bool:
    """Whether this device can run the method: compute capability 9.0."""
    import torch

    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


# ---------------------------------------------------------------- a schedule on the device
def records(work: WorkList, schedule: Schedule, side: str) -> tuple:
    """The twelve columns of `Work` (csrc/sm90/common.cuh), which counts keys in blocks, and queries of decode in rows
    of q, token by token and head by head."""
    batch, rows = schedule.batch, work.tokens * work.heads
    if side == "prefill":
        keys, queries, pos = schedule.shape.prefill_keys, (work.token, rows, work.head), work.pos
    else:
        keys, pos = schedule.shape.decode_keys, work.head - work.kv_head * batch.group
        queries = (work.token * batch.num_q_heads + work.head, rows, work.kv_head)
    blocks = (work.begin // keys, -(-work.end // keys))
    return (*queries, work.seq, pos, work.kv_len, *blocks, work.part, work.parts, work.partial, work.group)


def lay_out(s: Schedule) -> Layout:
    """Counters: queues, arrivals of prefill, arrivals of decode."""
    prefill, decode, rows, head_dim = s.prefill, s.decode, s.shape.prefill_rows, s.batch.head_dim
    pack = int(prefill.heads[0]) if len(prefill) else 1
    header = Header(
        method=decide.METHODS.index("cta"),  # one launch
        sms=s.sms, causal=int(s.causal), yields=int(s.yields), prefill_works=len(prefill),
        decode_works=len(decode), pieces=len(decode.pieces) - 1, prefill_groups=prefill.groups,
        decode_groups=decode.groups, prefill_slots=prefill.partials, decode_slots=decode.partials,
        prefill_rows=rows, pack_shift=pack.bit_length() - 1, trace_rows=s.sms,
    )  # fmt: skip
    counters = 4 + rows // 16 * prefill.groups + decode.groups
    floats = prefill.partials * rows * 8 * (head_dim // 8 + 1) + decode.partials * (128 * (head_dim // 16) + 16)
    lists = (records(prefill, s, "prefill"), records(decode, s, "decode"), decode.pieces)
    return Layout(header, lists, counters, floats)


# ---------------------------------------------------------------- the method
def check_layout(batch: HybridBatch, q, k_cache) -> None:
    """Prefill's tensor map of small pages has no dimension left for heads that lie apart (grouped_map)."""
    step, block = k_cache.stride(2), PERSISTENT.prefill_keys
    small = batch.page_size is not None and batch.page_size < block
    if batch.prefill and small and batch.head_dim > 64 and batch.num_kv_heads > 1 and step != batch.head_dim:
        raise ValueError(f"k_cache: got heads {step} elements apart, allowed for method 'hopper' with head_dim "
                         f"{batch.head_dim} and pages under {block} are {batch.head_dim}")  # fmt: skip


KERNEL = Kernel(HOPPER, lambda batch, trace: "", lay_out, lambda rows: rows.view(-1, len(ROLES), 2), check_layout)


def plan(batch: HybridBatch, device="cuda", method: str = "hopper", **choice) -> Plan:
    """One iteration. `choice`, as decide.hopper has it, overrides what the cost model would choose."""
    import torch

    device = torch.device(device)
    build_for(batch, device)  # in the first call it would spoil what is timed there
    return Plan(batch, method, device, KERNEL, partial(decide.hopper, batch, build.sm_count(device), **choice))


def build_for(_batch: HybridBatch, device) -> None:
    if not available(device):
        raise ValueError(f"device: got {str(device)!r}, the Hopper method needs a GPU of compute capability 9.0")
    build.operator(HOPPER, "", device)
