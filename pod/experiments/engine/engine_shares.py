"""POD's Figure 4 by events in real iterations: the longer the context, the more of an iteration is attention.

Measured: the iteration with the last chunk of a prompt beside 60 chats, all at the same context, in the engine on an
H200: how long the GPU is busy with attention, with the rest of the layers, and with the output head.

Sixty chats at 32K have no room on one GPU, so 8 of the model's 32 layers run, and what they take counts four times.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pandas as pd

from pod.data import a_card, read
from pod.experiments.engine.engine_timeline import Run, Stopwatch
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.show import style
from pod.serving.blocks import PagedPool
from pod.serving.engine import PIECES, Engine
from pod.serving.loop import WallClock, serve
from pod.serving.model import Llama, random_weights
from pod.serving.request import Request
from pod.serving.schedulers import Sarathi
from pod.serving.shapes import SHAPES
from pod.simulate.windows import LOADS, PAGE, Enough, Window

FIGURE = Figure(
    title=f"Where the time of a real hybrid iteration goes as the context grows, on {a_card()}",
    chapter="15",
    method="Llama-3-8B, bf16, random weights: the last chunk of 1,024 tokens of a prompt beside 60 chats at the same "
    "context; CUDA events around every piece of 8 layers, medians of nine iterations, each layer counted four times",
    data=("engine-shares",),
)
RECORDING = "engine-shares"
KEYS, WHOLE = ("attention", "context"), ()
UNITS = ("hopper", "model")
ROUNDS, REPEATS = 1, 9
TIMER = "CUDA events at the start and the end of every piece, summed over the layers; medians"
L2 = "warm"
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
ATTENTIONS = {"fa3": "FlashAttention-3, two calls", "fa3-one": "FlashAttention-3, one call", "hopper": "ours, at once"}
LAYERS, OF = 8, SHAPES["llama-3-8b"].layers
PARTS = {"rest": ("before", "after"), "attention": ("attention",), "head": ("head",)}
COLOURS = {"rest": "linear", "attention": "hybrid", "head": "load"}
WORDS = {"rest": "linear layers and the like", "attention": "attention, with its ms", "head": "output head"}
PLACES = Run(LOADS["llama-3-8b"], "fa3")  # where the stopwatch stands


def cases() -> list[dict]:
    return [{"attention": attention, "context": context} for attention in ATTENTIONS for context in CONTEXTS]


def measure(case: dict) -> dict:
    timing.free_memory()  # of the case before
    engine = Engine(_model(), pool(case["context"]), case["attention"], graphs=PIECES)
    engine.cache.data.normal_()
    return parts([once(engine, case["context"]) for _ in range(REPEATS + 2)][2:])  # the first ones load what they need


@lru_cache(maxsize=1)
def _model() -> Llama:
    import torch

    shape = replace(SHAPES["llama-3-8b"], layers=LAYERS)
    return Llama(shape, random_weights(0, LAYERS, "cuda"), "cuda", torch.bfloat16, context=CONTEXTS[-1] + PAGE)


def chats() -> int:
    return int(paper.value("pod.f04.batch"))


def pool(context: int) -> PagedPool:
    return PagedPool((chats() + 3) * -(-(context + 2) // PAGE), PAGE)


def once(engine: Engine, context: int) -> list[tuple[str, float]]:
    """Every piece of the one iteration, and the milliseconds that the GPU took for it."""
    chunk, random = int(paper.value("pod.f04.chunk")), np.random.default_rng(0)
    scheduler = Sarathi(engine.pool, chats() + 1, chunk=chunk + chats())
    requests = [Request(i, context, 4) for i in range(chats() + 1)]
    *_, last = requests
    for request in requests:
        engine.pool.admit(request)
        request.advance(context - chunk if request is last else context)
    scheduler.running += requests
    engine.texts = {r.id: random.integers(0, engine.model.shape.vocab, r.prompt + 1).tolist() for r in requests}
    engine.texts[last.id].pop()
    engine.clock, engine.marks = WallClock(), []
    watch, watched = Stopwatch(engine.clock), Window(engine, 1)
    watch.on(engine, PLACES)
    try:
        serve([], [scheduler], watched, engine.clock)
    except Enough:
        pass
    watch.off(engine)
    vars(engine.attention).pop("run", None)
    for request in requests:
        engine.pool.release(request)
    return [(piece, start.elapsed_time(end)) for piece, *_, start, end in watch.notes]


def parts(iterations: list[list[tuple[str, float]]]) -> dict:
    """Medians over the iterations, of all of the model's layers."""
    sums = {part: [sum(ms for piece, ms in one if piece in pieces) for one in iterations]
            for part, pieces in PARTS.items()}  # fmt: skip
    times = {part: float(np.median(each)) * (1 if part == "head" else OF / LAYERS) for part, each in sums.items()}
    return {f"{part}_ms": round(ms, 4) for part, ms in times.items()}


# ---------------------------------------------------------------- what it shows


def table() -> pd.DataFrame:
    """A row an attention and context: milliseconds of each part, and attention's share of the iteration, percent."""
    df = read(RECORDING)
    return df.assign(attention_percent=100 * df.attention_ms / df[[f"{part}_ms" for part in PARTS]].sum(axis=1))


def draw(df):
    axes = style.axes(9.5, 3.2, len(ATTENTIONS), sharey=True)
    for ax, (attention, words) in zip(axes, ATTENTIONS.items(), strict=True):
        mine, below = df[df.attention == attention], 0
        whole = mine[[f"{part}_ms" for part in PARTS]].sum(axis=1)
        for part in PARTS:
            share = 100 * mine[f"{part}_ms"] / whole
            bars = ax.bar(range(len(mine)), share, bottom=below, color=style.colour(COLOURS[part]), label=WORDS[part])
            if part == "attention":
                ax.bar_label(bars, [f"{ms:.1f}" for ms in mine.attention_ms], label_type="center", fontsize=8.5)
            below = below + share
        ax.set(xticks=range(len(mine)), xticklabels=[f"{c // 1024}K" for c in mine.context], ylim=(0, 100))
        ax.set_title(words, fontsize=9.5)
    axes[0].set_ylabel("% of the iteration")
    axes[1].set_xlabel("context, tokens")
    return style.legend_outside(axes[0], "lower", 3)


# ---------------------------------------------------------------- what claims ask for


def share(attention: str = "fa3") -> float:
    """Of attention at the paper's 16K, percent."""
    df = table().set_index(["attention", "context"])
    return float(df.attention_percent[attention, int(paper.value("pod.f04.context"))])
