"""The "+34 %" ladder on this GPU: a 13B model serves 1,000 chats, with every kernel and sampler of the post.

All variants form the same batches, because lengths are fixed and nobody stops early. So the run is planned once, some
iterations of each kind are executed, by every variant in turn, and the others are estimated from these. Each is a whole
iteration as the server sees it, from the batch to the tokens on the host. What the cache holds is random, which costs
the same time.
"""

import time
from functools import lru_cache
from itertools import product
from random import Random

import numpy as np

from pod.serving import vllm2023
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine
from pod.serving.events import Log
from pod.serving.loop import Ticks, serve
from pod.serving.model import Llama, random_weights
from pod.serving.request import Request
from pod.serving.sampler import SAMPLERS
from pod.serving.schedulers import VLLM
from pod.serving.shapes import shape
from pod.serving.step import predicting

RECORDING = "vllm-ladder"
KEYS, WHOLE = ("iteration", "kernel", "sampler"), ()
UNITS = ("single-query", "hopper", "vllm of 2023")
TIMER, L2 = "host clock from the batch to its tokens on the host; CUDA events between model and sampler", "warm"
REPEATS = 1
MODEL, BLOCKS = "llama-13b", 7936  # blocks of 16 tokens: 104 GB of keys and values beside 26 GB of weights
EVERY = {"prompts": 15, "decodes": 40}  # one in so many iterations is executed
CHANGES = tuple(product(("registers", "shared"), SAMPLERS))  # the post's three changes, in all combinations
TODAY = ("hopper", "packed")


def plan(executor=None) -> Log:
    """The whole run by an executor that takes no time, or by `executor`."""
    pool = executor.pool if executor else PagedPool(BLOCKS, 16)
    scheduler = VLLM(pool, vllm2023.MAX_BATCH, max_tokens=vllm2023.MAX_TOKENS)
    return serve(vllm2023.chats(), [scheduler], executor or Ticks())


@lru_cache
def chosen() -> tuple[int, ...]:
    """One in EVERY iterations of either kind, spread from its first to its last."""
    kinds = ["prompts" if i.prefills else "decodes" for i in plan().iterations]
    picked = set()
    for kind, every in EVERY.items():
        mine = [i for i, k in enumerate(kinds) if k == kind]
        picked |= {*mine[::every], mine[-1]}
    return tuple(sorted(picked))


def cases() -> list[dict]:
    return [{"iteration": i, "kernel": kernel, "sampler": sampler}
            for i in chosen() for kernel, sampler in (*CHANGES, TODAY)]  # fmt: skip


def measure(case: dict) -> dict:
    return _run()[int(case["iteration"])][case["kernel"], case["sampler"]]


@lru_cache
def _run() -> dict[int, dict]:
    visit = Visits(lab(), dict.fromkeys(chosen(), every_variant))
    plan(visit)
    return visit.found


# ---------------------------------------------------------------- the engines, and where they stop by


class Lab:
    """One model, one memory, one pool and one set of texts for all variants."""

    def __init__(self, shape, blocks: int, device: str = "cuda", dtype=None, today: str = "hopper"):
        import torch

        dtype = dtype or torch.bfloat16
        self.model = Llama(shape, random_weights(0, shape.layers, device), device, dtype, context=vllm2023.LONGEST)
        self.pool, self.watch, self.texts = PagedPool(blocks, 16), Stopwatch(device), {}
        modern = Engine(self.model, self.pool, today, sample=self._packed, graphs=False)
        for layer in modern.cache.data:
            layer.normal_()
        self.engines = {TODAY: modern}
        for kernel, sampler in CHANGES:
            engine = vllm2023.EarlyEngine(self.model, self.pool, kernel, sampler, modern.cache)
            engine.on_logits = self.watch.model_is_launched
            self.engines[kernel, sampler] = engine
        for engine in self.engines.values():
            engine.texts = self.texts

    def _packed(self, logits, requests):
        self.watch.model_is_launched()
        return np.array(SAMPLERS["packed"](logits, [1.0] * len(requests))[0])

    def write_texts(self, requests) -> None:
        """Random prompts."""
        draw = Random(0)
        for r in requests:
            self.texts[r.id] = draw.choices(range(self.model.shape.vocab), k=r.prompt)

    def warm(self) -> None:
        """Two short chats by every engine, so that kernels are built and loaded before anybody looks at a clock."""
        for engine in self.engines.values():
            chats = [Request(i, 20, 3) for i in range(2)]
            self.write_texts(chats)
            serve(chats, [VLLM(self.pool, 2, max_tokens=64)], engine)

    def once(self, variant, batch, event) -> dict[str, float]:
        """One iteration by one variant, in milliseconds. Leaves no token behind."""
        self.watch.start()
        self.engines[variant].submit(batch, event)
        times = self.watch.stop()
        for request in predicting(batch):
            self.texts[request.id].pop()
        return times


class Stopwatch:
    """Wall time of an iteration, and when, on the GPU's own clock, its model and its sampler were done."""

    def __init__(self, device: str):
        import torch

        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(3)] if device == "cuda" else None

    def start(self) -> None:
        import torch

        if self.events:
            torch.cuda.synchronize()
            self.events[0].record()
        self.began = self.launched = time.perf_counter()

    def model_is_launched(self) -> None:
        if self.events:
            self.events[1].record()
        self.launched = time.perf_counter()

    def stop(self) -> dict[str, float]:
        import torch

        end = time.perf_counter()
        model, total = 1e3 * (self.launched - self.began), 1e3 * (end - self.began)
        if self.events:
            self.events[2].record()
            torch.cuda.synchronize()
            model = self.events[0].elapsed_time(self.events[1])
        return {"ms": round(total, 4), "model_ms": round(model, 4), "sampler_ms": round(total - model, 4)}


@lru_cache
def lab() -> Lab:
    place = Lab(shape(MODEL), BLOCKS)
    place.warm()
    return place


class Visits:
    """An executor that runs nothing, except that at iteration i it calls stops[i](this, batch, event)."""

    def __init__(self, place: Lab, stops: dict):
        self.lab, self.pool, self.stops, self.found, self.count = place, place.pool, stops, {}, 0
        place.write_texts(vllm2023.chats())
        self.left = time.perf_counter()

    def submit(self, batch, event) -> float:
        self.loop_ms = 1e3 * (time.perf_counter() - self.left)  # scheduler and loop, since the last batch
        if self.count in self.stops:
            self.found[self.count] = self.stops[self.count](self, batch, event)
        for request in predicting(batch):
            self.lab.texts[request.id].append(0)
        self.count += 1
        self.left = time.perf_counter()
        return event.scheduled + 1.0


def every_variant(visit: Visits, batch, event) -> dict:
    """All variants once, in random order, after a first go that nobody times."""
    place, loop_ms = visit.lab, round(visit.loop_ms, 4)
    order = list(place.engines)
    Random(len(batch.decodes)).shuffle(order)
    place.once(order[0], batch, event)
    return {variant: place.once(variant, batch, event) | {"loop_ms": loop_ms} for variant in order}
