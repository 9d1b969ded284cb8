"""From a layer to an iteration: the measured operators of one hybrid batch of each model, with three attentions."""

import pandas as pd

from pod.data import a_card
from pod.hardware import H200
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.shapes import SHAPES, shape
from pod.simulate import windows
from pod.simulate.cost import MeasuredCost, Work

FIGURE = Figure(
    title="One hybrid iteration of three models: attention in two calls, ours in turn, and ours at once",
    chapter="15",
    method=f"sums of operators timed one by one on {a_card()}, "
    "between grid points interpolated; bf16, without the host",
    data=("operators",),
    composed=True,
)
WAYS = {"FlashAttention-3": ("serial", "fa3"), "ours, in turn": ("serial", "hopper"),
        "ours, at once": ("pod", "hopper")}  # fmt: skip
LABELS = {"FlashAttention-3": "FlashAttention-3, two calls"}
PARTS = {"linear layers": "linear", "attention": "hybrid"}


def table():
    """A row a model and way: the batch, milliseconds of its parts, and what is saved against FlashAttention-3."""
    rows = []
    for name in windows.OFFLINE:
        model, work = shape(name), batch(name)
        (chunk, _), *_ = work.chunks
        decodes, context = work.decodes, work.context // work.decodes
        for way, (method, kernels) in WAYS.items():
            cost = MeasuredCost(model, H200, attention=method, host="none", kernels=kernels)
            rest = 1e3 * (model.layers * cost.linear(work.tokens) + cost.head(decodes + 1))
            rows.append((name, way, chunk, decodes, context, rest, 1e3 * model.layers * cost.attention(work)))
    df = pd.DataFrame(rows, columns=["model", "way", "chunk", "decodes", "context", *PARTS])
    df["ms"] = df[list(PARTS)].sum(axis=1)
    serial = df.model.map(df[df.way == "FlashAttention-3"].set_index("model").ms)
    return df.assign(saved_percent=100 * (1 - df.ms / serial))


def batch(model: str) -> Work:
    """In the middle of the long run: a chunk, half of its prompt before it, and as many chats as decode then."""
    load = windows.LOADS[model]
    request, chunk = load.workload().requests()[0], load.chunk - load.running
    context = request.prompt + request.output // 2  # each chat has another part of its answer behind it
    return Work(((chunk, (request.prompt - chunk) // 2),), load.running, load.running * context)


def draw(df):
    axes = style.axes(9.5, 3.3, len(windows.OFFLINE), sharey=True)
    for ax, name in zip(axes, windows.OFFLINE, strict=True):
        mine, below = df[df.model == name], 0
        for part, kind in PARTS.items():
            bars = ax.bar(range(len(mine)), mine[part], bottom=below, color=style.colour(kind), width=0.7, label=part)
            ax.bar_label(bars, [f"{ms:.1f}" for ms in mine[part]], label_type="center", fontsize=8.5,
                         color=style.text_on(kind))  # fmt: skip
            below = below + mine[part]
        for i, row in enumerate(mine.itertuples()):
            words = f"{row.ms:.1f} ms" + (f"\n{-row.saved_percent:+.1f} %" if i else "")
            words += overlap(mine.ms) if row.way == "ours, at once" else ""
            ax.text(i, row.ms + 0.5, words, ha="center", va="bottom", fontsize=9)
        ax.set_xticks(range(len(mine)), [LABELS.get(way, way).replace(", ", ",\n") for way in mine.way], fontsize=8.5)
        row = mine.iloc[0]
        batch = f"{row.chunk} prompt tokens, {row.decodes} chats at {row.context / 1024:.0f}K"
        ax.set_title(f"{SHAPES[name].name}\n{batch}", fontsize=9.5)
    axes[0].set(ylabel="ms an iteration", ylim=(0, 1.3 * df.ms.max()))
    return style.legend_outside(axes[0], "upper", 2)


def overlap(ms) -> str:
    """What the last of some ways takes off the one before it, under its other label."""
    return f"\noverlap {100 * (ms.iloc[-1] / ms.iloc[-2] - 1):+.1f} %"


def saved(model: str = "llama-3-8b") -> float:
    """What fusing saves of a hybrid iteration against FlashAttention-3, percent."""
    return float(table().set_index(["model", "way"]).saved_percent[model, "ours, at once"])
