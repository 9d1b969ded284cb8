"""LeanAttention, Figure 6: a ragged batch, cut into equal ranges and by a fixed split."""

import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show import style
from pod.lab.show.line import draw_line, draw_shares, shares
from pod.schedule.decode import equal_cuts, split_cuts

FIGURE = Figure(
    title="A ragged batch on five SMs: equal ranges of tiles, and a fixed split in two",
    chapter="11",
    method="The partitioner on requests of 20, 3, 7 and 2 tiles, one head each. A fixed split goes by the longest.",
)
LENGTHS, SMS = (20, 3, 7, 2), 5
FIXED, LEAN = "fixed split", "equal ranges"


def _cuts() -> dict:
    return {FIXED: split_cuts(LENGTHS, 2), LEAN: equal_cuts(LENGTHS, SMS)}


def table():
    """One row a part of a request: which SM computes which of its tiles, and when it begins."""
    rows = [(cut, *row) for cut, cuts in _cuts().items() for row in shares(LENGTHS, cuts, SMS)]
    df = pd.DataFrame(rows, columns=["cut", "sm", "request", "begin", "end", "start"])
    return df.assign(stop=df.start + df.end - df.begin)


def draw(df):
    axes = style.axes(9.5, 3.6, columns=2, rows=2, height_ratios=(1, 3))
    longest = df.stop.max()
    for (top, below), (cut, cuts) in zip(axes.T, _cuts().items(), strict=True):
        draw_line(top, LENGTHS, cuts, "ABCD", SMS)
        draw_shares(below, LENGTHS, cuts, "ABCD", SMS)
        loads = df[df.cut == cut].groupby("sm").stop.max()
        below.set(xlim=(0, longest), xticks=range(0, longest + 1, 2))
        words = f"{cut}: the last SM ends after {loads.max()} tiles, the first after {loads.min()}"
        top.set_title(words, fontsize=10, loc="left")
    return axes[0, 0].figure
