"""A pipeline of two H200s, whole prompts against chunks: SARATHI's Figures 1, 2 and 9 in the small, measured.

Measured: LLaMA-13B's shape in two stages, a GPU each, after these have given the tokens of one: when each stage had
every micro-batch of 128 requests by Orca's scheduler and by SARATHI's; and one of two replicas by Orca's.
"""

import json
from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from itertools import count

import numpy as np
import pandas as pd

from pod.data import read
from pod.experiments.engine import running
from pod.lab.figure import Figure
from pod.lab.measure import ranks, timing
from pod.lab.show import style
from pod.lab.show.serving import bubble_share, stages_on
from pod.serving import engine
from pod.serving.blocks import PagedPool
from pod.serving.captured import LARGEST
from pod.serving.events import Iteration, Log
from pod.serving.loop import Pipelined, WallClock, serve
from pod.serving.model import Llama, random_weights
from pod.serving.request import Request
from pod.serving.schedulers import Sarathi
from pod.serving.shapes import SHAPES, Shape
from pod.serving.stages import Line, Part, Pipeline, Stage, answer
from pod.simulate.metrics import bubbles
from pod.simulate.run import Setup
from pod.simulate.windows import PAGE, digest
from pod.simulate.workload import Workload

FIGURE = Figure(
    title="A pipeline of two GPUs: whole prompts leave holes, chunks fill them",
    chapter="13",
    method="128 requests of 1K to 4K tokens, Zipf 0.4, P:D 10, chunk 256; LLaMA-13B's shape, random weights, bf16, our "
    "fused attention; two micro-batches of 27, or 27 at once on a replica; NCCL; iterations of up to 2,048 tokens as "
    "CUDA graphs; one run each",
    data=("engine-pp", "engine-pp-foretold"),
)
RECORDING = "engine-pp"
KEYS, WHOLE = ("system", "iteration"), ()
UNITS = ("hopper", "plan", "model")
REPEATS = 1
TIMER = "the host's clock at every decision of the scheduler and when its tokens are out; stages by CUDA events"
L2 = "warm"
GPUS, ATTENTION = 2, "hopper"
FORETOLD = "engine-pp-foretold"  # by engine_pp_foretold.py
SYSTEMS = {"Orca": ("orca", 2), "SARATHI": ("sarathi_v1", 2), "replicas, Orca": ("orca", 1)}  # scheduler, stages
PROMPTS, OUTPUT = (5, 40, 17, 23, 1, 31), 14


