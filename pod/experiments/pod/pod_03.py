"""POD-Attention, Figure 3: in a hybrid batch the weights are shared, attention is not."""

import pandas as pd
from matplotlib.patches import FancyBboxPatch

from pod.experiments.basics.stutter import batch as chat_batch
from pod.hardware import A100
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.shapes import SHAPES

FIGURE = Figure(
    title="What a hybrid batch shares: weights are read once for all, in attention nothing is saved",
    says="A hybrid batch reads the weights once; in attention it saves nothing",
    chapter="03",
    method="One layer of Yi-6B, A100, a chunk of 1,024 and 80 chats at 8K: roofline times; attention as two kernels.",
    state="simulated",
)
SHARED, APART = "weights, shared", "KV caches, private"


def table():
    """One row an operation: bytes of what it reads, and microseconds for the chunk alone, the decodes alone, and in a
    hybrid batch."""
    batch, (qkv, out, up, down) = chat_batch(), SHAPES["yi-6b"].matrices
    linear = {"QKV projection": [qkv], "output projection": [out], "feed-forward": [up, down]}
    rows = {name: _linear(sizes, batch) for name, sizes in linear.items()}
    prefill, decode = (1e6 * t for t in batch.times(A100))
    attention = {"attention": (APART, batch.kv_bytes / 1e6, prefill, decode, prefill + decode)}
    first, *rest = rows.items()
    columns = ["reads", "mbyte", "chunk_alone_us", "decodes_alone_us", "hybrid_us"]
    rows = dict([first]) | attention | dict(rest)
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("operation").reset_index()


def _linear(sizes, batch) -> tuple:
    """Multiplying n rows by weight matrices: 2 n FLOPs a weight, and every weight is read, however many rows."""
    weights = sum(rows * columns for rows, columns in sizes)
    chunk, decodes = (sum(part.q_lens) for part in (batch.prefill, batch.decode))
    times = [1e6 * float(A100.roofline_time(2 * n * weights, 2 * weights)) for n in (chunk, decodes, chunk + decodes)]
    return (SHARED, 2 * weights / 1e6, *times)


def draw(df):
    """Above, the tokens flowing through the kernels; below, each operation as two batches and as one."""
    flow, ax = style.axes(9.5, 5.2, rows=2, sharex=True, height_ratios=(2, 3))
    _tokens(flow, len(df))
    for x, row in enumerate(df.itertuples()):
        _kernels(flow, x, row)
        _bars(ax, x, row, longest=df.hybrid_us.max())
    flow.set(xlim=(-1.0, len(df) - 0.4), ylim=(-0.42, 1.02))
    flow.axis("off")
    flow.set_title(FIGURE.says, fontsize=10, loc="left")
    names = (-0.19, "two\nbatches"), (0.19, "one\nhybrid")
    sides = [(x + side, name) for x in range(len(df)) for side, name in names]
    ax.set_xticks(*zip(*sides, strict=True))
    ax.set_ylabel("µs in one layer, A100 roofline")
    ax.set_ylim(0, 1.15 * df.hybrid_us.max())
    ax.tick_params(axis="x", length=0)
    style.legend(ax, loc="upper left")
    return ax.figure


def _tokens(ax, columns: int) -> None:
    for y, kind, words in ((0.76, "prefill", "chunk of\nthe prompt"), (0.24, "decode", "a token of\neach chat")):
        ax.plot([-0.5, columns - 0.45], [y, y], color=style.colour(kind), linewidth=5, zorder=0)
        ax.text(-0.55, y, words, fontsize=9, color=style.INK, ha="right", va="center")


def _kernels(ax, x: int, row) -> None:
    """One box when both kinds of tokens go through one kernel, two when each has its own."""
    one = [(0.02, 0.96, row.operation.replace(" ", "\n"), "linear")]
    two = [(0.54, 0.44, "prefill\nattention", "prefill"), (0.02, 0.44, "decode\nattention", "decode")]
    for y, height, words, kind in one if row.reads == SHARED else two:
        ax.add_patch(FancyBboxPatch((x - 0.28, y), 0.56, height, "round,pad=0,rounding_size=0.05",
                                    facecolor=style.colour(kind), edgecolor="white", linewidth=1.5))  # fmt: skip
        ax.text(x, y + height / 2, words, ha="center", va="center", fontsize=9, color=style.text_on(kind))
    ax.text(x, -0.08, f"{row.reads}\n{row.mbyte:,.0f} MB", ha="center", va="top", fontsize=9, color=style.INK)


def _bars(ax, x: int, row, longest: float) -> None:
    """Left the two batches on top of each other; right the hybrid batch: the chunk, and what the chats add to it."""
    added = row.hybrid_us - row.chunk_alone_us
    for side, chats in ((-0.19, row.decodes_alone_us), (0.19, added)):
        ax.bar(x + side, row.chunk_alone_us, 0.34, color=style.PREFILL, label="the chunk")
        ax.bar(x + side, chats, 0.34, row.chunk_alone_us, color=style.DECODE, label="what the chats add")
    change = 100 * (added / row.decodes_alone_us - 1)
    words = f"chats −{-change:.0f} %" if change < -0.1 else "chats: no gain"
    top = row.chunk_alone_us + row.decodes_alone_us
    ax.text(x, top + 0.02 * longest, words, ha="center", fontsize=9, fontweight="bold")


def saved(df) -> dict[str, float]:
    """Microseconds that hybrid batching saves, by what the operation reads."""
    return (df.chunk_alone_us + df.decodes_alone_us - df.hybrid_us).groupby(df.reads).sum().to_dict()
