"""Real runs of the engine on an H200: the same batches, three ways to compute their attention.

Measured: the engine on random weights, three models, attention by FlashAttention-3 and by us: every iteration's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from pod.experiments import Figure
from pod.measure import provenance
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine, answer
from pod.serving.loop import WallClock, serve
from pod.serving.model import Llama, random_weights
from pod.serving.request import Request
from pod.serving.schedulers import Sarathi
from pod.serving.shapes import SHAPES, shape
from pod.serving.workload import Workload
from pod.show import style

FIGURE = Figure(
    id="engine-runs",
    title="The same batches with FlashAttention-3, with ours in turn, and with ours at once",
    chapter="14",
    method="windows of 1,050 to 1,800 iterations out of a long offline run, about a minute each; bf16, random weights; "
    "time from start to end",
    state="recorded",
    data=("engine-runs",),
)
RECORDING = "engine-runs"
KEYS, WHOLE = ("run", "iteration"), ("run",)
UNITS = ("hopper", "model")
REPEATS = 1
K = 1024
PAGE = 256
WATCH_SECONDS = 0.5  # between two looks at clock and power; more looks would hold up launches


@dataclass(frozen=True)
class Load:
    """The first `iterations` of a run. Offline, as many requests run from the start as do in the long run, each with
    another part of its answer behind it: a window out of a long run, without the minutes that lead there. Online,
    requests of `low` to `total` tokens arrive `qps` a second at an idle engine."""

    model: str
    pd: float
    chunk: int
    total: int
    iterations: int
    low: int | None = None
    qps: float | None = None

    @property
    def running(self) -> int:
        """Requests that decode in the long run: each chunk of prompt brings chunk / pd tokens of answers."""
        return 0 if self.qps else round(self.chunk / (self.pd + 1))

    @property
    def blocks(self) -> int:
        return -(-self.total // PAGE) * (self.running + 4 if self.running else 64)

    def workload(self):
        """At most as many requests as the iterations can take in."""
        low = self.low or self.total
        count = 2 + int(self.iterations * self.chunk * (self.pd + 1) / self.pd / low)
        return Workload("uniform", count, self.qps, low=low, high=self.total, pd=self.pd)

    def pool(self):
        return PagedPool(self.blocks, PAGE)

    def scheduler(self, pool=None):
        """With the requests that run from the start; theirs are the first ids."""
        scheduler, first = Sarathi(pool or self.pool(), 256, chunk=self.chunk), self.workload().requests()[0]
        for i in range(self.running):
            done = first.output * i // self.running
            request = Request(i, first.prompt + done, first.output - done)
            scheduler.pool.admit(request)
            scheduler.running.append(request)
            request.advance(request.prompt)
        return scheduler

    def requests(self):
        """Those who arrive."""
        requests = self.workload().requests()
        for request in requests:
            request.id += self.running
        return requests


# The ratios and chunks are those of POD's Figure 12; the requests are as long as one GPU's memory allows. A window
# takes about a minute; that at full load is shorter, as more and more requests wait in it.
FULL, CALM = "llama-3-8b online", "llama-3-8b calm"  # all that FlashAttention-3 can do, and two thirds of it
LOADS = {
    "llama-3-8b": Load("llama-3-8b", 17, 1 * K, 12 * K, 1050),
    "yi-6b": Load("yi-6b", 8, 512, 16 * K, 1800),
    "llama-2-7b": Load("llama-2-7b", 64, 1 * K, 8 * K, 1150),
    FULL: Load("llama-3-8b", 10, 1 * K, 4 * K, 300, low=1 * K, qps=11.0),
    CALM: Load("llama-3-8b", 10, 1 * K, 4 * K, 3600, low=1 * K, qps=7.0),
}
# What matters most comes first, in case time runs out.
OFFLINE = ("llama-3-8b", "yi-6b", "llama-2-7b")
ORDER = [(load, name) for load in ("llama-3-8b", CALM, "yi-6b", "llama-2-7b") for name in ("fa3", "hopper")]
ORDER += [(load, "hopper-serial") for load in reversed(OFFLINE)] + [(FULL, name) for name in ("fa3", "hopper")]
RUNS = {f"{load}, {name}": (LOADS[load], name) for load, name in ORDER}


class Enough(Exception):
    """The iterations that were asked for have run."""


class Window:
    """An executor that ends the run after so many iterations, and keeps them."""

    def __init__(self, executor, most: int):
        self.executor, self.most, self.events = executor, most, []

    def submit(self, batch, event) -> float:
        if len(self.events) == self.most:
            raise Enough
        self.events.append(event)
        return self.executor.submit(batch, event)


def window(load: Load, executor, scheduler, clock=None) -> list:
    """The first iterations of a load on any executor, real or simulated. An event's end is its executor's answer."""
    watched = Window(executor, load.iterations)
    try:
        serve(load.requests(), [scheduler], watched, clock)
    except Enough:
        pass
    return watched.events


def cases() -> list[dict]:
    return [{"run": run, "iteration": i} for run, (load, _) in RUNS.items() for i in range(load.iterations)]


def measure(case: dict) -> dict:
    return _run(case["run"])[int(case["iteration"])]


@lru_cache(maxsize=1)
def _model(name: str):
    import torch

    s = shape(name)
    return Llama(s, random_weights(0, s.layers, "cuda"), "cuda", torch.bfloat16, context=32 * K)


@lru_cache(maxsize=1)
def _run(run: str) -> list[dict]:
    import gc

    import torch

    load, attention = RUNS[run]
    engine, scheduler = ready(load, attention)
    gc.collect()
    gc.freeze()  # as servers do: a walk over all that was made before would stop the host for a whole iteration
    with provenance.watch(WATCH_SECONDS) as watched:
        engine.clock = WallClock()
        events = window(load, engine, scheduler, engine.clock)
    gc.unfreeze()
    state = {name: watched.summary()[name]["median"] for name in ("sm_clock_mhz", "power_w")}  # of the whole run
    rows = [row(event, *marks) | state for event, marks in zip(events, engine.marks, strict=True)]
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    return rows


def ready(load: Load, attention: str):
    """An engine in which everything has run once, and the scheduler of the run. The clock starts."""
    engine = Engine(_model(load.model), load.pool(), attention)
    if load.qps:
        engine.warm(96)
    return engine, prepare(engine, load)


def prepare(engine, load: Load):
    """Run everything once, then put the texts of the load into the engine; its scheduler."""
    engine.cache.data.normal_()  # who runs from the start has keys and values too; zeros would take less power
    random = np.random.default_rng(0)
    text = lambda tokens: random.integers(0, engine.model.shape.vocab, tokens).tolist()  # noqa: E731
    answer(engine, Sarathi(engine.pool, 4, chunk=load.chunk), [text(load.chunk + 100)] * 2, 4)
    scheduler = load.scheduler(engine.pool)
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


def digest(event) -> str:
    """Eight hexadecimal digits of the whole batch: ids, chunks, decodes, preemptions."""
    import zlib

    text = repr((event.prefills, event.decodes, event.decode_context, event.preempted))
    return f"{zlib.crc32(text.encode()):08x}"


# ---------------------------------------------------------------- what it shows

WAYS = {"fa3": "FlashAttention-3, two calls", "hopper-serial": "ours, halves in turn", "hopper": "ours, at once"}


def table():
    """A row a run: milliseconds an iteration (all of the window over its iterations), and the time saved against
    FlashAttention-3 in percent."""
    from pod.measure import gates

    rows = []
    for run, (load, attention) in RUNS.items():
        if not load.qps and run in gates.recorded():
            real = gates.recorded()[run]
            decodes = sum(len(event.decodes) for event in gates.batches(run)) / len(real)
            context = sum(event.decode_context for event in gates.batches(run)) / len(real) / decodes
            ms = 1e3 * (real[-1]["end"] - real[0]["scheduled"]) / len(real)
            rows.append((load.model, WAYS[attention], load.chunk, round(decodes), round(context), ms))
    order = list(WAYS.values())
    df = pd.DataFrame(rows, columns=["model", "attention", "budget", "decodes", "context", "ms"])
    df = df.sort_values("attention", key=lambda names: names.map(order.index), kind="stable", ignore_index=True)
    serial = df[df.attention == WAYS["fa3"]].set_index("model").ms
    return df.assign(saved_percent=100 * (1 - df.ms / df.model.map(serial)))


def draw(df):
    models = list(dict.fromkeys(df.model))
    axes = style.axes(9.5, 2.9, len(models), width_ratios=[len(df[df.model == m]) + 0.5 for m in models])
    colours = dict(zip(WAYS.values(), (style.FRAME, style.colour("load"), style.colour("hybrid")), strict=True))
    for ax, model in zip(axes, models, strict=True):
        mine = df[df.model == model]
        ax.bar(mine.attention, mine.ms, color=mine.attention.map(colours), width=0.7)
        for i, row in enumerate(mine.itertuples()):
            words = f"{row.ms:.1f}" + (f"\n{-row.saved_percent:+.1f} %" if row.saved_percent else "")
            ax.text(i, row.ms, words, ha="center", va="bottom", fontsize=9)
        ax.set_xticks(range(len(mine)), [name.replace(", ", ",\n") for name in mine.attention], fontsize=8.5)
        row = mine.iloc[0]
        batch = f"{row.budget} tokens, {row.decodes} of them chats at {row.context / 1024:.0f}K"
        ax.set_title(f"{SHAPES[model].name}\n{batch}", fontsize=9.5)
        ax.set_ylim(0, 1.25 * df.ms.max())
    axes[0].set_ylabel("ms an iteration, measured")
    return axes[0].figure


def power():
    """Median clock of the SMs in MHz and power in watts, a row a run."""
    from pod.measure import gates

    return pd.read_csv(gates.LOG).drop_duplicates("run").set_index("run")[["sm_clock_mhz", "power_w"]].sort_index()


def saved(model: str = "llama-3-8b", attention: str = "hopper") -> float:
    """Time saved in the whole run against FlashAttention-3, percent."""
    df = table()
    return float(df.saved_percent[(df.model == model) & (df.attention == WAYS[attention])].iloc[0])


# ---------------------------------------------------------------- better halves x fusing


def _faster(model: str, one: str, other: str) -> float:
    ms = table().set_index(["model", "attention"]).ms
    return float(ms[model, WAYS[one]] / ms[model, WAYS[other]])


def halves(model: str = "llama-3-8b") -> float:
    """What the better halves alone bring: two FlashAttention-3 calls over ours in turn."""
    return _faster(model, "fa3", "hopper-serial")


def fusing(model: str = "llama-3-8b") -> float:
    """What computing both at once brings: ours in turn over ours at once."""
    return _faster(model, "hopper-serial", "hopper")


def fused_llama3() -> float:
    """Throughput that fusing adds, %."""
    return 100 * (fusing("llama-3-8b") - 1)


def fused_yi() -> float:
    return 100 * (fusing("yi-6b") - 1)


def fused_llama2() -> float:
    return 100 * (fusing("llama-2-7b") - 1)


def fused_max() -> float:
    return max(fused_llama3(), fused_yi(), fused_llama2())


def least_halves() -> float:
    """Of the run in which least is saved."""
    return halves(min(table().model.unique(), key=saved))


def least_fusing() -> float:
    return fusing(min(table().model.unique(), key=saved))


def least_saved() -> float:
    """Of the models, the least time saved with our kernel at once, percent."""
    return min(saved(model) for model in table().model.unique())
