"""LeanAttention: the decode of a batch in equal ranges of tiles, across the borders of heads and requests.

On compute capability 9.0 it is the decode half of the Hopper kernel, elsewhere (and on the emulator) csrc/lean/lean.cu.
How the line of tiles is cut is decided here, so the same kernels also run a fixed split: `splits` parts of every head.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from pod import hopper, kernels
from pod.ampere import METHODS
from pod.batch import HybridBatch
from pod.schedule import hopper as hopper_schedule
from pod.schedule import stream_k
from pod.schedule.fixed_split import DECODE_ROWS, MOST_PARTS, WorkList, decode_lanes
from pod.workplan import Lists, WorkPlan, results

# Who works through a range: a warp that serves all query heads of a KV head, or, as in the paper, a CTA with a tile of
# 64 query rows against 64 or 128 keys at a time, of which decode fills one row.
WORKERS = ("warp", "cta64", "cta128")
MERGES = {"last": "LastMerges", "host": "HostMerges"}  # who adds the parts of a head up: csrc/lean/lean.cu
CTAS_PER_SM, WARPS, TILE_ROWS = 2, 4, 64
# Of the Hopper kernel on an H200: what merging the parts of a head costs, and what beginning another part costs.
MERGE_US, BORDER_US = 5.0, 1.0
MANY, LARGE = 32, 1 << 29  # KV heads of all requests; bytes of keys and values
TRACE_FIELDS = ("worker", "record", "sm", "start", "computed", "end", "merges", "block")


# ---------------------------------------------------------------- csrc/lean/lean.cu
def kind(dtype: str, head_dim: int, worker: str = "warp", merge: str = "last", trace: bool = False) -> str:
    return f"{dtype}_{head_dim}_{worker}_{merge}{'_trace' if trace else ''}"


def _kinds() -> dict[str, tuple[str, str]]:
    lines = {}
    for dtype, head_dim, worker, merge, trace in product(kernels.DTYPES, (64, 128), WORKERS, MERGES, (False, True)):
        if worker != "warp" and head_dim > 64:  # the paper's tile at head_dim 128 would spill registers
            continue
        name, traced, T = kind(dtype, head_dim, worker, merge, trace), str(trace).lower(), kernels.DTYPES[dtype]
        who = f"WarpWorker<{T}, {head_dim}>" if worker == "warp" else f"CtaWorker<{T}, {head_dim}, {worker[3:]}>"
        in_kernels = f"POD_LEAN(lean_{name}, {T}, {traced}, {MERGES[merge]}, {who})"
        lines[name] = (f"POD_OPERATOR(lean_{name}, {traced})", in_kernels)
    return lines


def _fake(kind, q, k, v, table, lists, counters, partials, shape, scale, lse):
    import torch

    sums = q.new_empty((q.shape[0] if lse else 0, q.shape[1]), dtype=torch.float32)
    rows = shape[-1] if kind.endswith("_trace") else 0
    return q.new_empty(q.shape), sums, q.new_empty((rows, len(TRACE_FIELDS)), dtype=torch.int64)


LEAN = kernels.Family("hybrid_lean", bindings="bindings.cpp", kernels="lean/lean.cu", fake=_fake, kinds=_kinds())


@dataclass
class LeanLists(Lists):
    """As all lists, and the work as the host knows it."""

    work: WorkList


@dataclass
class LeanPlan(WorkPlan):
    """One iteration's ranges for csrc/lean/lean.cu."""

    splits: int | str | None = None  # parts of every head; None for equal ranges; or "auto"
    worker: str = "warp"
    merge: str = "last"
    block: int = stream_k.BLOCK  # keys that are not cut apart
    alike: int | None = None  # neighbouring heads that are cut at the same places; None for as many as can be

    @property
    def workers(self) -> int:
        """Those that are on the GPU at the same time."""
        return self.sms * CTAS_PER_SM * (WARPS if self.worker == "warp" else 1)

    def operator(self, trace: bool = False):
        name = kind(self.batch.dtype, self.batch.head_dim, self.worker, self.merge, trace)
        return kernels.operator(LEAN, name, self.device)

    def full_parts(self) -> int | None:
        """Parts of every head that fill the last wave, where the heads are equally long."""
        if len(set(self.batch.kv_lens)) > 1:
            return None
        return stream_k.full_parts(len(self.batch.kv_lens) * len(decode_lanes(*self.heads)), self.workers)

    def lists(self, causal: bool = True) -> LeanLists:
        return super().lists(True)  # a single query sees all keys under either mask

    def make(self, causal: bool) -> LeanLists:
        packed = self.worker == "warp"
        splits = self.full_parts() if self.splits == "auto" else self.splits
        work = stream_k.decode_work(*self.decode, self.workers, splits, packed, self.block, self.alike)
        rows = work.slots * (DECODE_ROWS if packed else TILE_ROWS)
        pieces = len(work.pieces) - 1
        shape = [METHODS.index("serial"), CTAS_PER_SM, self.sms, 0, 0, len(work.work), pieces, 0, 0, work.groups, 0,
                 work.slots, len(work.work)]  # fmt: skip
        floats = rows * (self.batch.head_dim + 1)
        placed = self.place(work.work, work.pieces, counters=max(1, work.groups), floats=floats)
        return LeanLists(*placed, shape, work)


