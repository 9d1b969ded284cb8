"""Against the faster call of FlashAttention-3: two calls, or one for the chunk and the chats beside it."""

from itertools import product

import pandas as pd

from pod.data import a_card
from pod.experiments.engine import engine_parts
from pod.experiments.engine.operators import FUSED, MODELS
from pod.experiments.hopper.hopper_sweep import geomean
from pod.hardware import H200
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.shapes import SHAPES, shape
from pod.simulate.cost import BEST, MeasuredCost, Work

FIGURE = Figure(
    title="Attention of hybrid batches over ours: two calls of FlashAttention-3, and the faster call",
    says="Ours is ahead of the faster call, too, at any number of chats",
    chapter="15",
    method=f"one layer, timed alone on {a_card()}, chats of unequal lengths; geometric means over chunks and contexts",
    data=("operators", "operators-one"),
    composed=True,
)
OURS, TWO = "ours", "two calls"
FASTER = "the faster call"
WAYS = {OURS: ("pod", "hopper"), TWO: ("serial", "fa3"), FASTER: ("serial", BEST)}


def table():
    """A row a model and number of chats: time over that of our kernel, and the share of batches that one call wins."""
    rows = []
    for model in MODELS:
        costs = {way: MeasuredCost(shape(model), H200, attention=attention, host="none", kernels=kernels)
                 for way, (attention, kernels) in WAYS.items()}  # fmt: skip
        for chats in FUSED[2]:
            us = pd.DataFrame([{way: 1e6 * cost.attention(work) for way, cost in costs.items()}
                               for work in _batches(chats)])  # fmt: skip
            over = {way: geomean(us[way] / us[OURS]) for way in (TWO, FASTER)}
            rows.append({"model": model, "chats": chats, **over, "one_wins": 100 * (us[FASTER] < us[TWO]).mean()})
    return pd.DataFrame(rows)


def _batches(chats: int) -> list[Work]:
    chunks, contexts, _, each = FUSED
    return [Work(((chunk, before),), chats, chats * mean) for chunk, before, mean in product(chunks, contexts, each)]


def draw(df):
    axes = style.axes(9.5, 3.2, len(MODELS), sharey=True)
    for ax, (model, mine) in zip(axes, df.groupby("model", sort=False), strict=True):
        for way, colour in ((TWO, style.WORKERS[1]), (FASTER, style.WORKERS[2])):
            ax.plot(mine.chats, mine[way], "o-", color=colour, label=way)
        ax.axhline(1, color=style.INK, linewidth=1)
        ax.set(xscale="log", xlabel="chats in the batch")
        style.ticks(ax, mine.chats)
        ax.set_title(SHAPES[model].name, fontsize=10)
    axes[0].set_ylabel("time over ours, ×")
    style.legend(axes[-1], loc="upper right")
    return axes[0].figure


def saved(model: str) -> float:
    """What the faster call saves of the hybrid iteration of engine-parts against two, percent."""
    two, better = (MeasuredCost(shape(model), H200, attention="serial", host="none", kernels=WAYS[way][1])
                   for way in (TWO, FASTER))  # fmt: skip
    less = two.attention(batch := engine_parts.batch(model)) - better.attention(batch)
    serial = engine_parts.table().query("model == @model and way == 'FlashAttention-3'").ms.item()
    return 100 * 1e3 * shape(model).layers * less / serial


def over(way: str = FASTER) -> float:
    """Time of a way over ours, all batches, geometric mean."""
    return geomean(table()[way])
