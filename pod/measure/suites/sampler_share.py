"""How much of a decode iteration is the sampler, by batch size."""

from __future__ import annotations

from statistics import median

from pod.measure.suites import vllm_ladder
from pod.serving.events import iteration
from pod.serving.request import Request
from pod.serving.sampler import SAMPLERS
from pod.serving.schedulers import Batch

DOC = "decode iterations of LLaMA-13B at 400 tokens of context: model and sampler by batch size."
KEYS = ("sampler", "batch")
UNITS, TIMER, L2, REPEATS = vllm_ladder.UNITS, vllm_ladder.TIMER, "warm", 5
BATCHES, CONTEXT = (1, 4, 16, 64, 128, 256), 400


def cases() -> list[dict]:
    return [{"sampler": sampler, "batch": batch} for batch in BATCHES for sampler in SAMPLERS]


def measure(case: dict) -> dict:
    place = vllm_ladder.lab()
    batch = decodes(place, int(case["batch"]))
    event = iteration(batch, 0, 0.0, 0, 0)
    runs = [place.once(("shared", case["sampler"]), batch, event) for _ in range(REPEATS + 1)][1:]
    for request in batch.decodes:
        place.pool.release(request)
    return {name: median(run[name] for run in runs) for name in runs[0]}


def decodes(place: vllm_ladder.Lab, count: int) -> Batch:
    """So many requests, each about to compute its token number CONTEXT."""
    requests = [Request(i, CONTEXT - 1, 2) for i in range(count)]
    place.write_texts(requests)
    for request in requests:
        place.pool.admit(request)
        request.advance(request.prompt)
        place.pool.grow(request)
        place.texts[request.id].append(0)
    return Batch(decodes=requests)
