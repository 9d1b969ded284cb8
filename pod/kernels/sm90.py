"""The Hopper method: prefill and decode of a hybrid batch in one persistent kernel with Hopper's own instructions.

One launch: no host sync, no memset, no second kernel, so that it can be captured in a CUDA graph, for as long as no
length changes. Its sources are csrc/sm90.
"""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from math import gcd

import numpy as np

from pod.batch import HEAD_DIMS, RULES, HybridBatch
from pod.kernels import build
from pod.kernels.allowed import MOST
from pod.kernels.build import DTYPES, Family
from pod.kernels.launch import Header, Kernel, Layout, Plan, fake
from pod.schedule import choose, decide
from pod.schedule.work import DECODE_ROWS, NARROW, PERSISTENT, WIDE, Schedule, WorkList

# A trace has a row a CTA, and of each role when it began and ended. Where the plan gives prefill the wide tile, the
# last is a third warpgroup of prefill.
ROLES = ("prefill producer", "decode producer", "prefill 0", "prefill 1", "decode")

# In place of decode's rows: batches without decode, for which prefill has a third warpgroup. NARROW has another such
# number: no rules, prefill alone, and few rows of it.
ALONE = 0


PAGES = (0, 8, 16, 32, 64)  # of a kind: larger ones (powers of two) and none at all; any multiple of 8; these


def kind(dtype: str, head_dim: int, rows: int, page: int = 0, rules: tuple[str, ...] = ()) -> str:
    """The name of the kernel for one kind of tensor, so many rows of a piece of decode, a size of pages, and what the
    model asks of its scores: bfloat16_128_8_16, bfloat16_64_8_16_window_sinks."""
    return "_".join(map(str, (dtype, head_dim, rows, page, *rules)))


def page_kind(page_size: int | None) -> int:
    if page_size is None or (power := page_size & (page_size - 1) == 0) and page_size >= PERSISTENT.prefill_keys:
        return 0
    return page_size if power else 8


def _kinds(family: str, bits: int = 16) -> dict[str, tuple[str, str]]:
    """With K and V of 8 bits there are no rules, and decode is always there."""
    lines, wide = {}, bits == 16
    sets = [rules for n in range(len(RULES) + 1 if wide else 1) for rules in combinations(RULES, n)]
    columns = DTYPES, HEAD_DIMS, (*DECODE_ROWS, NARROW.decode_rows, ALONE), PAGES, sets
    for dtype, head_dim, rows, page, rules in product(*columns):
        if rows in DECODE_ROWS or wide and (head_dim == 64 if rows == ALONE else not rules):
            name = kind(dtype, head_dim, rows, page, rules)
            asked = " | ".join(f"k{rule.title()}" for rule in rules) or "0"  # of csrc/sm90/common.cuh
            shape = f"{DTYPES[dtype]}, {head_dim}, {rows}, {page}, {asked}{'' if wide else f', {bits}'}"
            in_kernels = f"POD_KERNELS({family}_{name}, {shape})"
            lines[name] = (f"POD_OPERATOR({family}_{name}, {2 * len(ROLES)}, 64)", in_kernels)
    return lines


HOPPER = Family("hopper", "bindings.cpp", "sm90/hybrid.cu", fake(2 * len(ROLES)), _kinds("hopper"), "90a")
# K and V of 8 bits: its kernels have names of their own.
HOPPER8 = replace(HOPPER, name="hopper8", kinds=_kinds("hopper8", 8))

# Who plans on the device, for a workspace: see workspace.py.
PLANNER = Family("hopper_plan", "sm90/plan_bindings.cpp", "sm90/plan.cu", lambda kind, *arguments: None)


def kind_of(schedule: Schedule, trace: bool = False) -> str:
    """Traced or not, it is the same kernel."""
    rows = ALONE if schedule.shape == WIDE else schedule.shape.decode_rows
    return _kind_for(schedule.batch, rows)


def _kind_for(batch: HybridBatch, rows: int) -> str:
    return kind(batch.dtype, batch.head_dim, rows, page_kind(batch.page_size), batch.rules)


def available(device="cuda") -> bool:
    """Whether this device can run the method: compute capability 9.0."""
    import torch

    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


# ---------------------------------------------------------------- a schedule on the device
# Parts that are merged in one round, and neighbours in the first of two: csrc/sm90/prefill.cuh and decode.cuh.
ONCE, FAN = {"prefill": choose.FAN, "decode": 16}, {"prefill": choose.FAN, "decode": 8}


def counters_of(work: WorkList, side: str) -> int:
    return counters_for(int(work.parts.max(initial=0)), side)


