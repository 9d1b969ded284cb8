"""LeanAttention: the decode of a batch in equal ranges of tiles, across the borders of heads and requests (stream-K).

On compute capability 9.0 it is the decode half of the Hopper kernel, elsewhere (and on the emulator) csrc/lean/lean.cu.
How the line of tiles is cut is decided beforehand, so the same kernels also run a fixed split: `splits` parts of every
head.
"""

from functools import partial
from itertools import product

from pod.batch import HybridBatch
from pod.kernels import build, sm80, sm90
from pod.kernels.build import DTYPES, Family
from pod.kernels.launch import Header, Kernel, Layout, Plan, fake
from pod.schedule import choose, decide
from pod.schedule.work import Schedule

# Who works through a range: a warp that serves all query heads of a KV head, or, as in the paper, a CTA with a tile of
# 64 query rows against 64 or 128 keys at a time, of which decode fills one row.
WORKERS = ("warp", "cta64", "cta128")
MERGES = {"last": "LastMerges", "host": "HostMerges"}  # who adds the parts of a head up: csrc/lean/lean.cu
TRACE_FIELDS = ("worker", "record", "sm", "start", "computed", "end", "merges", "block")
WARP_ROWS, TILE_ROWS = 16, 64  # of a partial result


def kind(dtype: str, head_dim: int, worker: str = "warp", merge: str = "last", trace: bool = False) -> str:
    return f"{dtype}_{head_dim}_{worker}_{merge}{'_trace' if trace else ''}"


def _kinds() -> dict[str, tuple[str, str]]:
    lines = {}
    for dtype, head_dim, worker, merge, trace in product(DTYPES, (64, 128), WORKERS, MERGES, (False, True)):
        if worker != "warp" and head_dim > 64:  # the paper's tile at head_dim 128 would spill registers
            continue
        name, traced, T = kind(dtype, head_dim, worker, merge, trace), str(trace).lower(), DTYPES[dtype]
        who = f"WarpWorker<{T}, {head_dim}>" if worker == "warp" else f"CtaWorker<{T}, {head_dim}, {worker[3:]}>"
        in_kernels = f"POD_LEAN(hybrid_lean_{name}, {T}, {traced}, {MERGES[merge]}, {who})"
        lines[name] = (f"POD_OPERATOR(hybrid_lean_{name}, {len(TRACE_FIELDS)}, 32)", in_kernels)
    return lines


LEAN = Family("hybrid_lean", "bindings.cpp", "lean/lean.cu", fake(len(TRACE_FIELDS)), _kinds())


# ---------------------------------------------------------------- a schedule on the device
def lay_out(s: Schedule, rows: int) -> Layout:
    work, records = s.decode, sm80.records(s.decode, s)
    header = Header(
        sms=s.sms, ctas_per_sm=s.ctas_per_sm, decode_works=len(work), pieces=len(work.pieces) - 1,
        decode_groups=work.groups, decode_slots=work.partials, trace_rows=len(work),
    )  # fmt: skip
    floats = work.partials * rows * (s.batch.head_dim + 1)
    return Layout(header, (records, work.pieces), max(1, work.groups), floats)


def kernel(worker: str = "warp", merge: str = "last") -> Kernel:
    return Kernel(
        LEAN,
        lambda s, trace: kind(s.batch.dtype, s.batch.head_dim, worker, merge, trace),
        partial(lay_out, rows=WARP_ROWS if worker == "warp" else TILE_ROWS),
        check_layout=sm80.check_layout,
        leaves_padding=True,
    )


# ---------------------------------------------------------------- the method
def plan(batch: HybridBatch, device, splits: int | str = "auto", worker: str | None = None, merge: str = "last",
         invariant: bool = False, **choice) -> Plan:  # fmt: skip
    """One iteration. splits: "stream-k" (equal ranges), parts of every head, or "auto", whichever of them should end
    first; the paper's tile then takes equal ranges. worker: one of WORKERS (csrc/lean/lean.cu), "hopper", or None to
    choose; merge: one of MERGES; `choice` as decide.lean has it. invariant: a warp's tile, whatever else there is."""
    import torch

    device = torch.device(device)
    decide.check_plain(batch, "lean")
    if (longest := max(batch.q_lens)) > 1:
        raise ValueError(f"q_lens: got a chunk of {longest} tokens, allowed for method 'lean' are decodes, 1 each")
    if not any(batch.seen_lens):
        raise ValueError("kv_lens: got 0 for every token, allowed for method 'lean' is some sequence that sees a key")
    sms = build.sm_count(device)
    if worker is None and invariant:
        worker = "warp"
    if worker is None:
        worker = choose.decode_worker(batch, sm90.available(device), splits)
    if worker == "hopper":
        parts = choose.whole_parts(batch, sms) if splits == "auto" else None if splits == "stream-k" else splits
        return sm90.plan(batch, device, "lean", parts=parts, roles=choose.as_decode(batch.group))
    if splits == "stream-k" or splits == "auto" and worker.startswith("cta"):
        splits = None
    decided = partial(decide.lean, batch, sms, splits, worker, invariant=invariant, **choice)
    made = Plan(batch, "lean", device, kernel(worker, merge), decided)
    if device.type == "cuda":
        made.operator()  # a build in the first call would spoil what is timed there
    return made


def build_for(batch: HybridBatch, device) -> None:
    """Whichever worker it will choose."""
    decide.check_plain(batch, "lean")
    build.operator(LEAN, kind(batch.dtype, batch.head_dim), device)
    if sm90.available(device):
        sm90.build_for(batch, device)
