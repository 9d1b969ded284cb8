"""The running example: a chat server on one GPU, and what a long prompt does to everybody else."""

from collections.abc import Callable
from itertools import accumulate, pairwise

import pandas as pd
from matplotlib import pyplot as plt

from pod.batch import MODELS, HybridBatch
from pod.hardware import A100
from pod.lab.figure import Figure
from pod.lab.show import gantt, idle_share, style
from pod.lab.show.lanes import longest_gap
from pod.serving.shapes import SHAPES
from pod.simulate.cost import AnalyticalCost, Work

FIGURE = Figure(
    title="A long prompt arrives while others are being answered",
    chapter="00",
    method="Yi-6B on one A100: 80 chats at 8K tokens, a prompt of 12,288. Roofline times at the data sheet's rates.",
    state="simulated",
)
CHATS, CONTEXT, PROMPT, CHUNK = 80, 8192, 12288, 1024
WHOLE, CHUNKS, OVERLAP = "whole prompt first", "in chunks", "in chunks, perfect overlap"
BEFORE, AFTER = 4, 3  # iterations around the prompt that are shown
ROWS = ["long prompt", "each chat"]


def iterations(way: str) -> list[tuple[int, int, bool]]:
    """Of each iteration: new prompt tokens, prompt tokens before them, and whether the chats take part."""
    idle = (0, 0, True)
    prompt = [(PROMPT, 0, False)] if way == WHOLE else [(CHUNK, at, True) for at in range(0, PROMPT, CHUNK)]
    return [idle] * BEFORE + prompt + [idle] * AFTER


def parts(way: str) -> list[dict[str, float]]:
    """GPU seconds of each iteration: prefill's attention, decode's, both as this way computes them, and all else."""
    return [_parts(*iteration, max if way == OVERLAP else sum) for iteration in iterations(way)]


def _parts(n: int, before: int, chats: bool, both: Callable) -> dict[str, float]:
    """Roofline times of all layers, at the data sheet's rates: every operation takes its FLOPs or its bytes."""
    yi = SHAPES["yi-6b"]
    rows, decodes = n + CHATS * chats, CHATS * chats
    batch = HybridBatch.of(n, n + before, decodes, CONTEXT if decodes else 0, **MODELS["yi-6b"].heads())
    halves = [yi.layers * t for t in batch.times(A100)]
    linear = yi.layers * A100.roofline_time(2 * rows * yi.layer_weights, 2 * yi.layer_weights)
    return {"linear": linear, "prefill": halves[0], "decode": halves[1], "attention": both(halves)}


def seconds(way: str) -> list[float]:
    """GPU time of each iteration."""
    return [part["linear"] + part["attention"] for part in parts(way)]


def at_public_rates() -> dict[str, float]:
    """The longest waits once more, with what public measurements say that kernels reach of the data sheet's rates; and
    the most that overlap could then make of the last hybrid batch's attention."""
    waits = {}
    for way in (WHOLE, CHUNKS, OVERLAP):
        cost = AnalyticalCost(SHAPES["yi-6b"], A100, attention="oracle" if way == OVERLAP else "serial", host="none",
                              kernels="fa2")  # fmt: skip
        took = [sum(cost.parts(_work(*iteration)).values()) for iteration in iterations(way)]
        ends = [end for end, (*_, chats) in zip(accumulate(took), iterations(way), strict=True) if chats]
        waits[way] = max(b - a for a, b in pairwise(ends))
    halves = cost.prefill([(CHUNK, PROMPT - CHUNK)]), cost.decode(CHATS, CHATS * CONTEXT)
    return waits | {"at most": sum(halves) / max(halves)}


def _work(n: int, before: int, chats: bool) -> Work:
    return Work(((n, before),) if n else (), CHATS * chats, CHATS * CONTEXT * chats)


def table():
    """One row an iteration and row of the picture: when it began and ended, in seconds."""
    rows = []
    for way in (WHOLE, CHUNKS, OVERLAP):
        now = 0.0
        for (n, _, chats), length in zip(iterations(way), seconds(way), strict=True):
            rows += [(way, ROWS[0], now, now + length, "prefill")] * bool(n)
            rows += [(way, ROWS[1], now, now + length, "decode")] * chats
            now += length
    return pd.DataFrame(rows, columns=["way", "row", "start", "end", "kind"])


def gaps(df) -> dict[str, float]:
    """Longest wait of a chat between two tokens, in seconds, by way."""
    return {way: stop - start for way, (start, stop) in _longest(df).items()}


def _longest(df) -> dict[str, tuple[float, float]]:
    ends = df[df.row == ROWS[1]].groupby("way", sort=False).end
    return {way: _last_of_longest(sorted(x)) for way, x in ends}


def _last_of_longest(times: list[float]) -> tuple[float, float]:
    """Of several waits that are equally long the last one, as the panels on the right look into the last chunk."""
    start, stop = longest_gap(times)
    return [(a, b) for a, b in pairwise(times) if b - a > (1 - 1e-9) * (stop - start)][-1]


# ---------------------------------------------------------------- the picture

SAID = {
    WHOLE: "The prompt goes first",
    CHUNKS: "The prompt in chunks",
    OVERLAP: "In chunks, both attentions at the same time",
}
WORDS = {"linear": "all else", "prefill": "prompt's attention", "decode": "chats' attention"}


