"""LeanAttention, Figure 1: two heads of five tiles on five SMs, cut in three ways."""

import pandas as pd

from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.lab.show.line import draw_shares, shares
from pod.schedule.decode import equal_cuts, split_cuts

FIGURE = Figure(
    title="Two heads of five tiles on five SMs: no split, a fixed split, stream-K",
    chapter="11",
    method="The partitioner that plans the kernels (pod/schedule/decode.py), on the figure's toy. Unit: one tile.",
)
NO_SPLIT, FIXED, LEAN = "no split (FlashAttention-2)", "fixed split in two (FlashDecoding)", "stream-K (LeanAttention)"
WAYS = {"no split": NO_SPLIT, "fixed": FIXED, "stream-k": LEAN}  # as claims call them


def _toy() -> tuple[int, list[int]]:
    sms, tiles, heads = (int(paper.value(f"lean.f01.{name}")) for name in ("sms", "tiles_per_head", "heads"))
    return sms, [tiles] * heads


def _cuts() -> dict:
    sms, blocks = _toy()
    return {NO_SPLIT: split_cuts(blocks, 1), FIXED: split_cuts(blocks, 2), LEAN: equal_cuts(blocks, sms)}


def table():
    """One row a part of a head: which SM computes which of its tiles, and when it begins."""
    sms, blocks = _toy()
    rows = [(method, *row) for method, cuts in _cuts().items() for row in shares(blocks, cuts, sms)]
    df = pd.DataFrame(rows, columns=["method", "sm", "head", "begin", "end", "start"])
    return df.assign(stop=df.start + df.end - df.begin)


def latency(df) -> dict[str, int]:
    """Tile times until the last SM ends, by method."""
    return df.groupby("method", sort=False).stop.max().to_dict()


def draw(df):
    sms, blocks = _toy()
    axes = style.axes(9.5, 2.7, columns=3, sharey=True)
    for ax, (method, cuts) in zip(axes, _cuts().items(), strict=True):
        draw_shares(ax, blocks, cuts, [f"h{h}" for h in range(len(blocks))], sms)
        busy, time = df[df.method == method].sm.nunique(), latency(df)[method]
        ax.set_title(f"{method}\n{busy} of {sms} SMs busy, {time} tile times", fontsize=9.5, loc="left")
        ax.set(xlim=(0, max(blocks)), xticks=range(max(blocks) + 1))
    return axes[0].figure


def busy(way: str) -> int:
    df = table()
    return df[df.method == WAYS[way]].sm.nunique()
