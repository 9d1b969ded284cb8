"""SARATHI's Figures 7 and 8 in real runs: LLaMA-13B under Orca's scheduler and SARATHI's, from the first prompt to the
last answer.

Measured: every iteration of whole offline runs of five rounds, with FlashAttention-3 in two calls for both schedulers.
A round is as many requests as memory holds at once in the post; all are of one length, with memory reserved for it.
Orca's batches stay together then, for all their answers are equally long: it reads all prompts of a round at once, and
rounds are alike. Five are enough for that, but SARATHI begins and ends with few requests, which a longer run hides.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from pod.data import a_card, kept, read
from pod.experiments.engine import running
from pod.experiments.sarathi import sarathi_07, sarathi_08, sarathi_batches
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import provenance, timing
from pod.lab.show import style
from pod.serving.blocks import ReservedPool
from pod.serving.captured import size_for
from pod.serving.engine import Engine
from pod.serving.events import Iteration, Log
from pod.serving.loop import Ticks, WallClock, serve
from pod.serving.request import Request
from pod.serving.schedulers import SCHEDULERS, Orca, Scheduler
from pod.simulate.scenarios import best_ratio
from pod.simulate.workload import Workload

FIGURE = Figure(
    title=f"SARATHI over Orca in whole runs, LLaMA-13B on {a_card()}",
    chapter="13",
    method="bf16, random weights, FlashAttention-3 in two calls for both; five rounds of a full batch, memory reserved "
    "for each request; iterations as CUDA graphs but Orca's prompts; one run each. From its parts: with those "
    "iterations that have a chunk's size as long as their parts in sarathi-batches. Dotted: the same runs, five rounds "
    "too, on the model's A6000",
    data=("sarathi-runs", "sarathi-batches", "sarathi-07", "sarathi-08"),
)
RECORDING = "sarathi-runs"
KEYS = ("system", "length", "chunk", "pd", "iteration")
WHOLE = KEYS[:-1]
UNITS = ("model",)
REPEATS = 1
TIMER = "the host's clock at every decision of the scheduler; gpu_ms by CUDA events around the launch of an iteration"
L2 = "warm"
MODEL, ATTENTION, PAGE, ROUNDS = "llama-13b", "fa3", 256, 5
ORCA, SARATHI = "orca", "sarathi_v1"
BATCHES = {length: int(paper.value(f"sarathi.f07.batch_{length >> 10}k")) for length in (1024, 2048, 3072)}
RATIOS = {256: (4, 7, 10, 14, 20, 30, 60), 128: (4, 7, 14), 512: (7, 14, 30, 60)}  # of each chunk
CHUNK = 256  # of Figure 7, and what stands where Orca has none


class Setting(NamedTuple):
    """One run."""

    system: str
    length: int
    chunk: int
    pd: int

    @property
    def batch(self) -> int:
        return BATCHES[self.length]


def best(length: int) -> int:
    """P:D at which chunks and decodes of Figure 7 run out together."""
    return round(best_ratio(CHUNK, BATCHES[length]))


def settings() -> list[Setting]:
    """Those that are compared follow each other, as the GPU's clock may drift; what matters most comes first."""
    short, *longer = BATCHES
    ratios = sorted({ratio for some in RATIOS.values() for ratio in some}, key=lambda r: (r != best(short), r))
    made = []
    for ratio in ratios:
        made.append(Setting(ORCA, short, CHUNK, ratio))
        made += [Setting(SARATHI, short, chunk, ratio) for chunk, some in RATIOS.items() if ratio in some]
    return made + [Setting(system, length, CHUNK, best(length)) for length in longer for system in (ORCA, SARATHI)]


def cases() -> list[dict]:
    """Nobody's time decides who is in a batch, so it is known how many iterations each run has."""
    return [dict(zip(KEYS, (*each, i), strict=True)) for each in settings() for i in range(len(batches(each)))]


def measure(case: dict) -> dict[str, float]:
    system, *numbers = (case[key] for key in WHOLE)
    return _run(Setting(system, *map(int, numbers)))[int(case["iteration"])]