def counters_for(parts: int, side: str) -> int:
    """Arrival counters of a tile in so many parts: one, and for two rounds of merging one more for each FAN."""
    return 1 if parts <= ONCE[side] else 1 + -(-parts // FAN[side])


def records(work: WorkList, schedule: Schedule, side: str, counters: int) -> tuple:
    """The twelve columns of `Work` (csrc/sm90/common.cuh), which counts keys in blocks, and queries of decode in rows
    of q, token by token and head by head. counters: of a tile in parts."""
    if not len(work.token):
        return (work.token,)  # of no record no column need be reckoned
    batch = schedule.batch
    if side == "prefill":
        keys, queries, pos = schedule.shape.prefill_keys, (work.token, work.tokens, work.head), work.pos
    else:
        keys, pos = schedule.shape.decode_keys, work.head - work.kv_head * batch.group
        queries = (work.token * batch.num_q_heads + work.head, work.tokens, work.kv_head)
    first = work.begin // keys
    end = np.maximum(first + 1, -(-work.end // keys))  # padding sees nothing, and reads a block
    partial = (work.part, work.parts, work.partial, work.group * counters)
    return (*queries, work.seq, pos, work.kv_len, first, end, *partial)


def lay_out(s: Schedule) -> Layout:
    """Lists: whether prefill yields, as a line of four; records; where pieces begin. As many empty records and pieces
    as there are CTAs end them. Counters: queues, arrivals of prefill, arrivals of decode."""
    prefill, decode = s.prefill, s.decode
    of_prefill, of_decode = counters_of(prefill, "prefill"), counters_of(decode, "decode")
    empty, end = np.zeros(12 * s.sms, np.int32), decode.pieces[-1:].repeat(s.sms)
    lists = ([int(s.yields), 0, 0, 0], records(prefill, s, "prefill", of_prefill), empty,
             records(decode, s, "decode", of_decode), decode.pieces, end)  # fmt: skip
    header = Header(
        method=decide.METHODS.index("cta"),  # one launch
        sms=s.sms, causal=int(s.causal), prefill_works=len(prefill) + s.sms, decode_works=len(decode),
        pieces=len(decode.pieces) - 1 + s.sms,
        prefill_groups=prefill.groups * of_prefill, decode_groups=decode.groups * of_decode,
        prefill_slots=prefill.partials, decode_slots=decode.partials,
        prefill_rows=s.shape.prefill_rows, pack_tokens=s.pack.tokens, pack_heads=s.pack.heads,
        decode_rows=s.shape.decode_rows, window=s.batch.window or 0,
        trace_rows=s.sms,
    )  # fmt: skip
    return Layout(header, lists, *memory(header, s.batch.head_dim))


def memory(header: Header, head_dim: int) -> tuple[int, int]:
    """How many counters, and floats of partial results."""
    prefill_floats = header.prefill_slots * header.prefill_rows * head_dim * 5 // 4  # pieces: csrc/sm90/prefill.cuh
    decode_floats = header.decode_slots * header.decode_rows * (head_dim + 2)
    return 4 + header.prefill_rows // 16 * header.prefill_groups + header.decode_groups, prefill_floats + decode_floats


# ---------------------------------------------------------------- the method
def check_layout(batch: HybridBatch, q, k_cache) -> None:
    """Heads of all small pages are one dimension of prefill's tensor map, in 31 bits (slabs_of in csrc/sm90)."""
    if not page_kind(batch.page_size) or batch.kv_dtype:
        return
    of = [(k_cache.shape[dim] - 1, k_cache.stride(dim)) for dim in (0, 2) if k_cache.shape[dim] > 1]
    step = gcd(*(stride for _, stride in of)) or 1
    if (places := sum(last * stride for last, stride in of) // step + 1) > MOST:
        raise ValueError(f"k_cache: got {places} places for heads, {step} elements apart, allowed for method 'hopper' "
                         f"in pages of {batch.page_size} are {MOST}")  # fmt: skip


KERNEL = Kernel(HOPPER, kind_of, lay_out, lambda rows: rows.view(-1, len(ROLES), 2), check_layout)
KERNEL8 = replace(KERNEL, family=HOPPER8)


def kernel_for(batch: HybridBatch) -> Kernel:
    return KERNEL8 if batch.kv_dtype else KERNEL


def plan(batch: HybridBatch, device="cuda", method: str = "hopper", **choice) -> Plan:
    """One iteration. `choice`, as decide.hopper has it, overrides what the cost model would choose."""
    import torch

    device = torch.device(device)
    check_device(device)
    made = Plan(
        batch, method, device, kernel_for(batch), partial(decide.hopper, batch, build.sm_count(device), **choice)
    )
    made.operator()  # a build in the first call would spoil what is timed there
    return made


def build_for(batch: HybridBatch, device) -> None:
    """All kinds that lengths may ask for, and who plans for a workspace, side by side."""
    check_device(device)
    rows = {roles.rows for roles in choose.possible_roles(batch.group)}
    if choose.takes_wide(batch):
        rows.add(ALONE)
    if choose.takes_narrow(batch):
        rows.add(NARROW.decode_rows)
    with ThreadPoolExecutor() as pool:
        family = kernel_for(batch).family
        kinds = [(PLANNER, ""), *((family, _kind_for(batch, n)) for n in sorted(rows))]
        builds = [pool.submit(copy_context().run, build.operator, *kind, device) for kind in kinds]
    for built in builds:
        built.result()


def check_device(device) -> None:
    if not available(device):
        raise ValueError(f"device: got {str(device)!r}, the Hopper method needs a GPU of compute capability 9.0")
