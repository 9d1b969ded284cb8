"""The sm_80 family: the methods serial, streams, cta, warp and pod, on any GPU from compute capability 8.0 on, and on
the emulator. One kernel source, csrc/sm80/hybrid.cu."""

from functools import partial
from itertools import product

from pod.batch import HEAD_DIMS, HybridBatch
from pod.kernels import build
from pod.kernels.allowed import MOST
from pod.kernels.build import DTYPES, Family
from pod.kernels.launch import Header, Kernel, Layout, Plan, fake
from pod.schedule import decide
from pod.schedule.decide import METHODS  # csrc/bindings.cpp numbers them like this
from pod.schedule.work import Schedule, WorkList

TRACE_FIELDS = ("op", "id", "sm", "start", "end", "ticket", "draws", "block")  # csrc/include/trace.cuh


def kind(dtype: str, head_dim: int, trace: bool = False) -> str:
    """The name of the kernels for one kind of tensor: bfloat16_128, or bfloat16_128_trace."""
    return f"{dtype}_{head_dim}{'_trace' if trace else ''}"


def _kinds() -> dict[str, tuple[str, str]]:
    lines = {}
    for dtype, head_dim, trace in product(DTYPES, HEAD_DIMS, (False, True)):
        name, traced = kind(dtype, head_dim, trace), str(trace).lower()
        in_kernels = f"POD_KERNELS(hybrid_{name}, {DTYPES[dtype]}, {head_dim}, {traced})"
        lines[name] = (f"POD_OPERATOR(hybrid_{name}, {len(TRACE_FIELDS)}, 32)", in_kernels)
    return lines


HYBRID = Family("hybrid", "bindings.cpp", "sm80/hybrid.cu", fake(len(TRACE_FIELDS)), _kinds())


# ---------------------------------------------------------------- a schedule on the device
def records(work: WorkList, schedule: Schedule) -> tuple:
    """The twelve columns of `Work` (csrc/include/tile_attention.cuh). Without a mask a query sees its last key, too."""
    pos = work.pos if schedule.causal else work.kv_len - 1
    queries = (work.token, work.tokens * work.heads, work.head, work.kv_head)
    return (*queries, work.seq, pos, work.begin, work.end, work.part, work.parts, work.partial, work.group)


def lay_out(s: Schedule) -> Layout:
    """Counters: tickets, arrivals of prefill, arrivals of decode."""
    prefill, decode, shape = s.prefill, s.decode, s.shape
    lists = (records(prefill, s), records(decode, s), decode.pieces, s.deal)
    pieces = len(decode.pieces) - 1
    ctas = (len(prefill), -(-pieces // shape.virtual))
    header = Header(
        method=METHODS.index(s.method), sms=s.sms, ctas_per_sm=s.ctas_per_sm, causal=int(s.causal),
        prefill_works=len(prefill), decode_works=len(decode), pieces=pieces, deals=len(s.deal),
        prefill_groups=prefill.groups, decode_groups=decode.groups, prefill_slots=prefill.partials,
        decode_slots=decode.partials, prefill_rows=shape.prefill_rows,
        trace_rows=2 * max(ctas) if s.method == "warp" else sum(ctas),
    )  # fmt: skip
    counters = s.sms + 3 + prefill.groups + decode.groups
    rows = prefill.partials * shape.prefill_rows + decode.partials * shape.decode_rows
    return Layout(header, lists, counters, (s.batch.head_dim + 1) * rows)


# ---------------------------------------------------------------- the methods
def check_layout(batch: HybridBatch, q, k_cache) -> None:
    """The kernels keep strides in 32 bits, and multiply them by as much: a register is dear there. Pages and tokens of
    q are counted in 64."""
    heads = max(16, batch.num_q_heads), batch.num_kv_heads
    for name, x, dim, times in (("q", q, 0, 16), ("q", q, 1, heads[0]), ("k_cache", k_cache, 1, 16),
                                ("k_cache", k_cache, 2, heads[1])):  # fmt: skip
        if x.shape[dim] > 1 and x.stride(dim) * times > MOST:
            raise ValueError(f"{name}: got a stride of {x.stride(dim)} elements, allowed are up to {MOST // times}")


def that_ran(rows):
    """A trace without the CTAs, or halves of CTAs, that had nothing to do."""
    return rows[rows[:, TRACE_FIELDS.index("end")] > 0]


KERNEL = Kernel(HYBRID, lambda s, trace: kind(s.batch.dtype, s.batch.head_dim, trace), lay_out, that_ran, check_layout,
                leaves_padding=True)  # fmt: skip


def plan(batch: HybridBatch, device, method: str = "pod", **choice) -> Plan:
    """One iteration. `choice` as in pod.plan, already checked."""
    decided = partial(decide.hybrid, batch, build.gpu_of(device), build.sm_count(device), method, **choice)
    return Plan(batch, method, device, KERNEL, decided)


def build_for(batch: HybridBatch, device) -> None:
    decide.check_plain(batch, "pod")
    build.operator(HYBRID, kind(batch.dtype, batch.head_dim), device)
