"""Which CTA ran what, where and when: the SM-aware kernel with two policies, and beside it serial and CTA-parallel."""

from __future__ import annotations

from functools import lru_cache

from pod.batch import HybridBatch
from pod.measure import timing

DOC = "every CTA of one launch: operation, SM, ticket, start and time, for pod with two policies, serial and cta."
KEYS, WHOLE = ("run", "cta"), ("run",)
UNITS = ("hybrid",)
REPEATS = 1
K = 1024
# Llama-3-8B on two GPUs: on an H200 prefill and decode take about as long, and both have more CTAs than it has slots.
BATCH = HybridBatch.of(3 * K, 3 * K, 40, 4 * K, 16, 4)
RUNS = {
    "serial": {"method": "serial", "ctas_per_sm": 2},
    "cta": {"method": "cta", "ctas_per_sm": 2},
    "even2": {"method": "pod", "policy": "50:50", "ctas_per_sm": 2},
    "prop2": {"method": "pod", "policy": "proportional", "ctas_per_sm": 2},
    "even4": {"method": "pod", "policy": "50:50", "ctas_per_sm": 4},
    "prop4": {"method": "pod", "policy": "proportional", "ctas_per_sm": 4},
}
SPLITS = {"prefill_splits": "none", "decode_splits": 16}  # named, so that the pieces depend on no cost model


def plan(run: str, device: str = "cuda"):
    import pod

    b = BATCH
    return pod.plan(b.q_lens, b.kv_lens, b.num_q_heads, b.num_kv_heads, b.head_dim, device=device, **SPLITS,
                    **RUNS[run])  # fmt: skip


def cases() -> list[dict]:
    """`cta` numbers the rows of a trace: block by block, serial's prefill before its decode."""
    return [{"run": run, "cta": cta} for run in RUNS for cta in range(sum(ctas(plan(run).work)))]


def ctas(work) -> tuple[int, int]:
    """CTAs of prefill and of decode."""
    from pod.schedule.fixed_split import SHAPES

    lists = work.lists(BATCH.causal)
    return len(lists.prefill.work), -(-(len(lists.decode.pieces) - 1) // SHAPES[work.ctas_per_sm].virtual)


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
    column = dict(zip(TRACE_FIELDS, taken[-1].cpu().numpy().T, strict=True))
    origin = column["start"].min()
    names = ("sm", "op", "id", "ticket", "draws")
    return [
        {name: int(column[name][i]) for name in names}
        | {"start_us": round((start - origin) / 1e3, 1), "us": round((end - start) / 1e3, 1)}
        for i, (start, end) in enumerate(zip(column["start"], column["end"], strict=True))
    ]
