"""The engine with every layer shared by two GPUs: first that two answer as one does, then every iteration's time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from pod.measure import ranks
from pod.measure.suites import engine_runs
from pod.serving.shapes import SHAPES, Shape

DOC = "Llama-3-8B shared by two GPUs through NCCL, after two have given the tokens of one: every iteration's time."
KEYS, WHOLE = ("run", "iteration"), ()
UNITS = ("hopper", "model")
REPEATS = 1
GPUS = 2
LOAD = replace(engine_runs.LOADS["llama-3-8b"], iterations=1500)
RUNS = {f"llama-3-8b tp{GPUS}, {attention}": attention for attention in ("fa3", "hopper", "hopper-serial")}
PROMPTS, OUTPUT = (5, 40, 17, 23, 1, 31), 14


def cases() -> list[dict]:
    return [{"run": run, "iteration": i} for run in RUNS for i in range(LOAD.iterations)]


def measure(case: dict) -> dict:
    return _measured()[case["run"]][int(case["iteration"])]


@cache
def _measured() -> dict[str, list[dict]]:
    """All runs at once: the processes start only once."""
    return start(GPUS, "cuda")


def start(world: int, device: str, runs=RUNS, load=LOAD, shape: Shape = SHAPES[LOAD.model]) -> dict[str, list[dict]]:
    """What process 0 of `world` measured."""
    return ranks.run(_runs, world, device, runs, load, shape)


def _runs(rank: int, world: int, device: str, runs, load, shape: Shape) -> dict:
    import torch

    from pod.serving.model import Group

    if device == "cuda":
        device = f"cuda:{rank}"
    torch.set_num_threads(1)
    group = Group(rank, world)
    _two_answer_as_one(group, device)
    model = _model(shape, group, device)
    return {run: _window(model, attention, load) for run, attention in runs.items()}


def _two_answer_as_one(group, device: str) -> None:
    """Greedy tokens of a tiny model in float64, chunks, preemptions and CUDA graphs included."""
    import torch
    import torch.distributed as dist

    from pod.serving.model import Group

    alone = _answers(Group(), device) if group.rank == 0 else None
    together = _answers(group, device)
    differ = torch.tensor([float(alone != together) if group.rank == 0 else 0.0], device=device)
    dist.broadcast(differ, 0)
    if differ:
        raise RuntimeError(f"{group.size} processes gave other tokens than one")


def _answers(group, device: str) -> list[list[int]] | None:
    import numpy as np
    import torch

    from pod.serving.blocks import PagedPool
    from pod.serving.engine import Engine, answer
    from pod.serving.model import Llama, random_weights
    from pod.serving.schedulers import Sarathi

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

    from pod.serving.model import Llama, random_weights

    dtype = torch.bfloat16 if "cuda" in device else torch.float32
    return Llama(shape, random_weights(0, shape.layers, device), device, dtype, group, context=32 * engine_runs.K)


def _window(model, attention: str, load) -> list[dict] | None:
    """The iterations of a window, on process 0; the others compute what it sends."""
    from pod.serving.engine import Engine

    engine = Engine(model, load.pool(), attention)
    if model.group.rank:
        engine.cache.data.normal_()  # as `prepare` fills it on process 0
        engine.follow()
        return None
    scheduler = engine_runs.prepare(engine, load)
    events = engine_runs.window(load, engine, scheduler, engine.clock)
    engine.close()
    return [engine_runs.row(event, *marks) for event, marks in zip(events, engine.marks, strict=True)]
