"""Two H200s that share every layer, with whole iterations as CUDA graphs: the same tokens, and who waits for whom?

Measured: a window of Llama-3-8B shared by two GPUs, whole iterations in graphs and only pieces of decodes, after both
have given the logits of one GPU.
"""

from dataclasses import replace
from functools import cache

import pandas as pd

from pod.data import read
from pod.experiments.engine import engine_host, engine_tp, engine_windows
from pod.lab.figure import Figure
from pod.lab.measure import check_engine, ranks
from pod.serving.engine import PIECES
from pod.serving.engine import WHOLE as IN_ONE
from pod.serving.model import Group
from pod.serving.shapes import SHAPES, Shape

FIGURE = Figure(
    title="Two GPUs that share every layer: whole iterations as CUDA graphs, and only pieces of decodes",
    says="On two GPUs whole iterations as graphs save a tenth",
    chapter="14",
    method="300 iterations out of a long offline run of Llama-3-8B, our kernel, random weights, NCCL; GPU time by CUDA "
    "events, waiting for the other GPU included",
    data=("engine-tp-graphs",),
)
RECORDING = "engine-tp-graphs"
KEYS, WHOLE = ("graphs", "iteration"), ()
UNITS = ("hopper", "plan", "model")
REPEATS = 1
TIMER = engine_windows.TIMER
L2 = "warm"
GPUS, ATTENTION = 2, "hopper"
LOAD = replace(engine_tp.LOAD, iterations=300)
GRAPHS = (IN_ONE, PIECES)


def cases() -> list[dict]:
    return [{"graphs": graphs, "iteration": i} for graphs in GRAPHS for i in range(LOAD.iterations)]


def measure(case: dict) -> dict:
    return _measured()[case["graphs"]][int(case["iteration"])]


@cache
def _measured() -> dict[str, list[dict]]:
    return ranks.run(runs, GPUS, "cuda")


def runs(rank: int, world: int, device: str, load=LOAD, shape: Shape = SHAPES[LOAD.model], attention=ATTENTION) -> dict:
    """What process 0 measured; the others compute what it sends."""
    device = ranks.own(rank, device)
    group = Group(rank, world)
    differ = agreement(group, device, attention)
    model = engine_tp._model(shape, group, device)
    windows = {graphs: engine_tp._window(model, attention, load, graphs) for graphs in GRAPHS}
    return {graphs: [row | differ for row in rows or ()] for graphs, rows in windows.items()}


def agreement(group, device: str, attention: str) -> dict[str, float]:
    """Largest errors of a logit against float32 on one GPU: of torch's own attention there, of ours on both with
    graphs and without; and how many of the likeliest tokens are the same with and without, percent."""
    import torch
    import torch.distributed as dist

    def logits(attention, graphs, dtype, group=None):
        return check_engine.run(attention, graphs, dtype, page=256, group=group, device=device)[0]

    narrow = torch.bfloat16 if "cuda" in device else torch.float32
    whole, eager = (logits(attention, graphs, narrow, group) for graphs in (IN_ONE, False))
    found = torch.zeros(4, dtype=torch.float64, device=device)
    if group.rank == 0:
        truth = logits("sdpa", False, torch.float32)
        errors = [(x - truth).abs().max() for x in (logits("sdpa", False, narrow), whole, eager)]
        found = torch.stack([*errors, 100 * (whole.argmax(-1) == eager.argmax(-1)).double().mean()]).double()
    dist.broadcast(found, 0)
    torchs, *ours, same = found.tolist()
    if max(ours) > 2 * torchs + 1e-4:
        raise RuntimeError(f"{group.size} GPUs are off by {max(ours):.4f}, torch's attention on one by {torchs:.4f}")
    return {"torch_error": torchs, "whole_error": ours[0], "eager_error": ours[1], "same_percent": same}


# ---------------------------------------------------------------- what it shows


def table() -> pd.DataFrame:
    """A row a way: medians of milliseconds from decision to decision and of the GPU's, over all iterations, and the
    share in which the GPU waited for the host."""
    df = read(RECORDING)
    rows = []
    for graphs, mine in df.groupby("graphs", sort=False):
        mine = mine.sort_values("iteration", kind="stable")
        ms = (mine.scheduled_ms.shift(-1) - mine.scheduled_ms)[:-1]
        host = 100 * (1 - (mine.gpu_ms[:-1] / ms).median())
        rows.append((graphs, len(ms), ms.median(), mine.gpu_ms.median(), host, mine.same_percent.iloc[0]))
    return pd.DataFrame(rows, columns=["graphs", "iterations", "ms", "gpu_ms", "host_percent", "same_percent"])


def draw(df):
    names = {IN_ONE: "whole iterations", PIECES: "pieces of decodes"}
    return engine_host.shares(df, [names[how] for how in df.graphs], [f"{ms:.1f}" for ms in df.ms])


# ---------------------------------------------------------------- what claims ask for


def host_percent() -> float:
    """With whole iterations."""
    return float(table().set_index("graphs").host_percent[IN_ONE])


def gain() -> float:
    """Time of an iteration in pieces over that of a whole one."""
    ms = table().set_index("graphs").ms
    return float(ms[PIECES] / ms[IN_ONE])
