"""One suite a recording. A suite is a module with DOC (one line), KEYS (the columns that name a row), UNITS (what ran,
as pod/measure/sources.py names it), REPEATS, `cases()` -> list of rows of keys, and `measure(case)` -> dict of measured
columns. TIMER (how time is taken, in words) and L2 ("cold" or "warm") where they differ from pod/measure/timing.py.
WHOLE: the columns that name one execution, where its rows are no good without each other, () if that is all of them; an
interruption keeps an execution or none of it."""

SUITES = {
    "build": "pod.measure.suites.build",
    "engine-runs": "pod.measure.suites.engine_runs",
    "engine-stock": "pod.measure.suites.engine_stock",
    "engine-tp": "pod.measure.suites.engine_tp",
    "engine-timeline": "pod.measure.suites.engine_timeline",
    "gpu-tests": "pod.measure.suites.gpu_tests",
    "gpusim-calibrate": "pod.measure.suites.gpusim_calibrate",
    "hopper-halves": "pod.measure.suites.hopper_halves",
    "hopper-peers": "pod.measure.suites.hopper_peers",
    "hopper-sweep": "pod.measure.suites.hopper_sweep",
    "hopper-dtypes": "pod.measure.suites.hopper_dtypes",
    "hopper-mixed": "pod.measure.suites.hopper_mixed",
    "hopper-trace": "pod.measure.suites.hopper_trace",
    "hopper-dry": "pod.measure.suites.hopper_dry",
    "hopper-ladder": "pod.measure.suites.hopper_ladder",
    "hopper-sanitizer": "pod.measure.suites.hopper_sanitizer",
    "lean": "pod.measure.suites.lean",
    "lean-sweep": "pod.measure.suites.lean_sweep",
    "lean-energy": "pod.measure.suites.lean_energy",
    "lean-layers": "pod.measure.suites.lean_layers",
    "lean-trace": "pod.measure.suites.lean_trace",
    "lean-tiles": "pod.measure.suites.lean_tiles",
    "lean-parallel": "pod.measure.suites.lean_parallel",
    "methods-sweep": "pod.measure.suites.methods_sweep",
    "methods-grid": "pod.measure.suites.methods_grid",
    "methods-chunks": "pod.measure.suites.methods_chunks",
    "methods-ctas": "pod.measure.suites.methods_ctas",
    "methods-policy": "pod.measure.suites.methods_policy",
    "methods-splits": "pod.measure.suites.methods_splits",
    "methods-halves": "pod.measure.suites.methods_halves",
    "methods-peers": "pod.measure.suites.methods_peers",
    "methods-counters": "pod.measure.suites.methods_counters",
    "memory-map": "pod.measure.suites.memory_map",
    "micro-fusion": "pod.measure.suites.micro_fusion",
    "micro-fusion-trace": "pod.measure.suites.micro_fusion_trace",
    "operators": "pod.measure.suites.operators",
    "pod-trace": "pod.measure.suites.pod_trace",
    "random-batches": "pod.measure.suites.random_batches",
    "sanitizer": "pod.measure.suites.sanitizer",
    "single-query": "pod.measure.suites.single_query",
    "single-query-counters": "pod.measure.suites.single_query_counters",
    "single-query-stalls": "pod.measure.suites.single_query_stalls",
    "same-speed": "pod.measure.suites.same_speed",
    "sampler-share": "pod.measure.suites.sampler_share",
    "vllm-ladder": "pod.measure.suites.vllm_ladder",
    "vllm-stretch": "pod.measure.suites.vllm_stretch",
    "vllm-timeline": "pod.measure.suites.vllm_timeline",  # last: a profiler that was attached slows what follows
}


def table_row(setting, makers: dict, rounds: int, ms: float = 2.0, least: int = 3) -> dict:
    """Milliseconds with p10 and p90 of every maker on one setting, the holes by name, and the batch's counts."""
    from pod.measure import peers, timing

    calls, holes = peers.ready(setting, makers)
    times = timing.shuffled(calls, rounds, ms, least)
    prefill, decode = setting.batch.prefill, setting.batch.decode
    row = {"flops": prefill.flops if prefill else 0, "kv_bytes": decode.kv_bytes if decode else 0}
    for name in makers:
        row |= times[name].columns(name) if name in times else dict.fromkeys((name, f"{name}_p10", f"{name}_p90"), "")
    return row | {"holes": "; ".join(f"{name}: {why}" for name, why in holes.items())}
