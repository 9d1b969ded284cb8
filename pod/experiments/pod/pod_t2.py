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
    says="SM-aware CTAs alone stay below 1.4 times the oracle in all three cuts",
    chapter="06",
    method="Time over the oracle, max(compute, memory): Figure 7's loops, their work cut into tiles in three ways. "
    "The marks of the paper's table are in chapter 06.",
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

TIMES = {
    "equal_tiles": "equal tiles",
    "long_compute_tiles": "compute tiles\n8× as long",
    "long_memory_tiles": "memory tiles\n8× as long",
}
BASE = "the oracle"
FIRST, WIDTH = 3.0, 1.5  # where the columns of times begin, and how wide each is


def draw(df):
    """The times over the oracle of the three cuts, the method with the shortest worst time first."""
    ordered = df.assign(worst=df[list(TIMES)].max(axis=1)).sort_values("worst", kind="stable")
    rows = [(BASE, dict.fromkeys(TIMES, 1.0))]
    rows += [(NAMES[row["method"]], row) for row in ordered.to_dict("records")]
    ax = style.axes(7.5, 4.2)
    for x, head in enumerate(TIMES.values()):
        ax.text(FIRST + WIDTH * (x + 0.5), -0.65, head, ha="center", va="bottom", fontsize=10)
    for y, (name, times) in enumerate(rows):
        weight = "bold" if y == 1 else "normal"
        ax.text(0, y, name, va="center", fontsize=11, fontweight=weight)
        for x, column in enumerate(TIMES):
            _cell(ax, FIRST + WIDTH * x, y, times[column], weight)
    ax.axhline(0.5, color=style.FRAME, linewidth=1)
    ax.set(xlim=(-0.05, FIRST + WIDTH * len(TIMES)), ylim=(len(rows) - 0.4, -1.9))
    ax.axis("off")
    return ax.figure


def _cell(ax, left: float, y: int, time: float, weight: str) -> None:
    """A time over the oracle: the deeper the colour, the farther from it."""
    depth = min(time - 1, 1)
    ax.add_patch(Rectangle((left, y - 0.5), WIDTH, 1, facecolor=style.LIT, alpha=depth, linewidth=0))
    ax.text(left + WIDTH / 2, y, f"{time:.2f}", ha="center", va="center", fontsize=11, fontweight=weight)


UPPER = "interleaved"  # its CTAs count as both to their ends, also when one loop has no steps left


def promises(df):
    """The paper's two marks, each beside what we measured of it, and the step of the longer loop alone."""
    held = [f"{'≤ ' if row.method == UPPER else ''}{row.together_least_percent:.0f}" for row in df.itertuples()]
    columns = {
        "same SM guaranteed (paper)": [*df.colocates, ""],
        "holds both, at least, % of time": [*held, ""],
        "fewer holes (paper)": [*df.reduces_quantization, ""],
        "4 tiles more than a wave, %": [f"{percent:+.0f}" for percent in (*df.step_percent, oracle_step())],
    }
    return pd.DataFrame(columns, index=[*df.method.map(NAMES), f"{BASE}: longer loop alone"])


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
