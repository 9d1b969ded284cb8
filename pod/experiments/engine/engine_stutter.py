"""The stutter of chapter 00 in the real engine: everybody is being answered when a long prompt arrives.

Measured: every iteration of 80 chats at 8K tokens around a prompt of 12,288, Yi-6B, by vLLM's scheduler of 2023 and by
Sarathi's, with FlashAttention-3 in two calls and in one, and with our kernel.
"""

from functools import lru_cache

import numpy as np
import pandas as pd

from pod.data import a_card, read
from pod.experiments.basics import stutter
from pod.experiments.basics.stutter import CHATS, CHUNK, CONTEXT, PROMPT, ROWS
from pod.experiments.engine import running
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.show import style
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine
from pod.serving.loop import WallClock, serve
from pod.serving.request import Request
from pod.serving.schedulers import VLLM, Sarathi
from pod.simulate.windows import PAGE, Enough, Window

FIGURE = Figure(
    title=f"A long prompt arrives while others are being answered, on {a_card()}",
    chapter="14",
    method="Yi-6B, random weights, bf16: 80 chats at 8K tokens, a prompt of 12,288, whole or in chunks, with 1,024 "
    "tokens an iteration, these as CUDA graphs; the second of two runs, the host's clock",
    data=("engine-stutter",),
)
RECORDING = "engine-stutter"
KEYS, WHOLE = ("system", "iteration"), ("system",)
UNITS = ("hopper", "plan", "model")
REPEATS = 1
TIMER = "the host's clock at every decision of the scheduler and when its tokens are out; gpu_ms by CUDA events"
L2 = "warm"
SYSTEMS = {"vLLM, fa3": (VLLM, "fa3"), "Sarathi, fa3": (Sarathi, "fa3"), "Sarathi, fa3-one": (Sarathi, "fa3-one"),
           "Sarathi, hopper": (Sarathi, "hopper")}  # fmt: skip
ITERATIONS, ARRIVES, OUTPUT = 60, 0.2, 100  # seconds; tokens that each has still to get


def cases() -> list[dict]:
    return [{"system": system, "iteration": i} for system in SYSTEMS for i in range(ITERATIONS)]


def measure(case: dict) -> dict:
    return _run(case["system"])[int(case["iteration"])]


@lru_cache(maxsize=1)
def _run(system: str) -> list[dict]:
    timing.free_memory()  # of the system before
    kind, attention = SYSTEMS[system]
    return timed(Engine(running.model("yi-6b"), pool(), attention), kind)


def pool() -> PagedPool:
    return PagedPool(CHATS * -(-(CONTEXT + OUTPUT) // PAGE) + 2 * -(-(PROMPT + OUTPUT) // PAGE), PAGE)


def timed(engine: Engine, kind) -> list[dict]:
    """The second of two runs: the first captures what comes, and loads what is not captured."""
    engine.cache.data.normal_()
    for _ in range(2):
        events = once(engine, kind)
    return [row(event) for event in events]


def once(engine: Engine, kind) -> list:
    scheduler = kind(engine.pool, CHATS + 1, **({"chunk": CHUNK} if kind is Sarathi else {}))
    requests = [Request(i, CONTEXT, OUTPUT) for i in range(CHATS)]
    for request in requests:
        engine.pool.admit(request)
        request.advance(CONTEXT)
    scheduler.running += requests
    requests.append(Request(CHATS, PROMPT, OUTPUT, ARRIVES))
    random = np.random.default_rng(0)
    engine.texts = {r.id: random.integers(0, engine.model.shape.vocab, r.prompt + 1).tolist() for r in requests}
    engine.texts[CHATS].pop()  # whose first answer has not come
    engine.clock, engine.marks, watched = WallClock(), [], Window(engine, ITERATIONS)
    try:
        serve(requests[-1:], [scheduler], watched, engine.clock)
    except Enough:
        pass
    for request in requests:
        engine.pool.release(request)
    return watched.events


def row(event) -> dict:
    times = {"start": event.scheduled, "end": event.end, "gpu": sum(end - start for start, end in event.stages)}
    return {f"{name}_ms": round(1e3 * t, 3) for name, t in times.items()} | {
        "prompt": sum(new for _, new, *_ in event.prefills), "decodes": len(event.decodes)}  # fmt: skip


# ---------------------------------------------------------------- what it shows

SAID = {
    "vLLM, fa3": "The prompt goes first",
    "Sarathi, fa3": "In chunks, FlashAttention-3 in two calls",
    "Sarathi, fa3-one": "In chunks, FlashAttention-3 in one call",
    "Sarathi, hopper": "In chunks, our kernel",
}


def table() -> pd.DataFrame:
    """One row an iteration and row of the picture, as in chapter 00: when it began and ended, in seconds."""
    rows = []
    for r in read(RECORDING).itertuples():
        rows += [(r.system, ROWS[0], r.start_ms / 1e3, r.end_ms / 1e3)] * bool(r.prompt)
        rows += [(r.system, ROWS[1], r.start_ms / 1e3, r.end_ms / 1e3)] * bool(r.decodes)
    return pd.DataFrame(rows, columns=["way", "row", "start", "end"])


def draw(df):
    """When the 80 chats get their tokens."""
    axes = style.axes(9.5, 5.4, rows=len(SAID), sharex=True)
    longest = stutter._longest(df)
    for ax, (way, words) in zip(axes, SAID.items(), strict=True):
        stutter._tokens(ax, df[df.way == way], *longest[way])
        ax.set_title(f"{words}: {1000 * stutter.gaps(df)[way]:.0f} ms of silence", fontsize=10, loc="left")
    axes[-1].set(xlabel="time, s", xlim=(ARRIVES - 0.1, df[df.row == ROWS[0]].end.max() + 0.1))
    return axes[0].figure


# ---------------------------------------------------------------- what claims ask for


def silence(system: str) -> float:
    """Longest wait of a chat between two tokens, ms."""
    return 1000 * stutter.gaps(table())[system]


def silences() -> list[float]:
    """As chapter 00 has them, ms: the prompt first, then in chunks, by FlashAttention-3's faster call and by ours."""
    return [silence("vLLM, fa3"), min(silence("Sarathi, fa3"), silence("Sarathi, fa3-one")), silence("Sarathi, hopper")]


def chunks() -> float:
    """The wait while the prompt goes first over the longest one with chunks, the same attention."""
    return silence("vLLM, fa3") / silence("Sarathi, fa3")


def overlap() -> float:
    """The wait with the faster call of FlashAttention-3 over that with our kernel, both in chunks."""
    _, theirs, ours = silences()
    return theirs / ours