def draw(df):
    """Left: when the 80 chats get their tokens. Right: what the last chunk's iteration is made of."""
    axes = style.axes(9.5, 5.0, columns=2, rows=3, width_ratios=(5, 4), sharex="col")
    longest = _longest(df)
    for (left, right), way in zip(axes, SAID, strict=True):
        _tokens(left, df[df.way == way], *longest[way])
        left.set_title(f"{SAID[way]}: {1000 * gaps(df)[way]:.0f} ms of silence", fontsize=10, loc="left")
        if way == WHOLE:
            _key(right)
        else:
            _inside(right, way)
    axes[0, 0].set_xlim(0, 1.02 * df.end.max())
    axes[2, 0].set_xlabel("time, s")
    axes[2, 1].set(xlabel="inside the last chunk's iteration, ms", xlim=(0, 1150 * gaps(df)[CHUNKS]))
    return axes[0, 0].figure


def _tokens(ax, df, start: float, end: float) -> None:
    """A line for each token of a chat; the longest silence in red, with the prompt's span above it."""
    prompt, tokens = df[df.row == ROWS[0]], df[df.row == ROWS[1]].end
    ax.vlines(tokens, 0, 1, color=style.DECODE, linewidth=2)
    ax.axvspan(start, end, 0, 0.72, color=style.ALARM, alpha=0.25, linewidth=0)
    began, ended = prompt.start.min(), prompt.end.max()
    ax.broken_barh([(began, ended - began)], (1.12, 0.36), color=style.IDLE, ec=style.PREFILL)
    ax.text((began + ended) / 2, 1.3, "the prompt, all of it", ha="center", va="center", fontsize=9, color=style.INK)
    ax.set(ylim=(0, 1.6), yticks=())
    ax.set_ylabel("a chat's\ntokens", fontsize=9, color=style.INK)
    ax.spines["left"].set_visible(False)


def _inside(ax, way: str) -> None:
    """The last hybrid iteration: one attention after the other, or one below the other."""
    part = [part for part in parts(way) if part["prefill"]][-1]
    linear, prefill, decode = (1000 * part[kind] for kind in WORDS)
    second = linear if way == OVERLAP else linear + prefill
    bars = ("linear", 0, linear, 0.5), ("prefill", linear, prefill, 1), ("decode", second, decode, 0)
    for kind, begin, length, y in bars:
        ax.broken_barh([(begin, length)], (y, 0.9), color=style.colour(kind))
        ax.text(begin + length / 2, y + 0.45, f"{length:.1f}", ha="center", va="center", fontsize=9,
                color=style.text_on(kind))  # fmt: skip
    ax.axvline(linear + 1000 * part["attention"], color=style.ALARM, linewidth=1.5)
    ax.set(ylim=(-0.1, 2.0), yticks=())
    ax.spines["left"].set_visible(False)


def _key(ax) -> None:
    """What the colours of the panels below mean."""
    ax.axis("off")
    ax.set_title("Below, inside one iteration:", fontsize=10, loc="left")
    for y, (kind, words) in zip((0.7, 0.44, 0.18), WORDS.items(), strict=True):
        ax.add_patch(plt.Rectangle((0.02, y), 0.06, 0.16, color=style.colour(kind), transform=ax.transAxes))
        ax.text(0.1, y + 0.08, words, va="center", fontsize=9, transform=ax.transAxes)


def batch(chunk_end: int = PROMPT) -> HybridBatch:
    """The hybrid batch of the iteration whose chunk ends at token `chunk_end` of the prompt."""
    return HybridBatch.of(CHUNK, chunk_end, CHATS, CONTEXT, **MODELS["yi-6b"].heads())


def draw_resources(hybrid: HybridBatch):
    """When tensor cores and DRAM are busy on an A100: one part after the other, and each as soon as it is free."""
    panels = style.axes(9.5, 2.0, columns=2, sharey=True)
    prefill, decode = (1e6 * t for t in hybrid.times(A100))
    first = _busy(hybrid.prefill, "prefill", (0, 0))
    ways = {"one after the other": (prefill, prefill), "at the same time": [end for _, _, end, *_ in first]}
    for ax, (way, starts) in zip(panels, ways.items(), strict=True):
        bars = first + _busy(hybrid.decode, "decode", starts)
        gantt(bars, unit="µs", ax=ax, slots_per_row=1)
        ax.set_xlim(0, 1.05 * (prefill + decode))
        ax.get_legend().remove()  # the bars are named
        ax.set_title(f"{way}: {100 * idle_share(bars):.0f} % idle", fontsize=10, loc="left")
    for x, y in ((prefill / 2, 1.5), (prefill + decode / 2, 0.5)):
        panels[0].text(x, y, "idle", ha="center", va="center", fontsize=9, color=style.INK)
    return panels[0].figure


def _busy(part, kind: str, starts) -> list[tuple]:
    """A bar for each of the two resources that a part needs, from its start on; a long one carries its name."""
    seconds = A100.compute_time(part.flops), A100.memory_time(part.bytes)
    resources = zip(("tensor cores", "DRAM"), starts, seconds, strict=True)
    return [(name, t, t + 1e6 * s, kind, kind) for name, t, s in resources]
