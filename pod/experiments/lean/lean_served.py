"""The engine on a Phi-3-Medium-shaped model, one request: whole answers, decode attention cut in several ways.

Measured: whole answers of the engine on random weights, prompts of 1K to 32K, P:D 8: stream-K, FlashDecoding's split,
no split, FlashAttention-3.
"""

from functools import cache, lru_cache
from random import Random

import numpy as np

from pod.batch import HybridBatch
from pod.experiments.engine import running
from pod.experiments.lean import lean, phi3
from pod.serving.backends import FlashAttention3, Halves, InTurn, Ours
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine, answer
from pod.serving.events import Log
from pod.serving.schedulers import Sarathi
from pod.simulate.windows import PAGE

RECORDING = "lean-served"
KEYS, WHOLE = ("prompt", "way", "reading"), ("prompt",)
UNITS = ("hopper", "model")
REPEATS = 1
TIMER = "host clock from the start of an answer to its last token; gpu_ms by CUDA events around every iteration"
L2 = "warm"
K = lean.K
MODEL = "phi-3-medium"
CUTS = ("lean", "rule_256", "single")
WAYS = (*CUTS, "fa3")
RUNS = {K: (WAYS, 2), 8 * K: (WAYS, 1), 16 * K: (CUTS, 1), 32 * K: (CUTS[:2], 1)}  # the longest take a minute a way
TOKENS = max(RUNS) + max(RUNS) // phi3.RATIO


def cases() -> list[dict]:
    """By prompt, the shortest first: where time is short, the longest is what lacks."""
    rows = [(prompt, way, i) for prompt, (ways, readings) in RUNS.items() for way in ways for i in range(readings)]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    prompt = int(case["prompt"])
    return served(_engine(), prompt, *RUNS[prompt])[case["way"], int(case["reading"])]


@cache
def _engine() -> Engine:
    return ready(running.model(MODEL, TOKENS), WAYS, TOKENS)


# ---------------------------------------------------------------- whose turn it is


class Cut(Ours):
    """Our kernel for decodes, every head in as many parts as a rule has for this context."""

    def __init__(self, way: str, *sizes):
        super().__init__("lean", *sizes)
        self.way = way

    def _make(self, *lengths: list[int]) -> None:
        from pod.attention import plan

        if lengths != self.lengths:
            batch = HybridBatch(*map(tuple, lengths), *self.heads)
            splits = (lean.chosen_splits(batch) | {"lean": "stream-k"})[self.way]
            self.lengths, self.made = lengths, plan(*lengths, *self.heads, *self.options, decode_splits=splits)


class Turns(Halves):
    """Prompts by our kernel whoever computes the decodes, so that answers differ by their decodes alone."""

    def __init__(self, ways, *sizes):
        prefills = Ours("auto", *sizes)
        self.prefill = InTurn(prefills, prefills).prefill
        self.ways = {way: InTurn(prefills, Cut(way, *sizes)) for way in ways if way in CUTS}
        if "fa3" in ways:
            self.ways["fa3"] = FlashAttention3(*sizes[:-1])
        self.way = ways[0]

    def decode(self, host, device, which: slice):
        return self.ways[self.way].decode(host, device, which)

    def expect(self, host) -> None:
        self.ways[self.way].expect(host)


def ready(model, ways, tokens: int, page: int = PAGE) -> Engine:
    """An engine with room for so many tokens, in which any of these ways may have its turn."""
    sizes = (model.q_heads, model.kv_heads, model.shape.head_dim, page, model.dtype, model.device)
    return Engine(model, PagedPool(-(-tokens // page), page, 0.0), Turns(ways, *sizes))


# ---------------------------------------------------------------- answers


@lru_cache(maxsize=1)
def served(engine: Engine, prompt: int, ways: tuple[str, ...], readings: int) -> dict[tuple[str, int], dict]:
    """All readings of a prompt, the ways in a fresh random order each time."""
    order, rows = Random(prompt), {}
    for way in ways:
        answered(engine, way, prompt, 4)  # whoever is launched for the first time loads what it needs
    for reading in range(readings):
        for way in order.sample(ways, len(ways)):
            with running.unswept():
                log = answered(engine, way, prompt, prompt // phi3.RATIO)
            rows[way, reading] = row(log)
    return rows


def answered(engine: Engine, way: str, prompt: int, outputs: int) -> Log:
    """One request from an empty engine. Its tokens are nobody's words: the weights are random, and so is the prompt."""
    engine.attention.way = way
    text = np.random.default_rng(0).integers(0, engine.model.shape.vocab, prompt).tolist()
    (found,), log = answer(engine, Sarathi(engine.pool, 1, chunk=prompt), [text], outputs)
    if len(found.tokens) != outputs:
        raise RuntimeError(f"{way}: got {len(found.tokens)} of {outputs} tokens: {found.error}")
    return log


def row(log: Log) -> dict:
    """Seconds of the whole answer, and milliseconds of its prompt and its steps. A step lasts from token to token, so
    what the host does between two iterations is in it; gpu_ms counts what the GPU does."""
    first, ends = log.iterations[0], np.array([event.end for event in log.iterations])
    took = np.diff(ends)
    gpu = [sum(end - start for start, end in event.stages) for event in log.iterations]
    low, middle, high = np.quantile(took, [0.1, 0.5, 0.9])
    times = {"prefill_ms": first.seconds, "step_ms": middle, "step_ms_p10": low, "step_ms_p90": high,
             "gpu_prefill_ms": gpu[0], "gpu_decode_ms": sum(gpu[1:])}  # fmt: skip
    counts = {"outputs": len(ends), "steps": len(took), "seconds": round(float(ends[-1] - first.scheduled), 5)}
    return counts | {name: round(float(1e3 * t), 4) for name, t in times.items()}
