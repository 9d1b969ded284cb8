"""LeanAttention, Figure 7: its gain on an A100, by a model of two CTAs an SM that is checked on an H200."""

from collections import Counter, defaultdict
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import islice, product

import numpy as np
import pandas as pd

from pod.data import read
from pod.experiments.lean.shared import in_k
from pod.hardware import A100, H200
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.schedule.choose import flash_splits
from pod.schedule.decode import MOST_PARTS, equal_cuts, split_cuts

FIGURE = Figure(
    title="Stream-K over FlashDecoding on an A100, modelled: by context, heads and batch",
    chapter="11",
    method="Two CTAs an SM; one that is alone is 1.5x as fast, as the rebuilt tile is on an H200. Merging is free.",
    state="simulated",
)
K, TILE = 1024, 256  # tokens of a LeanTile at head dimension 64
ALONE = 1.5  # pace of a CTA with an SM to itself over that of one of two: lean-sweep has 128 CTAs and 264 on 132 SMs
RULES = {"2.5.6": 1, "today": 2}  # CTAs an SM that FlashDecoding's rule counts
BEST = "best split"  # of up to MOST_PARTS equal parts, found by trying
LINES = {"2.5.6": "over the rule of 2.5.6", "today": "over today's rule", BEST: "over the best fixed split"}
PANELS = {
    "context": ("context, 32 heads, batch 4", [(32, 4, n * K) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)]),
    "heads": ("heads, batch 4, 256K", [(h, 4, 256 * K) for h in (8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96)]),
    "batch": ("batch, 32 heads, 256K", [(32, b, 256 * K) for b in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)]),
}
COMB = range(8, 111)
TEETH = {27: "108 units,\nan SM each", 54: "216 units,\na slot each"}  # heads at which a wave is full, on an A100
MEAN_HEADS, MEAN_BATCHES = (8, 12, 16, 24, 32, 40, 48, 56, 64, 96, 128), (1, 2, 4, 6, 8, 12, 16, 24, 32)
MEAN_CONTEXTS = tuple(K << n for n in range(10))


def makespan(lengths, sms: int) -> float:
    """When the last CTA ends. SMs are filled breadth-first; CTAs that end make room for the next in the list, first on
    the SM that holds the fewest."""
    waiting = iter(lengths)
    ends, now, free = [(length, i % sms) for i, length in enumerate(islice(waiting, 2 * sms))], 0, []
    heapify(ends)
    for length in waiting:
        if not free:
            now, freed = ends[0][0], Counter()
            while ends and ends[0][0] == now:
                freed[heappop(ends)[1]] += 1
            free = sorted(((2 - n + i, sm) for sm, n in freed.items() for i in range(n)), reverse=True)
        heappush(ends, (now + length, free.pop()[1]))
    ends += [(now, sm) for _, sm in free]
    held = defaultdict(lambda: [0.0])
    for end, sm in sorted(ends):
        held[sm].append(end)
    return max(since + (until - since) / ALONE for *_, since, until in held.values())  # who stays has it to itself


