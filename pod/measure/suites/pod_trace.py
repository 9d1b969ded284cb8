"""Which CTA ran what, where and when: the SM-aware kernel with two policies, and beside it serial and CTA-parallel."""

from __future__ import annotations

from functools import lru_cache

from pod.batch import HybridBatch
from pod.measure import timing

DOC = "every CTA of one launch: operation, SM, ticket, start and end, for pod with two policies, serial and cta."
KEYS = ("run", "cta")
CSRC = ("csrc/hybrid.cu", "pod/ampere.py", "pod/schedule/binding.py", "pod/schedule/fixed_split.py")
REPEATS = 1
K = 1024
# Llama-3-8B on four GPUs: as long a prefill as a decode on an H200, and three decode CTAs for each of prefill.
BATCH = HybridBatch.of(4 * K, 4 * K, 96, 4 * K, 8, 2)
RUNS = {
    "serial": {"method": "serial", "ctas_per_sm": 2},
    "cta": {"method": "cta", "ctas_per_sm": 2},
    "50:50/2": {"method": "pod", "policy": "50:50", "ctas_per_sm": 2},
    "prop/2": {"method": "pod", "policy": "proportional", "ctas_per_sm": 2},
    "50:50/4": {"method": "pod", "policy": "50:50", "ctas_per_sm": 4},
    "prop/4": {"method": "pod", "policy": "proportional", "ctas_per_sm": 4},
}


def plan(run: str, device: str = "cuda"):
    """The plan of a run. Prefill is not split, so that it depends on the number of SMs only, and not on the card."""
    import pod

    b = BATCH
    return pod.plan(b.q_lens, b.kv_lens, b.num_q_heads, b.num_kv_heads, b.head_dim, device=device,
                    prefill_splits="none", **RUNS[run])  # fmt: skip


def cases() -> list[dict]:
    """`cta` numbers the rows of a trace: block by block, serial's prefill before its decode."""
    return [{"run": run, "cta": cta} for run in RUNS for cta in range(_ctas(plan(run).work))]


def _ctas(work) -> int:
    from pod.schedule.fixed_split import SHAPES

    lists = work.lists(BATCH.causal)
    return len(lists.prefill.work) + -(-(len(lists.decode.pieces) - 1) // SHAPES[work.ctas_per_sm].virtual)


def measure(case: dict) -> dict:
    return trace(case["run"])[int(case["cta"])]


@lru_cache
def trace(run: str, device: str = "cuda") -> list[dict]:
    """The last of three launches on a cold L2: by then the code is loaded. Times count from the first CTA's start."""
    import pod
    from pod.kernels import TRACE_FIELDS

    q, k, v, _ = BATCH.tensors(device=device)
    made, taken = plan(run, device), []
    timing.samples(lambda: taken.append(pod.hybrid_attention(q, k, v, made, trace=True)[1]), 3)
    cells = taken[-1].cpu().numpy()
    start, end = (cells[:, TRACE_FIELDS.index(name)] for name in ("start", "end"))
    origin = start.min()
    return [
        {name: int(row[TRACE_FIELDS.index(name)]) for name in ("sm", "op", "id", "ticket", "draws")}
        | {"start_us": round((a - origin) / 1e3, 1), "end_us": round((b - origin) / 1e3, 1)}
        for row, a, b in zip(cells, start, end, strict=True)
    ]
