"""Figures 1 and 10: how busy each kernel keeps the SMs and DRAM, by the GPU's counters and by counted work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

from pod.ampere import gpu_of
from pod.batch import MODELS, TABLE1, HybridBatch
from pod.measure import counters, peers, timing

DOC = "compute and memory utilisation of prefill, decode and hybrid kernels (ncu), Llama-3-8B on two GPUs."
KEYS = ("panel", "batch", "way")
UNITS = ("hybrid", "hopper")
ROUNDS, REPEATS = 3, 9
CONTEXTS, DECODES, DECODE_CONTEXT = (1024, 2048, 4096, 8192, 16384), (16, 32, 64, 128, 256), 4096
TILE_DECODES = (8, 16, 32)


def decode_as_prefill(s: peers.Setting, ctas_per_sm: int) -> Callable:
    """Our decode with prefill's tile, of 128 rows with two CTAs an SM and of 64 with four: each request brings its
    token twice, and so counts as a chunk. The second of the two sees what the one token would."""
    import pod

    heads, lens = (s.batch.num_q_heads, s.batch.num_kv_heads, s.batch.head_dim), s.batch.kv_lens
    plan = pod.plan([2] * len(lens), lens, *heads, dtype=s.q.dtype, device=s.device, method="serial",
                    ctas_per_sm=ctas_per_sm, prefill_splits="none")  # fmt: skip
    q = s.q.repeat_interleave(2, 0)
    return lambda: (None, pod.hybrid_attention(q, s.k, s.v, plan)[1::2])


WAYS: dict[str, dict[str, Callable]] = {
    "prefill": {"ours": peers.HALVES["prefill"], "fa2": peers.fa2_prefill, "fa3": peers.fa3_prefill_exact},
    "decode": {"ours": peers.HALVES["decode"], "fa2": peers.fa2_decode, "fa3": peers.fa3_decode},
    # Llama-2-7B's heads share no keys. Our decode's tile has 16 rows, FlashAttention-2's without splits 128.
    "tile": {"ours": peers.HALVES["decode"], "ours_64": partial(decode_as_prefill, ctas_per_sm=4),
             "ours_128": partial(decode_as_prefill, ctas_per_sm=2), "fa2": peers.fa2_decode},
    "hybrid": {name: peers.FAMILY[name] for name in ("serial", "pod")}
    | {"fa3": peers.fa3_serial, "hopper": peers.ours},
}


def batches(panel: str) -> dict[str, HybridBatch]:
    heads = MODELS["llama-3-8b"].heads()
    if panel == "prefill":
        return {str(n): HybridBatch.of(n, n, 0, 1, **heads) for n in CONTEXTS}
    if panel == "decode":
        return {str(n): HybridBatch.of(0, 1, n, DECODE_CONTEXT, **heads) for n in DECODES}
    if panel == "tile":
        heads = MODELS["llama-2-7b"].heads(1)
        return {str(n): HybridBatch.of(0, 1, n, DECODE_CONTEXT, **heads) for n in TILE_DECODES}
    return TABLE1


def cases() -> list[dict]:
    return [
        {"panel": panel, "batch": batch, "way": way}
        for panel, ways in WAYS.items()
        for batch in batches(panel)
        for way in ways
    ]


def measure(case: dict) -> dict:
    """Percent of the peak: `compute` and `dram` by the counters, `counted_*` from FLOPs and bytes over `ms`."""
    panel, name, way = (case[key] for key in KEYS)
    batch = batches(panel)[name]
    setting = peers.Setting(batch)
    ready, holes = peers.ready(setting, {way: WAYS[panel][way]})
    if holes:
        return {"hole": holes[way]}
    time, gpu = timing.shuffled(ready, ROUNDS, ms=1.0)[way], gpu_of(setting.q.device)
    row = time.columns()
    row["counted_compute"] = round(100e3 * gpu.compute_time(batch.flops) / time.ms, 2)
    row["counted_dram"] = round(100e3 * gpu.memory_time(batch.bytes) / time.ms, 2)
    read = _counters()
    place = cases().index(case)
    return row | {"hole": ""} | ({name: round(x, 2) for name, x in read[place].items()} if read else {})


@lru_cache
def _counters() -> list[dict[str, float]]:
    """All rows in one go, as ncu takes seconds to start; none where it cannot read them."""
    try:
        rows = counters.profile(__name__)
        if len(rows) != len(cases()):
            raise ValueError(f"ncu saw {len(rows)} calls of {len(cases())}")
        return rows
    except ValueError as reason:
        print(f"{reason}; utilisation is counted from FLOPs, bytes and time")
        return []


def calls() -> Iterator[Callable]:
    """The calls of cases(), in that order; of a way that is a hole, a call that does nothing."""
    for case in cases():
        setting = peers.Setting(batches(case["panel"])[case["batch"]])
        ready, _ = peers.ready(setting, {case["way"]: WAYS[case["panel"]][case["way"]]})
        yield ready.get(case["way"], lambda: None)