@dataclass(frozen=True)
class Load:
    """The same requests for all systems; replicas share them, and one is run. Everybody has as many at once."""

    base: Setup
    work: Workload

    def setup(self, system: str) -> Setup:
        scheduler, stages = SYSTEMS[system]
        blocks = stages * self.base.max_batch * -(-self.base.max_tokens // self.base.block_size)
        return replace(self.base, scheduler=scheduler, pp=stages, blocks=blocks)

    def requests(self, system: str) -> list[Request]:
        return replace(self.work, count=self.work.count * SYSTEMS[system][1] // GPUS).requests()

    def batches(self, system: str) -> Log:
        """Of a run, without its times: all is there from the start, so nobody's time decides who is in a batch."""
        return serve(self.requests(system), self.setup(system).lanes(), InOrder())


class InOrder:
    """An executor whose batches end in the order in which they began."""

    def __init__(self) -> None:
        self.ends = count(1)

    def submit(self, batch, event) -> float:
        return float(next(self.ends))


LOAD = Load(Setup("llama-13b", "h200", host="none", chunk=256, max_batch=27, max_tokens=4096, block_size=PAGE),
            Workload("zipf", 128, low=1024, high=4096, pd=10, theta=0.4))  # fmt: skip


def cases() -> list[dict]:
    batches = {system: LOAD.batches(system).iterations for system in SYSTEMS}
    return [{"system": system, "iteration": i} for system, each in batches.items() for i in range(len(each))]


def measure(case: dict) -> dict:
    return _measured()[case["system"]][int(case["iteration"])]


@cache
def _measured() -> dict[str, list[dict]]:
    """All runs at once: the processes start only once."""
    return ranks.run(runs, GPUS, "cuda")


def runs(rank: int, world: int, device: str, load=LOAD, shape: Shape = SHAPES[LOAD.base.model], attention=ATTENTION):
    """What process 0 measured, by system."""
    device = ranks.own(rank, device)
    with Line(rank, world) as line:
        stages_answer_as_one(line, device)
        same = {"same_percent": same_percent(line, device, attention)}
        found = _timed(line, device, load, shape, attention)
    if rank == 0:
        with Line() as alone:
            found |= _timed(alone, device, load, shape, attention)
    return {system: [row(event) | same for event in log.iterations] for system, log in found.items()}


def _timed(line: Line, device: str, load: Load, shape: Shape, attention: str) -> dict[str, Log]:
    """The systems that have as many stages as this line."""
    timing.free_memory()  # of who was here before
    systems = [system for system, (_, stages) in SYSTEMS.items() if stages == line.size]
    model = Part(shape, random_weights(0, shape.layers, device), line, device, _narrow(device), load.base.max_tokens)
    stage = Stage(model, load.setup(systems[0]).blocks, load.base.block_size, attention)
    stage.warm(LARGEST)
    few = [Request(i, load.base.max_tokens // 2, 4) for i in range(4)]
    _run(stage, load.setup(systems[0]), few)  # what is not captured, and NCCL, for the first time
    with running.unswept():
        found = {system: _run(stage, load.setup(system), load.requests(system)) for system in systems}
    return {} if line.rank else found


def _run(stage: Stage, setup: Setup, requests: list[Request]) -> Log | None:
    if stage.line.rank:
        return stage.follow()
    pipeline, random = Pipeline(stage, setup.lanes()), np.random.default_rng(0)
    pipeline.texts = {r.id: random.integers(0, stage.model.shape.vocab, r.prompt).tolist() for r in requests}
    pipeline.clock = WallClock()
    log = serve(requests, pipeline.lanes, pipeline, pipeline.clock, kind=Pipelined)
    pipeline.close()
    return log


def row(event: Iteration, digits: int = 3) -> dict:
    """Milliseconds since the start: the scheduler is asked, the tokens are out, each stage begins and ends."""
    times = {"scheduled": event.scheduled, "end": event.end}
    for i, (begin, end) in enumerate(event.stages):
        times |= {f"begin_{i}": begin, f"end_{i}": end}
    return {f"{name}_ms": round(1e3 * t, digits) for name, t in times.items()} | {"digest": digest(event)}


# ---------------------------------------------------------------- the same tokens


def stages_answer_as_one(line: Line, device: str) -> None:
    """Greedy tokens of a tiny model in float64, chunks and preemptions included."""
    import torch

    tiny = Shape("tiny", "Tiny", layers=3, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=96)
    texts = [np.random.default_rng(i).integers(0, tiny.vocab, n).tolist() for i, n in enumerate(PROMPTS)]
    together = _answers(line, tiny, device, torch.float64, "sdpa", texts, 4, 16, 9)
    if line.rank == 0:
        pool = PagedPool(60, 4)
        alone = engine.Engine(Llama(tiny, random_weights(3, 3, device), device, torch.float64), pool, "sdpa")
        answers, _ = engine.answer(alone, Sarathi(pool, 8, chunk=9), texts, OUTPUT)
        if together != [a.tokens for a in answers]:
            raise RuntimeError(f"{line.size} stages gave other tokens than one device")


def same_percent(line: Line, device: str, attention: str) -> float | None:
    """Of the tokens of a small model with the attention that is measured, how many one stage gives too."""
    small = Shape("small", "Small", layers=3, hidden=512, q_heads=8, kv_heads=8, head_dim=128, ffn=1024, vocab=4096)
    texts = [np.random.default_rng(i).integers(0, small.vocab, 20 * n).tolist() for i, n in enumerate(PROMPTS)]
    rest = (small, device, _narrow(device), attention, texts, PAGE, 20, 256)
    together = _answers(line, *rest)
    if line.rank:
        return None
    with Line() as one:
        pairs = zip(sum(together, []), sum(_answers(one, *rest), []), strict=True)
    return 100 * float(np.mean([a == b for a, b in pairs]))


def _answers(line: Line, shape: Shape, device: str, dtype, attention: str, texts, block: int, blocks: int, chunk: int):
    """Of two lanes, on as many stages as there are."""
    stage = Stage(Part(shape, random_weights(3, shape.layers, device), line, device, dtype), GPUS * blocks, block,
                  attention)  # fmt: skip
    if line.rank:
        return stage.follow()
    waiting = deque()
    lanes = [Sarathi(PagedPool(blocks, block, 0.0), 8, waiting, chunk=chunk) for _ in range(GPUS)]
    answers, _ = answer(pipeline := Pipeline(stage, lanes), texts, OUTPUT)
    pipeline.close()
    return [a.tokens for a in answers]


def _narrow(device: str):
    import torch

    return torch.bfloat16 if "cuda" in device else torch.float32


# ---------------------------------------------------------------- what it shows

PERCENTILES = (5, *range(10, 100, 10), 95)
WINDOW = 0.5  # seconds out of the middle
NAMES = {"Orca": "whole prompts", "SARATHI": "chunks of 256", "replicas, Orca": "two replicas, whole prompts"}


@cache
def log(system: str, name: str = RECORDING) -> Log:
    """A run by the times of this table. Who is in its batches was written down by the simulator, which forms the same.
    The clocks of a GPU and of a host are compared anew at each batch, so that two neighbours could overlap by some
    microseconds."""
    told, mine = (_rows(each, system) for each in (FORETOLD, name))
    if mine.digest.tolist() != told.digest.tolist():
        raise ValueError(f"digest: got {name} with other batches than {system} forms, allowed are the same ones")
    free, events = [0.0] * SYSTEMS[system][1], []
    for batch, times in zip(told.itertuples(), mine.to_dict("records"), strict=True):
        chunks, decodes = [tuple(chunk) for chunk in json.loads(batch.prefills)], json.loads(batch.decodes)
        event = Iteration(batch.lane, times["scheduled_ms"] / 1e3, times["end_ms"] / 1e3, chunks, decodes,
                          batch.decode_context)  # fmt: skip
        for i, before in enumerate(free):
            begin, free[i] = max(before, times[f"begin_{i}_ms"] / 1e3), times[f"end_{i}_ms"] / 1e3
            event.stages.append((begin, free[i]))
        events.append(event)
    requests = [(r.id, r.arrival, r.prompt, r.output) for r in LOAD.requests(system)]
    return Log(requests=requests, iterations=events)


def _rows(name: str, system: str) -> pd.DataFrame:
    df = read(name)
    return df[df.system == system].sort_values("iteration", kind="stable")


def seconds(run: Log) -> float:
    return max(event.end for event in run.iterations)


def waits(run: Log) -> np.ndarray:
    """Percentiles of the seconds that a request was in the pipeline and on no stage."""
    return np.percentile(list(bubbles(run).values()), PERCENTILES)


def table() -> pd.DataFrame:
    """A row a system: seconds until all are answered, the share of the stages' time without work, and percentiles of a
    request's bubble time in seconds; and what the simulator says of the same batches on analytical H200s."""
    rows = []
    for system in SYSTEMS:
        run, model = log(system), log(system, FORETOLD)
        idle = 100 * bubble_share(run, 0.0, seconds(run))
        told = [np.percentile(list(bubbles(each).values()), 50) for each in (run, model)]
        told = told if len(run.iterations[0].stages) > 1 else [None, None]
        rows.append((system, len(run.requests), seconds(run), idle, told[0], seconds(model), told[1]))
    columns = ["system", "requests", "seconds", "idle_percent", "bubble_p50", "simulated_seconds",
               "simulated_bubble_p50"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def draw(df):
    """Two windows of the pipeline, then who waited how long, and when all was done."""
    from matplotlib import pyplot as plt

    piped = [system for system, (_, stages) in SYSTEMS.items() if stages > 1]
    figure, axes = plt.subplot_mosaic([[system] * 2 for system in piped] + [["waits", "times"]], figsize=(9.5, 6.4),
                                      dpi=style.DPI, layout="constrained", height_ratios=[1, 1, 1.7])  # fmt: skip
    for system in piped:
        run, idle = log(system), df.set_index("system").idle_percent[system]
        start = run.iterations[len(run.iterations) // 2].scheduled
        stages_on(axes[system], run, start, start + WINDOW)
        axes[system].set_title(f"{NAMES[system]}: stages idle {idle:.0f} % of the run", fontsize=10, loc="right")
    axes[piped[0]].set_xlabel("")
    colours = dict(zip(SYSTEMS, (style.WORKERS[1], style.WORKERS[2], style.FRAME), strict=True))
    for system, at, side in zip(piped, (6, 4), ("right", "left"), strict=True):
        x, tone = waits(log(system)), colours[system]
        style.tidy(axes["waits"]).plot(x, PERCENTILES, "o-", markersize=4, color=tone)
        middle = x[PERCENTILES.index(50)]
        axes["waits"].plot(middle, 50, "o", markersize=8, color=tone)
        words, away = f"{NAMES[system]},\nmedian {middle:.2g} s", 9 if side == "left" else -9
        axes["waits"].annotate(words, (x[at], PERCENTILES[at]), (away, 0), color=tone, textcoords="offset points",
                               ha=side, va="center", fontsize=9)  # fmt: skip
    axes["waits"].set(xscale="log", xlabel="bubble time of a request, s", ylabel="% of requests", ylim=(0, 100))
    _times(style.tidy(axes["times"]), df, colours)
    return figure


def _times(ax, df, colours) -> None:
    ax.barh([NAMES[system] for system in df.system], df.seconds, color=df.system.map(colours))
    ax.plot(df.simulated_seconds, range(len(df)), "|", color=style.INK, markersize=16, label="simulated")
    for i, value in enumerate(df.seconds):
        ax.text(max(value, df.simulated_seconds[i]), i, f" {value:.1f}", va="center", fontsize=9)
    ax.set(xlabel="seconds until all are answered", xlim=(0, 1.2 * max(df.seconds.max(), df.simulated_seconds.max())))
    ax.invert_yaxis()
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.1)


# ---------------------------------------------------------------- what claims ask for


def bubble_gain() -> float:
    """Median bubble time of a request, Orca's over SARATHI's."""
    median = table().set_index("system").bubble_p50
    return float(median["Orca"] / median["SARATHI"])


def sooner(than: str = "Orca") -> float:
    """How many times as long another system takes as SARATHI on the pipeline."""
    taken = table().set_index("system").seconds
    return float(taken[than] / taken["SARATHI"])


def foretold() -> float:
    """How much sooner SARATHI is than Orca's scheduler, over what the simulator says."""
    model = table().set_index("system").simulated_seconds
    return sooner() * float(model["SARATHI"] / model["Orca"])


def same() -> float:
    """Tokens that two stages and one have in common, percent."""
    return float(read(RECORDING).same_percent.min())
