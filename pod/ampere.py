"""The five methods of the sm_80 family: serial, streams, cta, warp and pod. One kernel source, csrc/sm80/hybrid.cu.

`make_plan` decides on the host what is computed in which order; `run` launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from pod import kernels
from pod.batch import HybridBatch
from pod.hardware import GPU, GPUS
from pod.schedule import binding, fixed_split, stream_k
from pod.schedule.fixed_split import SHAPES, WorkList
from pod.workplan import Lists, WorkPlan, results

METHODS = ("serial", "streams", "cta", "warp", "pod")  # csrc/bindings.cpp numbers them like this

# The cost model, measured on an H200. The tensor cores give mma.sync MMA_SYNC of their rate, 1 on cards without wgmma.
# Prefill reaches PREFILL_SHARE of that: the smaller tile of four CTAs an SM reads K and V twice as often. A prefill CTA
# alone on its SM, beside decode, reaches ALONE of what a full SM does, or CROWDED where decode has most SMs to itself:
# then decode takes all of the DRAM rate, and prefill waits for its keys. Decode reaches DECODE_SHARE of that rate.
MMA_SYNC = {"h100": 0.64, "h200": 0.64}
PREFILL_SHARE = {2: 0.58, 4: 0.47}
ALONE, CROWDED = 0.75, 0.6
DECODE_SHARE = 0.92
# Beside prefill decode is handed out in pieces that shrink: each is an even share of what is left for every slot of the
# card. Where prefill takes more than LONG_PREFILL of decode's time, it is SMALL_PART of that: then decode need not
# hurry, and no prefill waits long for a slot.
LONG_PREFILL, SMALL_PART = 0.7, 0.8
# Four CTAs an SM have a slower prefill. They pay where a prompt is so short that the tiles of two CTAs an SM would make
# just one wave, decode would make it two, and prefill is long.
SHORT_PROMPT = 1024


def kind(dtype: str, head_dim: int, trace: bool = False) -> str:
    """The name of the kernels for one kind of tensor: bfloat16_128, or bfloat16_128_trace."""
    return f"{dtype}_{head_dim}{'_trace' if trace else ''}"


def _kinds() -> dict[str, tuple[str, str]]:
    lines = {}
    for dtype, head_dim, trace in product(kernels.DTYPES, kernels.HEAD_DIMS, (False, True)):
        name, traced = kind(dtype, head_dim, trace), str(trace).lower()
        in_kernels = f"POD_KERNELS({name}, {kernels.DTYPES[dtype]}, {head_dim}, {traced})"
        lines[name] = (f"POD_OPERATOR({name}, {traced})", in_kernels)
    return lines


def _fake(kind, q, k, v, table, lists, counters, partials, shape, scale, lse):
    import torch

    trace_rows = shape[-1] if kind.endswith("_trace") else 0
    sums = q.new_empty((q.shape[0] if lse else 0, q.shape[1]), dtype=torch.float32)
    return q.new_empty(q.shape), sums, q.new_empty((trace_rows, len(kernels.TRACE_FIELDS)), dtype=torch.int64)


HYBRID = kernels.Family("hybrid", bindings="bindings.cpp", kernels="sm80/hybrid.cu", fake=_fake, kinds=_kinds())


@dataclass
class HybridLists(Lists):
    """As all lists (`lists` ends with the deal, `shape` begins with the method), and the work as the host knows it."""

    prefill: WorkList
    decode: WorkList
    deal: np.ndarray


@dataclass
class Plan(WorkPlan):
    method: str
    policy: str
    ctas_per_sm: int
    prefill_splits: str | int
    decode_splits: str | int

    def make(self, causal: bool) -> HybridLists:
        return _make_lists(self, causal)


def make_plan(batch: HybridBatch, device, method="pod", policy="proportional", ctas_per_sm="auto",
              prefill_splits="limited", decode_splits="auto") -> Plan:  # fmt: skip
    """Plan one iteration for `device`. Arguments as in pod.plan, already checked."""
    sms = kernels.sm_count(device)
    if ctas_per_sm == "auto":
        ctas_per_sm = choose_ctas(batch, gpu_of(device), sms, method)
    plan = Plan(batch, device, sms, method, policy, ctas_per_sm, prefill_splits, decode_splits)
    plan.lists(batch.causal)
    return plan


def build(batch: HybridBatch, device) -> None:
    kernels.operator(HYBRID, kind(batch.dtype, batch.head_dim), device)


def gpu_of(device) -> GPU:
    """The card as pod.hardware knows it; an A100 stands in for cards that it does not know, and for the emulator."""
    if isinstance(device, GPU):  # a plan for a card that need not be here (pod/gpusim.py)
        return device
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((gpu for key, gpu in GPUS.items() if key.upper() in name), GPUS["a100"])


def sides(batch: HybridBatch, gpu: GPU, sms: int, ctas_per_sm: int) -> tuple[float, float]:
    """Seconds that prefill and decode would take alone, on `sms` SMs of this card."""
    prefill = batch.prefill.flops / prefill_rate(gpu, ctas_per_sm) if batch.prefill else 0.0
    decode = batch.decode.bytes / gpu.dram_bytes_per_s / DECODE_SHARE if batch.decode else 0.0
    return prefill * gpu.sms / sms, decode * gpu.sms / sms


def choose_ctas(batch: HybridBatch, gpu: GPU, sms: int, method: str) -> int:
    """CTAs an SM, by the cost model above."""
    if method != "pod" or not batch.prefill or not batch.decode or max(batch.prefill.kv_lens) > SHORT_PROMPT:
        return 2
    return 4 if _is_long(sides(batch, gpu, sms, 2)) else 2


def _is_long(times: tuple[float, float]) -> bool:
    prefill, decode = times
    return prefill > LONG_PREFILL * decode


def prefill_rate(gpu: GPU, ctas_per_sm: int) -> float:
    """FLOP/s of prefill alone on this card."""
    return gpu.tensor_flops * MMA_SYNC.get(gpu.key, 1.0) * PREFILL_SHARE[ctas_per_sm]


def _split_prefill(plan: Plan, tiles: np.ndarray, shape, batch_time: float) -> int:
    if isinstance(plan.prefill_splits, int):
        return plan.prefill_splits
    longest = int(tiles[0, fixed_split.FIELDS.index("end")])
    sizes = (len(tiles), -(-longest // shape.prefill_keys), plan.sms * plan.ctas_per_sm)
    if plan.prefill_splits == "none":
        return 1
    if plan.prefill_splits == "vanilla":
        return fixed_split.vanilla_splits(*sizes)
    if plan.method in ("serial", "streams") or not plan.batch.decode:
        return fixed_split.limited_splits(*sizes)
    gpu = gpu_of(plan.device)
    rate = prefill_rate(gpu, plan.ctas_per_sm) * (CROWDED if 2 * len(tiles) <= plan.sms else ALONE) / gpu.sms
    tile_time = 4 * plan.batch.head_dim * shape.prefill_rows * longest / rate
    return fixed_split.limited_splits(*sizes, tile_time, batch_time)


def _make_lists(plan: Plan, causal: bool) -> HybridLists:
    head_dim, shape = plan.batch.head_dim, SHAPES[plan.ctas_per_sm]
    chunks = len(plan.prefill[0])
    times = sides(plan.batch, gpu_of(plan.device), plan.sms, plan.ctas_per_sm)

    workers, splits = plan.sms * plan.ctas_per_sm * shape.virtual, plan.decode_splits
    if chunks and plan.method != "serial":
        workers = int(workers / SMALL_PART) if _is_long(times) else workers
        splits = "shrinking" if splits == "auto" else splits
    if splits == "stream-k":
        decode = stream_k.decode_work(*plan.decode, workers)
    else:
        decode = fixed_split.decode_work(*plan.decode, workers, splits)
    prefill = fixed_split.empty()
    if chunks:
        tiles = fixed_split.prefill_tiles(*plan.prefill, shape, causal)
        prefill = fixed_split.prefill_work(tiles, shape, _split_prefill(plan, tiles, shape, max(times)))

    pieces = len(decode.pieces) - 1
    slots = -(-pieces // shape.virtual)
    deal = np.zeros(0, np.int32)
    if plan.method == "pod":
        cta_costs = np.add.reduceat(decode.costs, np.arange(0, pieces, shape.virtual)) if pieces else np.zeros(0)
        deal = binding.deal(plan.policy, prefill.costs, cta_costs, plan.sms)
    counters = plan.sms + 3 + prefill.groups + decode.groups  # tickets, arrivals of prefill, arrivals of decode
    floats = (head_dim + 1) * (prefill.slots * shape.prefill_rows + decode.slots * fixed_split.DECODE_ROWS)
    placed = plan.place(prefill.work, decode.work, decode.pieces, deal, counters=counters, floats=floats)
    trace_rows = 2 * max(len(prefill.work), slots) if plan.method == "warp" else len(prefill.work) + slots
    numbers = [METHODS.index(plan.method), plan.ctas_per_sm, plan.sms, int(causal), len(prefill.work), len(decode.work),
               pieces, len(deal), prefill.groups, decode.groups, prefill.slots, decode.slots, trace_rows]  # fmt: skip
    return HybridLists(*placed, numbers, prefill, decode, deal)


def run(plan: Plan, q, k_cache, v_cache, block_table=None, softmax_scale=None, causal=True, return_lse=False,
        trace=False):  # fmt: skip
    """Launch on the current stream. Returns out, then the log-sum-exp and the trace where asked for."""
    operator = kernels.operator(HYBRID, kind(plan.batch.dtype, plan.batch.head_dim, trace), plan.device)
    out, lse, rows = plan.launch(operator, q, k_cache, v_cache, block_table, softmax_scale, causal, return_lse)
    if trace:
        rows = rows[rows[:, kernels.TRACE_FIELDS.index("end")] > 0]
    return results(out, (lse, return_lse), (rows, trace))
