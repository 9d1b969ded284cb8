"""The ladder's check: two variants serve 100 iterations in a row, with nothing between them but the scheduler."""

from __future__ import annotations

import time
from functools import lru_cache

from pod.measure.suites import vllm_ladder
from pod.serving import early
from pod.serving.step import predicting

DOC = "100 consecutive iterations of the ladder's run, executed, for the first and the last variant of the post."
KEYS, WHOLE = ("kernel", "sampler", "iteration"), ("kernel", "sampler")
UNITS, TIMER, L2, REPEATS = vllm_ladder.UNITS, "host clock from one submitted batch to the next", "warm", 1
FIRST, COUNT = 700, 100
VARIANTS = (early.LADDER["clean"], early.LADDER["one copy"])


def cases() -> list[dict]:
    return [
        {"kernel": kernel, "sampler": sampler, "iteration": i}
        for kernel, sampler in VARIANTS
        for i in range(FIRST, FIRST + COUNT)
    ]


def measure(case: dict) -> dict:
    return {"ms": _run(case["kernel"], case["sampler"])[int(case["iteration"])]}


@lru_cache
def _run(kernel: str, sampler: str) -> dict[int, float]:
    stretch = Stretch(vllm_ladder.lab(), (kernel, sampler))
    vllm_ladder.plan(stretch)
    ends = stretch.times
    return {FIRST + i: round(1e3 * (b - a), 4) for i, (a, b) in enumerate(zip(ends, ends[1:], strict=False))}


class Stretch:
    """An executor that really runs the iterations of the stretch, and none of the others."""

    def __init__(self, place: vllm_ladder.Lab, variant: tuple[str, str]):
        self.lab, self.pool, self.engine, self.count, self.times = place, place.pool, place.engines[variant], 0, []
        place.write_texts(early.chats())

    def submit(self, batch, event) -> float:
        if FIRST <= self.count <= FIRST + COUNT:
            self.times.append(time.perf_counter())
        if FIRST <= self.count < FIRST + COUNT:
            self.engine.submit(batch, event)
        else:
            for request in predicting(batch):
                self.lab.texts[request.id].append(0)
        self.count += 1
        return event.scheduled + 1.0
