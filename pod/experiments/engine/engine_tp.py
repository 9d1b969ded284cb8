"""The same offline window of Llama-3-8B on one H200 and on two that share every layer.

Measured: Llama-3-8B on one GPU, and shared by two through NCCL, which give the tokens of one: every iteration's time.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd

from pod.data import read
from pod.experiments.engine import engine_host, running
from pod.experiments.engine.engine_runs import WAYS
from pod.lab.figure import Figure
from pod.lab.measure import ranks
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine, answer
from pod.serving.model import Group, Llama, random_weights
from pod.serving.schedulers import Sarathi
from pod.serving.shapes import SHAPES, Shape
from pod.simulate import windows

FIGURE = Figure(
    title="One GPU and two: the same batches, every layer shared",
    chapter="14",
    method="hybrid iterations out of a long offline run of Llama-3-8B, random weights, NCCL; GPU time by CUDA events, "
    "waiting for the other GPU included",
    data=("engine-tp",),
)
RECORDING = "engine-tp"
KEYS, WHOLE = ("run", "iteration"), ()
UNITS = ("hopper", "model")
REPEATS = 1
TIMER = "host clock at every step of an iteration; gpu_ms by CUDA events around it"
L2 = "warm"
GPUS = 2
LOAD = replace(windows.LOADS["llama-3-8b"], iterations=500)
RUNS = {f"llama-3-8b tp{gpus}, {attention}": (gpus, attention)
        for gpus in (1, GPUS) for attention in ("fa3", "hopper", "hopper-serial")}  # fmt: skip
PROMPTS, OUTPUT = (5, 40, 17, 23, 1, 31), 14


def cases() -> list[dict]:
    return [{"run": run, "iteration": i} for run in RUNS for i in range(LOAD.iterations)]


def measure(case: dict) -> dict:
    return _measured()[case["run"]][int(case["iteration"])]


@cache
def _measured() -> dict[str, list[dict]]:
    """All runs of as many GPUs at once: the processes start only once."""
    return {run: rows for gpus in (1, GPUS) for run, rows in start(gpus, "cuda", of(gpus)).items()}


def of(gpus: int) -> dict[str, str]:
    """The runs on so many GPUs, and their attention."""
    return {run: attention for run, (on, attention) in RUNS.items() if on == gpus}


def start(world: int, device: str, runs, load=LOAD, shape: Shape = SHAPES[LOAD.model]) -> dict[str, list[dict]]:
    """What process 0 of `world` measured."""
    return ranks.run(_runs, world, device, runs, load, shape)


def _runs(rank: int, world: int, device: str, runs, load, shape: Shape) -> dict:
    device = ranks.own(rank, device)
    group = Group(rank, world)
    _two_answer_as_one(group, device)
    model = _model(shape, group, device)
    return {run: _window(model, attention, load) for run, attention in runs.items()}


def _two_answer_as_one(group, device: str) -> None:
    """Greedy tokens of a tiny model in float64, chunks, preemptions and CUDA graphs included."""
    import torch
    import torch.distributed as dist

    alone = _answers(Group(), device) if group.rank == 0 else None
    together = _answers(group, device)
    differ = torch.tensor([float(alone != together) if group.rank == 0 else 0.0], device=device)
    dist.broadcast(differ, 0)
    if differ:
        raise RuntimeError(f"{group.size} processes gave other tokens than one")


def _answers(group, device: str) -> list[list[int]] | None:
    import torch

    tiny = Shape("tiny", "Tiny", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=96)
    pool = PagedPool(16, 4, 0.0)  # too few blocks for all
    engine = Engine(Llama(tiny, random_weights(3, 2, device), device, torch.float64, group), pool, "sdpa")
    if group.rank:
        engine.follow()
        return None
    prompts = [np.random.default_rng(i).integers(0, tiny.vocab, n).tolist() for i, n in enumerate(PROMPTS)]
    answers, _ = answer(engine, Sarathi(pool, 8, chunk=9), prompts, OUTPUT)
    engine.close()
    return [a.tokens for a in answers]


def _model(shape: Shape, group, device: str):
    import torch

    dtype = torch.bfloat16 if "cuda" in device else torch.float32
    return Llama(shape, random_weights(0, shape.layers, device), device, dtype, group, context=32 * windows.K)


def _window(model, attention: str, load, graphs: bool | str | None = None) -> list[dict] | None:
    """The iterations of a window, on process 0; the others compute what it sends."""
    engine = Engine(model, load.pool(), attention, graphs=graphs)
    if model.group.rank:
        engine.cache.data.normal_()  # as `prepare` fills it on process 0
        engine.follow()
        return None
    if engine.whole:
        engine.warm(0, load.chunk)
    scheduler = running.prepare(engine, load)
    events = windows.window(load, engine, scheduler, engine.clock)
    engine.close()
    return [running.row(event, *marks) for event, marks in zip(events, engine.marks, strict=True)]


# ---------------------------------------------------------------- what it shows


def table():
    """A row a run: GPUs, attention, iterations, and their medians: milliseconds to the next decision, the GPU's, and
    the share in which the GPU waited for the host."""
    rows = []
    runs = read("engine-tp").groupby("run")
    for gpus in (1, GPUS):
        for attention, name in WAYS.items():
            mine = runs.get_group(f"llama-3-8b tp{gpus}, {attention}")
            taken = np.diff(windows.began(mine.scheduled_ms, mine.end_ms))
            rows.append((gpus, name, len(mine), np.median(taken), mine.gpu_ms[:-1].median()))
    df = pd.DataFrame(rows, columns=["gpus", "attention", "iterations", "ms", "gpu_ms"])
    return df.assign(host_percent=100 * (1 - df.gpu_ms / df.ms))


def draw(df):
    names = [f"{r.gpus} GPU{'s' * (r.gpus > 1)}, {r.attention}" for r in df.itertuples()]
    return engine_host.shares(df, names, [f"{ms:.1f}" for ms in df.ms])


def speedup() -> float:
    """How many times as fast two GPUs are with our kernel."""
    ms = table().set_index(["attention", "gpus"]).ms[WAYS["hopper"]]
    return float(ms[1] / ms[2])
