"""How far off the analytical cost is on what its constants have not seen, part by part, and in runs beside Vidur's."""

from functools import partial

import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate import judge
from pod.simulate.judge import BARS, PARTLY, THROUGHPUT, WHOLE

FIGURE = Figure(
    title="Errors of the analytical cost, part by part, over what is allowed",
    chapter="15",
    method="held-out rows of public measurements and of our own: other models, numbers of GPUs or sizes than fitted; "
    "whole runs beside Vidur's (data/judged.csv). The measurement itself: drawn again from its own three repeats",
    state="simulated",
)
PARTS = ("prefill", "decode", "linear", "host")
LOOKS = (("half of the errors", style.WORKERS[0], "o"), ("95 % of them", style.WORKERS[1], "o"),
         ("95 %, the measurement itself", style.INK, "x"))  # fmt: skip
WHOLE_ROWS = {True: "whole runs, throughput:\n1 % allowed", False: "whole runs, what users feel:\n10 % allowed"}
GAP = 0.7  # rows between the parts and whole runs, which have other bars
LONG, ALONE, ONE_BY_ONE = "all-reduce from 1 MiB", "below, NCCL alone", "below, one by one"


def table() -> pd.DataFrame:
    """A row a part and source of measurements: errors in percent, and the bars that they have to pass."""
    rows = [row for row in judge.read() if row["split"] == "held out" and row["model"] == "all"]
    made = [(_group(row), row["what"], row["source"], *(float(row[k] or "nan") for k in ("median", "p95", "again")),
             *BARS.get((row["part"], row["what"]), PARTLY), row["passes"] == "yes") for row in rows]  # fmt: skip
    columns = ["part", "what", "source", "median", "p95", "again", "most", "most_p95", "passes"]
    df = pd.DataFrame(made, columns=columns)
    order = (*PARTS, LONG, ALONE, ONE_BY_ONE, WHOLE)
    return df.sort_values("part", key=lambda part: part.map(order.index), kind="stable")


def _group(row: dict) -> str:
    if row["part"] != "all-reduce":
        return row["part"]
    if row["what"].endswith("from 1 MiB"):
        return LONG
    return ALONE if row["what"].startswith("nccl") else ONE_BY_ONE


def draw(df):
    """Each source as two dots, in units of its bars; crosses are what the measurement itself would be off by."""
    rows = df.part.where(df.part != WHOLE, (df.what == THROUGHPUT).map(WHOLE_ROWS))
    names = [*dict.fromkeys(df.part[df.part != WHOLE]), *WHOLE_ROWS.values()]
    places = {name: i + GAP * (name in WHOLE_ROWS.values()) for i, name in enumerate(names)}
    ax = style.axes(8.5, 1.3 + 0.44 * len(names))
    for name, y in places.items():
        mine = df[rows == name]
        errors = mine["median"] / mine.most, mine.p95 / mine.most_p95, mine.again / mine.most_p95
        for x, beside, (_, colour, marker) in zip(errors, (-0.15, 0.15, 0.15), LOOKS, strict=True):
            ax.scatter(x, [y + beside] * len(mine), s=28, color=colour, marker=marker, zorder=3)
    for words, colour, marker in LOOKS:
        ax.scatter([], [], label=words, color=colour, marker=marker)
    border = places[names[-2]] - 0.5 - GAP / 2
    ax.axhline(border, color=style.INK, linewidth=0.8, linestyle=":")
    ax.text(0.01, border + 0.1, "beside Vidur, another simulator", fontsize=8.5, va="top",
            transform=ax.get_yaxis_transform())  # fmt: skip
    ax.axvline(1, color=style.INK, linewidth=1.2)
    ax.set(xscale="log", xlabel="error in units of what is allowed (line): 10 % for half, 25 % for 95 of 100",
           ylim=(places[names[-1]] + 0.6, -0.5), yticks=list(places.values()))  # fmt: skip
    style.ticks(ax, (0.1, 0.3, 1, 3, 10))
    ax.set_yticklabels(names)
    style.legend(ax, loc="upper right")
    return ax.figure


def judged(which: str = "passes or not passes") -> float:
    """Parts of an iteration, each with its source: how many."""
    return float(len(_parts().query(which)))


missed = partial(judged, "not passes")
untellable = partial(judged, "not passes and again > most_p95")  # whose measurement, once more, would miss it too


def least_again() -> float:
    """What the steadiest of the missed measurements would be off by from itself, %."""
    return float(_parts().query("not passes").again.min())


def worse() -> float:
    """How many times as much the missed parts are off, at most."""
    missed = _parts().query("not passes")
    return float((missed.p95 / missed.again).max())


def _parts() -> pd.DataFrame:
    return table().query("part != @WHOLE")
