"""One decode iteration of the ladder's run as torch's profiler sees it: when the GPU works, and for whom."""

import json
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from statistics import median

from pod.experiments.plus34 import vllm_ladder
from pod.serving import vllm2023

RECORDING = "vllm-timeline"
KEYS, WHOLE = ("rung", "view", "bin"), ()
UNITS, L2, REPEATS = vllm_ladder.UNITS, "warm", 1
TIMER = "torch.profiler of one iteration; unprofiled_ms is the host clock of the median of nine without it"
BINS, ZOOM_US = 400, 800.0
VIEWS = ("iteration", "zoom")  # all of it; the first 0.8 ms after the model's last kernel
RUNGS = tuple(vllm2023.LADDER)
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
WAITS = ("Synchronize", "cudaMemcpyAsync")  # the copy of a result makes the host wait, too


def cases() -> list[dict]:
    return [{"rung": rung, "view": view, "bin": i} for rung in RUNGS for view in VIEWS for i in range(BINS)]


def measure(case: dict) -> dict:
    return _profiled(case["rung"])[case["view"]][int(case["bin"])]


@lru_cache
def middle() -> int:
    """The decode iteration in the second half of the run whose batch is nearest to the mean."""
    return nearest_to_mean(len(event.decodes) for event in vllm_ladder.plan().iterations)


def nearest_to_mean(decodes: Iterable[int]) -> int:
    """The same, from the number of decodes in each iteration of the run."""
    batches = {i: count for i, count in enumerate(decodes) if count}
    mean = sum(batches.values()) / len(batches)
    return min((i for i in batches if i > max(batches) / 2), key=lambda i: abs(batches[i] - mean))


@lru_cache
def _profiled(rung: str) -> dict[str, list[dict]]:
    return _all()[rung]


@lru_cache
def _all() -> dict[str, dict]:
    at = middle()
    visit = vllm_ladder.Visits(vllm_ladder.lab(), {at: _profile_all})
    vllm_ladder.plan(visit)
    return visit.found[at]


def _profile_all(visit: vllm_ladder.Visits, batch, event) -> dict[str, dict[str, list[dict]]]:
    """All rungs by the clock first: once a profiler has been attached, every later launch is slower."""
    found, once = {}, visit.lab.once
    plain = {rung: median(once(vllm2023.LADDER[rung], batch, event)["ms"] for _ in range(9)) for rung in RUNGS}
    for rung in RUNGS:
        profiled = _profile(rung, visit.lab, batch, event)
        found[rung] = {view: [row | {"unprofiled_ms": plain[rung]} for row in rows] for view, rows in profiled.items()}
    return found


def _profile(rung: str, place: vllm_ladder.Lab, batch, event) -> dict[str, list[dict]]:
    from torch.profiler import ProfilerActivity, profile, record_function

    variant = vllm2023.LADDER[rung]
    engine = place.engines[variant]
    hook = engine.on_logits
    engine.on_logits = lambda: (hook(), _mark())
    try:
        with (
            profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler,
            record_function("iteration"),
        ):
            place.once(variant, batch, event)
    finally:
        engine.on_logits = hook
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return views(events)


def _mark() -> None:
    from torch.profiler import record_function

    with record_function("sampler begins"):
        pass


# ---------------------------------------------------------------- from events to bins


def views(events: list[dict]) -> dict[str, list[dict]]:
    """Both views of a profiled iteration. `events` are those of a Chrome trace; times are in microseconds."""
    spans = [e for e in events if e.get("ph") == "X"]
    named = {e["name"]: e for e in spans if e.get("cat") == "user_annotation"}
    start, end = named["iteration"]["ts"], named["iteration"]["ts"] + named["iteration"]["dur"]
    calls = [e for e in spans if str(e.get("cat")).startswith("cuda_")]  # of the runtime and of the driver
    launches = {e["args"].get("correlation"): e["ts"] for e in calls}
    border = named["sampler begins"]["ts"]
    work: dict[str, list[tuple[float, float]]] = {"model": [], "sampler": [], "waits": [], "copies": []}
    for e in spans:
        span = (e["ts"], e["ts"] + e["dur"])
        if e.get("cat") in GPU:
            launched = launches.get(e["args"].get("correlation"), 0.0)
            work["sampler" if launched >= border else "model"].append(span)
            if "DtoH" in e["name"]:
                work["copies"].append(span)
    work["waits"] = [(e["ts"], e["ts"] + e["dur"]) for e in calls if any(word in e["name"] for word in WAITS)]
    model_ends = max(b for _, b in work["model"])
    return {"iteration": bins(work, start, end), "zoom": bins(work, model_ends, model_ends + ZOOM_US)}


def bins(work: dict[str, list[tuple[float, float]]], start: float, end: float) -> list[dict]:
    """BINS equal parts of [start, end): the share of each in which model, sampler and waits go on; kernels and copies
    that begin in it."""
    width, rows = (end - start) / BINS, []
    for i in range(BINS):
        rows.append({"start_us": round(i * width, 3), "width_us": round(width, 3)})
    for name, spans in work.items():
        share, begun = covered(spans, start, width), [0] * BINS
        for a, _ in spans:
            if start <= a < end:
                begun[min(BINS - 1, int((a - start) / width))] += 1
        for i in range(BINS):
            if name != "copies":
                rows[i][name] = round(share[i], 4)
            if name != "waits":
                rows[i][f"{name}_begun"] = begun[i]
    return rows


def covered(spans: list[tuple[float, float]], start: float, width: float) -> list[float]:
    """The share of each bin that lies in some span; spans that overlap count once."""
    share, reached = [0.0] * BINS, start
    for a, b in sorted(spans):
        a, b = max(a, reached), min(b, start + BINS * width)
        reached = max(reached, b)
        for i in range(max(0, int((a - start) / width)), BINS):
            left, right = start + i * width, start + (i + 1) * width
            if left >= b:
                break
            share[i] += max(0.0, min(b, right) - max(a, left)) / width
    return share
