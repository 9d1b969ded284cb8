"""How the pages of this source run the engine: random weights, everything run once before, nobody sweeping, watched."""

import gc
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

from pod.serving.engine import Engine, answer
from pod.serving.loop import WallClock
from pod.serving.model import Llama, random_weights
from pod.serving.schedulers import Sarathi
from pod.serving.shapes import shape
from pod.simulate.windows import K, Load, digest

WATCH_SECONDS = 0.5  # between two looks at clock and power; more looks would hold up launches


@lru_cache(maxsize=1)
def model(name: str, context: int = 32 * K):
    import torch

    s = shape(name)
    return Llama(s, random_weights(0, s.layers, "cuda"), "cuda", torch.bfloat16, context=context)


@contextmanager
def unswept():
    """No walk over all that was made before, as in servers: it would stop the host for a whole iteration."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def state(watched) -> dict[str, float]:
    """Clock and power of the GPU over a whole run."""
    summary = watched.summary()
    return {name: summary[name]["median"] for name in ("sm_clock_mhz", "power_w")}


def ready(load: Load, attention: str, graphs: bool | str | None = None):
    """An engine in which everything has run once, and the scheduler of the run. The clock starts."""
    engine = Engine(model(load.model), load.pool(), attention, graphs=graphs)
    engine.warm(96 if load.qps else 0, load.chunk)
    return engine, prepare(engine, load)


def prepare(engine, load: Load, kind=Sarathi):
    """Run everything once, then put the texts of the load into the engine; its scheduler."""
    engine.cache.data.normal_()  # who runs from the start has keys and values too; zeros would take less power
    random = np.random.default_rng(0)
    text = lambda tokens: random.integers(0, engine.model.shape.vocab, tokens).tolist()  # noqa: E731
    answer(engine, Sarathi(engine.pool, 4, chunk=load.chunk), [text(load.chunk + 100)] * 2, 4)
    scheduler = load.scheduler(engine.pool, kind)
    engine.texts = {r.id: text(r.prompt) for r in load.requests()}
    engine.texts |= {r.id: text(r.prompt + 1) for r in scheduler.running}
    engine.clock, engine.marks = WallClock(), []
    return scheduler


def row(event, planned: float, launched: float) -> dict:
    """Milliseconds since the start: the scheduler is asked, the work is planned, all is launched, the tokens are out.
    And how long the GPU worked, and who was in the batch."""
    gpu = sum(end - start for start, end in event.stages)
    times = {"scheduled": event.scheduled, "planned": planned, "launched": launched, "end": event.end, "gpu": gpu}
    return {f"{name}_ms": round(1e3 * t, 3) for name, t in times.items()} | {"digest": digest(event)}


def batch(event) -> dict[str, int]:
    """Who was in the batch, and how many had all of their answer with it."""
    return {"prompt": sum(new for _, new, *_ in event.prefills), "decodes": len(event.decodes),
            "context": event.decode_context, "finished": len(event.finished)}  # fmt: skip


def sizes(events) -> list[tuple[int, int, int]]:
    """(tokens, sequences, chunks) of these iterations, the largest first: what an engine captures before they come."""
    return sorted({(e.tokens, len(e.prefills) + len(e.decodes), len(e.prefills)) for e in events}, reverse=True)
