"""POD-Attention, Table 2: what each way of running two operations at once promises, and what two loops got from it."""

import pandas as pd
from matplotlib.patches import Rectangle

from pod.experiments.pod import pod_07
from pod.kernels.fusion import NAMES
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Methods of concurrent execution and what they guarantee",
    says="In all three cuts SM-aware CTAs hold both most of the time and stay below 1.4 times the oracle",
    chapter="06",
    method="Marks: the paper's. Numbers: Figure 7's loops, halves cut in three ways; one wave, and 4 tiles more.",
    state="recorded",
    data=pod_07.FIGURE.data,
)
EQUAL, UNEQUAL = "equal tiles", ("long compute tiles", "long memory tiles")
WAVE, WAVE_AND = "a full wave", "4 tiles more"
MARKS = {"streams": "streams", "cta": "cta", "alternate": "cta", "in turn": "intra_thread",
         "interleaved": "intra_thread", "warp": "warp", "sm-aware": "sm_aware"}  # fmt: skip


def table():
    """One row a method: the paper's two marks, the least share of time with both on an SM, times over the oracle, and
    what four tiles more than fit a wave cost."""
    df = pod_07.recorded((EQUAL, *UNEQUAL, WAVE, WAVE_AND)).set_index(["method", "case"])
    rows = []
    for method in NAMES:
        mark = MARKS.get(method)
        marks = [paper.value(f"pod.t2.{mark}.{what}") if mark else "" for what in ("colocates", "reduces_quantization")]
        mine = df.loc[method]
        cases = [EQUAL, *UNEQUAL]
        step = 100 * (mine.ms[WAVE_AND] / mine.ms[WAVE] - 1)
        rows.append((method, marks[0], mine.together_percent[cases].min(), *mine.over_oracle[cases], marks[1], step))
    columns = ["method", "colocates", "together_least_percent", *(case.replace(" ", "_") for case in cases),
               "reduces_quantization", "step_percent"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def oracle_step() -> float:
    """What the same four tiles more cost the longer loop alone, %: the base of the last column."""
    best = pod_07.recorded((WAVE, WAVE_AND)).groupby("case").oracle_ms.first()
    return float(100 * (best[WAVE_AND] / best[WAVE] - 1))


# ---------------------------------------------------------------- drawing

TIMES = ("equal_tiles", "long_compute_tiles", "long_memory_tiles")
HEADS = {
    "colocates": "same SM\nguaranteed\n(paper)",
    "together_least_percent": "holds both,\nat least,\n% of time",
    "equal_tiles": "equal\ntiles",
    "long_compute_tiles": "compute\ntiles 8×\nas long",
    "long_memory_tiles": "memory\ntiles 8×\nas long",
    "reduces_quantization": "fewer\nholes\n(paper)",
    "step_percent": "4 tiles\nmore than\na wave, %",
}


BASE = "the oracle: longer loop alone"
UPPER = "interleaved"  # its CTAs count as both to their ends, also when one loop has no steps left


def draw(df):
    ax = style.axes(9.5, 4.6)
    for y, row in enumerate(df.to_dict("records")):
        ax.text(0, y, NAMES[row["method"]], va="center", fontsize=10)
        for x, column in enumerate(HEADS):
            at_most = row["method"] == UPPER and column == "together_least_percent"
            _cell(ax, 2.9 + x, y, column, row[column], "≤ " if at_most else "")
    base = dict.fromkeys(HEADS, "") | dict.fromkeys(TIMES, 1.0) | {"step_percent": oracle_step()}
    ax.axhline(len(df) - 0.5, color=style.FRAME, linewidth=1)
    ax.text(0, len(df), BASE, va="center", fontsize=10)
    for x, column in enumerate(HEADS):
        _cell(ax, 2.9 + x, len(df), column, base[column])
    for x, head in enumerate(HEADS.values()):
        ax.text(2.9 + x, -0.62, head, ha="center", va="bottom", fontsize=9)
    ax.plot([4.45, 7.35], [-1.95, -1.95], color=style.INK, linewidth=1)
    ax.text(5.9, -2.05, "time / oracle", ha="center", va="bottom", fontsize=9, fontweight="bold")
    ax.set(xlim=(-0.05, 9.5), ylim=(len(df) + 0.6, -2.5))
    ax.axis("off")
    return ax.figure


def _cell(ax, x: float, y: int, column: str, value, before: str = "") -> None:
    is_time = column in TIMES
    if is_time:  # the deeper the colour, the farther from the oracle
        depth = min(max(value - 1, 0), 1)
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=style.LIT, alpha=depth, linewidth=0))
    words = {"yes": "yes", "no": "no", "": "–"}[value] if isinstance(value, str) else f"{value:.2f}"
    if column in ("together_least_percent", "step_percent") and not isinstance(value, str):
        words = f"{round(value):+d}" if column == "step_percent" else f"{value:.0f}"
    ax.text(x, y, before + words, ha="center", va="center", fontsize=10, fontweight="bold" if is_time else "normal")


# ---------------------------------------------------------------- what the claims ask for


def _row(method: str):
    return table().set_index("method").loc[method]


def sm_aware_over_oracle() -> float:
    return float(_row("sm-aware").equal_tiles)


def stragglers() -> float:
    """Time of the two halves of a CTA over that of SM-aware CTAs, the smaller of both unequal cases."""
    warp, aware = _row("warp"), _row("sm-aware")
    return float(min(warp[c.replace(" ", "_")] / aware[c.replace(" ", "_")] for c in UNEQUAL))


def quantization() -> float:
    """Percentage points by which four tiles more cost serial execution more than SM-aware CTAs."""
    return float(_row("serial").step_percent - _row("sm-aware").step_percent)