@lru_cache(maxsize=1)
def _run(setting: Setting) -> list[dict]:
    return timed(_engine(setting.length), setting)


@lru_cache(maxsize=1)
def _engine(length: int) -> Engine:
    timing.free_memory()
    return warmed(Engine(running.model(MODEL, max(BATCHES)), pool(length), ATTENTION), length)


def pool(length: int) -> ReservedPool:
    return ReservedPool(BATCHES[length] * length // PAGE, length, PAGE)


def scheduler(setting: Setting, pool: ReservedPool) -> Scheduler:
    options = {"chunk": setting.chunk} if setting.system == SARATHI else {}
    return SCHEDULERS[setting.system](pool, setting.batch, **options)


def requests(setting: Setting) -> list[Request]:
    work = Workload("uniform", ROUNDS * setting.batch, low=setting.length, high=setting.length, pd=setting.pd)
    return work.requests()


def batches(setting: Setting) -> list[Iteration]:
    """The batches that come."""
    return serve(requests(setting), [scheduler(setting, pool(setting.length))], Ticks()).iterations


def warmed(engine: Engine, length: int) -> Engine:
    """After a round of Orca's prompts, so that libraries have set up what their size needs. In the cache lie random
    keys and values; zeros would take less power."""
    for layer in engine.cache.data:
        layer.normal_()
    serve_all(engine, [Request(i, length - 2, 2) for i in range(BATCHES[length])], Orca(engine.pool, BATCHES[length]))
    return engine


def serve_all(engine: Engine, asked: list[Request], scheduler: Scheduler) -> Log:
    """Random prompts; the clock starts with them."""
    random = np.random.default_rng(0)
    engine.texts = {r.id: random.integers(0, engine.model.shape.vocab, r.prompt).tolist() for r in asked}
    engine.held.clear()
    engine.marks, engine.clock = [], WallClock()
    return serve(asked, [scheduler], engine, engine.clock)


def timed(engine: Engine, setting: Setting) -> list[dict]:
    """A row an iteration, on an engine that has captured all that comes but Orca's prompts, which are too many."""
    import torch

    with torch.inference_mode():
        for size in sizes(setting) if engine.whole else ():
            engine.whole.made_for(*size)
    with running.unswept(), provenance.watch(running.WATCH_SECONDS) as watched:
        log = serve_all(engine, requests(setting), scheduler(setting, engine.pool))
    state = running.state(watched)
    return [row(event) | state for event in log.iterations]


def sizes(setting: Setting) -> list[tuple[int, int, int]]:
    """(tokens, sequences, chunks) of every iteration, the largest first."""
    return running.sizes(batches(setting))


def row(event: Iteration) -> dict[str, float]:
    """When the scheduler was asked and when the tokens were out, in milliseconds since the start; how long the GPU
    worked; who was in the batch, and how many had all of their answer with it."""
    times = {"scheduled": event.scheduled, "end": event.end, "gpu": sum(end - start for start, end in event.stages)}
    return {f"{name}_ms": round(1e3 * t, 3) for name, t in times.items()} | running.batch(event)


# ---------------------------------------------------------------- what it shows


@kept(RECORDING)  # its claims ask for it a dozen times
def table() -> pd.DataFrame:
    """A row a run of SARATHI: requests a minute of Orca and of SARATHI; what SARATHI gains, of the whole run, of its
    middle, and of the whole run if its chunks took as long as their parts; the longest gap between two tokens of
    both, in milliseconds."""
    named = read(RECORDING).sort_values("iteration", kind="stable").groupby(list(WHOLE))
    done = {Setting(*name): run for name, run in named}
    rows = []
    for run in (run for run in settings() if run.system == SARATHI and run in done):
        both = [done[run._replace(system=ORCA, chunk=CHUNK)], done[run]]
        rates, middles = [rate(each) for each in both], [middle(each) for each in both]
        gain, gaps = rates[1] / rates[0], [longest_gap(each) for each in both]
        gains = gain, middles[1] / middles[0], gain * sooner(done[run], run)
        rows.append((*run[1:], run.batch, *rates, *gains, *gaps))
    columns = [*WHOLE[1:], "batch", "orca_requests_per_minute", "sarathi_requests_per_minute", "gain", "middle_gain",
               "gain_from_parts", "orca_longest_gap_ms", "longest_gap_ms"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns).sort_values(["length", "chunk", "pd"], ignore_index=True)


def rate(run: pd.DataFrame) -> float:
    """Requests a minute, from the first prompt to the last answer."""
    return 60_000 * run.finished.sum() / (run.end_ms.iloc[-1] - run.scheduled_ms.iloc[0])


def middle(run: pd.DataFrame) -> float:
    """Requests a minute from the first answer's end to the last piece of a prompt: then as many as memory holds have
    been there from the start, and there are prompts for all who leave. Of Orca it is some whole rounds."""
    first, last = run.finished.to_numpy().argmax(), run.prompt.to_numpy().nonzero()[0][-1]
    if last <= first:
        return float("nan")
    return 60_000 * run.finished.iloc[first + 1 : last].sum() / (run.scheduled_ms.iloc[last] - run.end_ms.iloc[first])


def longest_gap(run: pd.DataFrame) -> float:
    """Milliseconds between two tokens of a request. Nobody is preempted, so it is the longest from one iteration's end
    to the next one's, where that has decodes."""
    return float(run.end_ms.diff()[run.decodes > 0].max())


def chunks(run: pd.DataFrame, chunk: int) -> pd.DataFrame:
    """Iterations with some of a prompt whose graph has a chunk's size."""
    sizes = (run.prompt + run.decodes).map(lambda tokens: size_for(tokens, 1))
    return run[(run.prompt > 0) & (sizes == chunk)]


def sooner(run: pd.DataFrame, setting: Setting) -> float:
    """How many times as fast a run would be if the GPU took for its chunks what their parts take. Parts were timed at
    the shortest length only."""
    if setting.length != sarathi_batches.CONTEXT:
        return float("nan")
    mine, took = chunks(run, setting.chunk), run.end_ms.iloc[-1] - run.scheduled_ms.iloc[0]
    return took / (took - (mine.gpu_ms - sarathi_batches.from_parts(setting.chunk, mine.decodes)).sum())


def draw(df):
    """At each ratio of the shortest requests; the model's A6000 dotted."""
    ax = style.axes(8.5, 3.6)
    foretold, batch = sarathi_08.table(short=True), BATCHES[min(BATCHES)]
    for chunk, colour in zip(sarathi_08.CHUNKS, style.WORKERS, strict=False):
        mine, model = (each[each.chunk == chunk] for each in (figure_8(df), foretold))
        ax.axvline(best_ratio(chunk, batch), color=colour, linewidth=0.6)
        ax.plot(model.pd, model.gain, ":", linewidth=1.3, color=colour)
        ax.plot(mine.pd, mine.gain, "o-", markersize=4, color=colour)
        place = ((6, 6), "left") if chunk > 128 else ((-9, -8), "right")  # right of it lies another line
        ax.annotate(f"chunks\nof {chunk}", (mine.pd.iloc[-1], mine.gain.iloc[-1]), place[0], ha=place[1],
                    va="center", textcoords="offset points", color=colour, fontsize=9)  # fmt: skip
    stated = paper.value("sarathi.f07.gain")
    ax.axhline(stated, color=style.INK, linestyle="--", linewidth=1)
    ax.text(97, stated - 0.015, f"post, three lengths: {stated:g}", fontsize=9, ha="right", va="top")
    ax.axhline(1, color=style.INK, linewidth=0.8)
    ax.set(xscale="log", xlabel="P:D", xlim=(2, 100), ylim=(0.62, 1.34), ylabel="throughput over Orca")
    style.ticks(ax, sorted({2, *figure_8(df).pd, foretold.pd.max()}))
    words = f"solid: {a_card()}, measured; dotted: the model's A6000; upright: the formula, less the decodes' rows"
    ax.set_title(words, fontsize=9, loc="left")
    return ax.figure


def lengths(df: pd.DataFrame) -> pd.DataFrame:
    """The lengths of Figure 7, each at its ratio: throughput over Orca of the whole run and of its middle; of the
    model's A6000, in a run as short, and in one of many more requests."""
    models = {name: sarathi_07.table(short).gain for name, short in (("short", True), ("long", False))}
    mine = figure_7(df).assign(**models).set_index(["length", "pd"])
    columns = {"gain": "whole run", "middle_gain": "its middle", "short": "the model's A6000",
               "long": f"the model, {sarathi_07.REQUESTS} requests"}  # fmt: skip
    return mine[list(columns)].rename(columns=columns)


def ratios(df: pd.DataFrame) -> pd.DataFrame:
    """Throughput over Orca of whole runs, of the same if the GPU took for each chunk what its parts take, one by one,
    and of the runs' middle; the longest gaps of both."""
    columns = {"gain": "whole run", "gain_from_parts": "if chunks took what their parts take",
               "middle_gain": "its middle", "longest_gap_ms": "longest gap, ms",
               "orca_longest_gap_ms": "Orca's"}  # fmt: skip
    return figure_8(df).set_index(["chunk", "pd"])[list(columns)].rename(columns=columns)


def figure_7(df: pd.DataFrame) -> pd.DataFrame:
    """Its three lengths at the ratio that suits SARATHI best by the formula."""
    return df[(df.chunk == CHUNK) & (df.pd == df.length.map(best))].reset_index(drop=True)


def figure_8(df: pd.DataFrame) -> pd.DataFrame:
    return df[df.length == min(BATCHES)]


# ---------------------------------------------------------------- what claims ask for


def gain(length: int = 1024, column: str = "gain") -> float:
    """Throughput over Orca at the ratio of the formula."""
    return float(figure_7(table()).set_index("length")[column][length])


middle_gain = partial(gain, column="middle_gain")  # the same without SARATHI's beginning and end


def least_gain() -> float:
    """Over all chunks and ratios."""
    return float(figure_8(table()).gain.min())


def gain_from_parts(chunk: int = CHUNK) -> float:
    """Throughput over Orca at the ratio of the formula for chunks of 256, if its chunks took as long as their parts."""
    mine = _of_chunk(chunk).set_index("pd")
    return float(mine.gain_from_parts[best(min(BATCHES))])


def over_parts(chunk: int = CHUNK) -> float:
    """Median time of an iteration of a chunk's size over that of its parts, one by one, in all runs of it."""
    runs = read(RECORDING)
    mine = runs[(runs.system == SARATHI) & (runs.length == sarathi_batches.CONTEXT) & (runs.chunk == chunk)]
    mine = chunks(mine, chunk)
    return float((mine.gpu_ms / sarathi_batches.from_parts(chunk, mine.decodes)).median())


def most_gain(chunk: int) -> float:
    """Over all its ratios."""
    return float(_of_chunk(chunk).gain.max())


def _of_chunk(chunk: int) -> pd.DataFrame:
    df = figure_8(table())
    return df[df.chunk == chunk].reset_index(drop=True)


def best_over_formula(chunk: int = CHUNK) -> float:
    """P:D of the largest gain over C / (B - 1)."""
    mine = _of_chunk(chunk)
    return float(mine.pd[mine.gain.idxmax()]) / best_ratio(chunk, mine.batch[0], aligned=False)


def loses_from(chunk: int = CHUNK) -> float:
    """P:D from which on Orca is ahead, of the best one and those above it; infinite where it never is."""
    mine = _of_chunk(chunk)
    behind = mine.pd[(mine.gain < 1) & (mine.pd >= mine.pd[mine.gain.idxmax()])]
    return float(behind.min()) if len(behind) else float("inf")