# ---------------------------------------------------------------- the Hopper kernel's decode half
@dataclass
class HopperPlan(hopper.Plan):
    """The decode half of the Hopper kernel, cut as FlashDecoding cuts: `parts` of every head, however many SMs."""

    parts: int = 1

    def lists(self, causal: bool = True) -> Lists:
        return super().lists(True)  # a single query sees all keys under either mask

    def decode_list(self) -> hopper_schedule.WorkList:
        return split_hopper_work(*self.decode, self.parts)

    def make(self, causal: bool) -> Lists:
        work = self.decode_list()
        floats = work.slots * (128 * (self.batch.head_dim // 16) + 16)
        placed = self.place(work.work, work.chunks, counters=4 + work.groups, floats=floats)
        return Lists(*placed, [0, len(work.work), len(work.chunks) - 1, 0, 0, self.sms, 0])


def _passes(num_q_heads: int, num_kv_heads: int) -> int:
    """Over the KV heads of one request: several for a KV head that more query heads share than one pass serves."""
    return num_kv_heads * -(-(num_q_heads // num_kv_heads) // hopper_schedule.DECODE_HEADS)


def split_hopper_work(tokens, kv_lens, seqs, num_q_heads: int, num_kv_heads: int, splits: int):
    """The Hopper kernel's decode list with one chunk a part: the line of tiles, cut by weights instead of equally."""
    lanes = _passes(num_q_heads, num_kv_heads)
    together = lanes & -lanes  # lanes that the list keeps side by side
    tiles = -(-np.asarray(kv_lens, np.int64) // hopper_schedule.DECODE_TILE)
    ends = stream_k.split_cuts(tiles, splits)
    lengths, request = np.diff(ends, prepend=0), np.searchsorted(np.cumsum(tiles), ends)
    weights = np.concatenate([np.tile(lengths[request == r], lanes // together) for r in range(len(tiles))])
    heads = (num_q_heads, num_kv_heads)
    return hopper_schedule.decode_work(tokens, kv_lens, seqs, *heads, len(weights) * together, weights, least=1)


def cheapest_splits(units: int, tiles: int, workers: int, tile_us: float) -> int | None:
    """Parts of each of `units` equally long heads that end first, or None if equal ranges do.

    Equal ranges leave nobody idle, but merging costs time, and so does every border between two parts in a range.
    """

    def time(parts: int) -> float:
        waves = -(-units * parts // workers)
        return waves * -(-tiles // parts) * tile_us + (waves - 1) * BORDER_US + (MERGE_US if parts > 1 else 0)

    longest = max(units * tiles / workers, hopper_schedule.MIN_TILES)
    equal = longest * tile_us + MERGE_US + (1 + units // workers) * BORDER_US
    best = min(range(1, min(tiles, MOST_PARTS) + 1), key=time)
    return best if time(best) <= equal else None


def _hopper_splits(batch: HybridBatch, sms: int) -> int | None:
    if len(set(batch.kv_lens)) > 1:
        return None
    tiles = -(-batch.kv_lens[0] // hopper_schedule.DECODE_TILE)
    units = len(batch.kv_lens) * _passes(batch.num_q_heads, batch.num_kv_heads)
    tile_us = batch.kv_bytes / (units * tiles) / (hopper.DECODE_BYTES / sms) * 1e6
    return cheapest_splits(units, tiles, sms, tile_us)


# ---------------------------------------------------------------- the method
def choose_worker(batch: HybridBatch, device, splits: int | str = "auto") -> str:
    """The Hopper kernel where it runs. "auto" leaves large batches of many heads to warps, which read them 1 to 8 %
    faster (on H200); few heads they would cut into too many parts."""
    if device.type == "cpu" or not hopper.available(device):
        return "warp"
    many = len(batch.kv_lens) * batch.num_kv_heads >= MANY
    return "warp" if splits == "auto" and many and batch.kv_bytes >= LARGE else "hopper"


def build(batch: HybridBatch, device) -> None:
    """Whichever worker it will choose."""
    kernels.operator(LEAN, kind(batch.dtype, batch.head_dim), device)
    if device.type == "cuda" and hopper.available(device):
        hopper.build(batch, device)


def make_plan(batch: HybridBatch, device, splits: int | str = "auto", worker: str | None = None, **choice) -> WorkPlan:
    """Plan one iteration. splits: "stream-k" (equal ranges), parts of every head, or "auto", whichever of them should
    end first; the paper's tile then takes equal ranges. worker: one of WORKERS (lean.cu), "hopper", or None to
    choose; `choice` as LeanPlan has it."""
    import torch

    device = torch.device(device)
    if (longest := max(batch.q_lens)) > 1:
        raise ValueError(f"q_lens: got a chunk of {longest} tokens, allowed for method 'lean' are decodes, 1 each")
    worker, sms = worker or choose_worker(batch, device, splits), kernels.sm_count(device)
    if splits == "stream-k" or splits == "auto" and worker.startswith("cta"):
        splits = None
    if worker != "hopper":
        plan = LeanPlan(batch, device, sms, splits, worker, **choice)
        if device.type == "cuda":
            plan.operator()  # a build in the first call would spoil what is timed there
    elif parts := _hopper_splits(batch, sms) if splits == "auto" else splits:
        plan = HopperPlan(batch, device, sms, parts=parts)
    else:
        return hopper.make_plan(batch, device)
    plan.lists(True)
    return plan


def run(plan: WorkPlan, q, k_cache, v_cache, block_table=None, softmax_scale=None, causal=True, return_lse=False,
        trace=False):  # fmt: skip
    """Launch on the current stream. Returns out, then the log-sum-exp and the trace where asked for: one row a record
    (TRACE_FIELDS), or from the Hopper kernel one an SM and role."""
    if isinstance(plan, hopper.Plan):
        return hopper.run(plan, q, k_cache, v_cache, block_table, softmax_scale, causal, return_lse, trace)
    operator = plan.operator(trace)
    out, lse, rows = plan.launch(operator, q, k_cache, v_cache, block_table, softmax_scale, causal, return_lse)
    return results(out, (lse, return_lse), (rows, trace))
