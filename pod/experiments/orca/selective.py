"""Orca's selective batching, timed: what the linear layers gain by sharing an iteration, and what attention loses.

Measured: one iteration of Llama-3-8B for a prompt and some decodes, in three ways: every request by itself, linear
layers together and attention apart (selective batching), and attention together as well.
"""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from statistics import median

import pandas as pd

from pod.data import read
from pod.experiments.engine import running
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine
from pod.serving.request import Request
from pod.serving.schedulers import Batch, Chunk
from pod.serving.step import Step, pack

FIGURE = Figure(
    title="Selective batching, timed: linear layers together, then attention as well",
    says="With 63 decodes: linear layers together four times as fast, attention together ten times more",
    chapter="12",
    method="Llama-3-8B, random weights, no CUDA graphs; one iteration of a prompt of 512 tokens beside decodes of 2K, "
    "medians of five",
    data=("selective",),
)
RECORDING = "selective"
KEYS = ("decodes", "way")
UNITS = ("hopper", "model")
REPEATS = 5
TIMER, L2 = "host clock from the packed batch to its logits, the GPU idle before", "warm"
DECODES, CONTEXT, PROMPT, PAGE = (0, 1, 4, 16, 63), 2048, 512, 256
BLOCKS = CONTEXT // PAGE + 1  # of a request
APART, SELECTIVE, TOGETHER = "each request by itself", "linear layers together", "attention together as well"
WAYS = {APART: "sdpa", SELECTIVE: "sdpa", TOGETHER: "auto"}


def cases() -> list[dict]:
    return [{"decodes": n, "way": way} for way in WAYS for n in DECODES]


def measure(case: dict) -> dict:
    engine = _engine(WAYS[case["way"]])
    mine = steps(case["way"], int(case["decodes"]))
    times = [timed(engine, mine) for _ in range(REPEATS + 1)][1:]  # the first one loads kernels
    return {"ms": round(median(times), 3), "least_ms": round(min(times), 3), "most_ms": round(max(times), 3),
            "launches": len(mine), "tokens": sum(len(step.tokens) for step in mine)}  # fmt: skip


@lru_cache(maxsize=1)
def _engine(attention: str) -> Engine:
    return engine_of(running.model("llama-3-8b"), attention)


def engine_of(model, attention: str) -> Engine:
    """No graphs: what each request by itself would need of them is not what an iteration of all does."""
    engine = Engine(model, PagedPool((1 + max(DECODES)) * BLOCKS, PAGE, 0.0), attention, graphs=False)
    engine.cache.data.normal_()
    return engine


def steps(way: str, decodes: int) -> list[Step]:
    """The iterations that it takes: request 0 brings a prompt, all others a token."""
    ids = range(decodes + 1)
    return [step([i]) for i in ids] if way == APART else [step(ids)]


def step(ids: Sequence[int]) -> Step:
    prompts = [Chunk(Request(i, PROMPT, 1), PROMPT, 0) for i in ids if i == 0]
    decodes = [Request(i, CONTEXT, 2) for i in ids if i > 0]
    for request in decodes:
        request.advance(CONTEXT)
    texts = {i: [1 + i] * (CONTEXT + 1) for i in ids}
    return pack(Batch(prompts, decodes), texts, {i: [*range(i * BLOCKS, (i + 1) * BLOCKS)] for i in ids}, PAGE)


def timed(engine: Engine, mine: list[Step]) -> float:
    """Milliseconds of all of them, one after the other."""
    sync = _waiting(engine)
    sync()
    begin = time.perf_counter()
    for each in mine:
        engine.run(each)
    sync()
    return 1e3 * (time.perf_counter() - begin)


def _waiting(engine: Engine) -> Callable[[], None]:
    import torch

    return torch.cuda.synchronize if engine.model.device.type == "cuda" else lambda: None


# ---------------------------------------------------------------- what it shows


def table() -> pd.DataFrame:
    """A row a batch: milliseconds of each way, what sharing the linear layers brings, and what one attention for all
    brings on top of that."""
    df = read(RECORDING).pivot(index="decodes", columns="way", values="ms")[list(WAYS)]
    return df.assign(linear=df[APART] / df[SELECTIVE], attention=df[SELECTIVE] / df[TOGETHER]).reset_index()


def draw(df):
    ax = style.axes(7.5, 3.2)
    tones = style.FRAME, style.colour("load"), style.colour("hybrid")
    for i, (way, tone) in enumerate(zip(WAYS, tones, strict=True)):
        ax.bar([x + 0.27 * (i - 1) for x in range(len(df))], df[way], 0.25, color=tone, label=way)
    ax.set_xticks(range(len(df)), df.decodes)
    ax.set(yscale="log", xlabel="decodes beside the prompt", ylabel="ms for all of them")
    style.legend(ax, loc="upper left")
    return ax.figure


# ---------------------------------------------------------------- what claims ask for


def _times(what: str, decodes: int) -> float:
    return float(table().set_index("decodes")[what][decodes])


# How many times as fast one iteration of all is as each request by itself, attention apart either way
linear = partial(_times, "linear")
attention = partial(_times, "attention")  # and how many times as fast again with one attention for all