@cache
def speedup(units: int, blocks: int, over: str, sms: int = A100.sms) -> float:
    """Time of `units` heads of `blocks` tiles under the split of a rule, or the best one, over that of equal ranges."""
    if over == BEST:
        time = min(_even_time(units * n, -(-blocks // n), sms) for n in range(1, min(MOST_PARTS, blocks) + 1))
    else:
        split = np.diff(split_cuts(np.array([blocks]), flash_splits(units, blocks, sms, RULES[over])), prepend=0)
        time = makespan(split.tolist() * units, sms)
    return time / _ranges_time(units, blocks, sms)


@cache
def _ranges_time(units: int, blocks: int, sms: int) -> float:
    """The same for whichever split it is compared with."""
    return makespan(np.diff(equal_cuts(np.array([units * blocks]), 2 * sms), prepend=0).tolist(), sms)


def _even_time(ctas: int, length: float, sms: int) -> float:
    """makespan of CTAs that are all equally long: full waves of two an SM, then those that are left."""
    waves, left = divmod(ctas, 2 * sms)
    return length * (waves + (0 if left == 0 else 1 / ALONE if left <= sms else 1))


def table():
    """One row a batch: the speed-up over the split that each rule chooses, and over the best."""
    rows = [(panel, heads, batch, context, *(speedup(heads * batch, -(-context // TILE), over) for over in LINES))
            for panel, (_, shapes) in PANELS.items() for heads, batch, context in shapes]  # fmt: skip
    return pd.DataFrame(rows, columns=["panel", "heads", "batch", "context", *LINES])


def comb():
    """The same two rules for every number of heads that the middle panel spans, at batch 4 and 256K."""
    rows = [(heads, *(speedup(4 * heads, 256 * K // TILE, over) for over in RULES)) for heads in COMB]
    return pd.DataFrame(rows, columns=["heads", *RULES])


# ---------------------------------------------------------------- what we state


def _batches() -> list[tuple[int, int, int]]:
    """That the mean and the largest gain are over: heads, requests and their context."""
    return list(product(MEAN_HEADS, MEAN_BATCHES, MEAN_CONTEXTS))


@cache
def _sweep(over: str) -> tuple[float, ...]:
    return tuple(speedup(heads * batch, -(-context // TILE), over) for heads, batch, context in _batches())


def mean_gain(over: str = "2.5.6") -> float:
    """Over 990 batches."""
    return sum(_sweep(over)) / len(_sweep(over))


def modelled() -> int:
    return len(_batches())


def too_large() -> int:
    """Of these, how many have more keys and values, of 64 columns in 16 bits, than an A100 has memory."""
    return sum(heads * batch * context * 2 * 64 * 2 > A100.memory_bytes for heads, batch, context in _batches())


def largest_gain(over: str = "2.5.6") -> float:
    return max(_sweep(over))


def least(column: str, above: str) -> float:
    """In the panel over this column, beyond a number of the paper."""
    df = table()
    return float(df[(df.panel == column) & (df[column] > paper.value(f"lean.f07.{above}"))]["2.5.6"].min())


def model_error() -> float:
    """Median distance between model and recording, on the long batches that were measured on an H200."""
    df = read("lean-sweep")
    df = df[(df.head_dim == 64) & (df.ratio == 1) & (df.context >= 16 * K)]
    model = [speedup(h * b, -(-n // TILE), "2.5.6", H200.sms)
             for h, b, n in zip(df.q_heads, df.batch, df.context, strict=True)]  # fmt: skip
    return float((model * df.paper_lean / df.paper_rule_256 - 1).abs().median())


def alone_measured() -> float:
    """ALONE by the recording: a CTA's rate where 128 of them have an SM each, over that where most SMs have two."""
    df = read("lean-sweep")
    df = df[(df.head_dim == 64) & (df.context == 64 * K) & (df.ratio == 1)]
    ctas = df.q_heads * df.batch * df.paper_rule_256_parts
    rate = df.kv_bytes / df.paper_rule_256 / ctas
    return float(rate[ctas == 128].median() / rate[ctas.between(192, 264)].median())


def draw(df):
    axes = style.axes(9.5, 3.9, columns=3, sharey=True, width_ratios=[1, 2.2, 1])
    every = comb()
    for ax, (panel, (words, _)) in zip(axes, PANELS.items(), strict=True):
        part = df[df.panel == panel]
        for over, colour in {"2.5.6": style.WORKERS[3], "today": style.INK}.items():  # free merges: no gain over BEST
            line, dots = (every, None) if panel == "heads" else (part, "o")
            width = 3 if over == "2.5.6" else 1.5  # seen also where both rules choose the same
            ax.plot(line[panel], line[over], color=colour, marker=dots, markersize=4, linewidth=width,
                    label=LINES[over])  # fmt: skip
        ax.axhline(1, color=style.FRAME, zorder=0)
        ax.set(xlabel=words, ylim=(0.85, 2.6))
    axes[0].set_xscale("log", base=2)
    ticks = sorted(df[df.panel == "context"].context.unique())[::3]
    axes[0].set_xticks(ticks, [in_k(n) for n in ticks], fontsize=8.5)
    axes[0].set_ylabel("speed-up of equal ranges")
    for heads, words in TEETH.items():
        axes[1].axvline(heads + 0.5, color=style.FRAME, linestyle=":", zorder=0)
        axes[1].text(heads + 1.5, 2.57, words, fontsize=9, va="top")
    stated, beyond = paper.value("lean.f07.fd_max"), paper.value("lean.f07.heads_gain")
    few, pink = paper.value("lean.f07.heads_threshold"), style.WORKERS[2]
    axes[0].plot([256 * K], [stated], "*", color=pink, markersize=11)
    axes[0].text(256 * K, stated + 0.06, f"the paper:\nup to {stated}x", fontsize=9, ha="right")
    axes[1].plot([few, COMB[-1]], [beyond, beyond], color=pink, linestyle="--")
    axes[1].text(
        COMB[-1], beyond + 0.03, f"the paper: more than {beyond:g}x above {few:g} heads", fontsize=9, ha="right"
    )
    return style.legend_outside(axes[1], "upper", 2)
