"""One look for all pictures. Prefill is blue and decode is orange everywhere; the pair survives colour blindness.

Nothing here changes matplotlib's global settings, so a figure does not depend on what was drawn before it."""

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

PREFILL, DECODE = "#4c78a8", "#f58518"
INK, LIT, DIM, FRAME, IDLE = "#22303c", "#ffd166", "#fff6dc", "#c9d1d9", "#f1f4f7"
WORKERS = (PREFILL, DECODE, "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#79706e")
SMS = ("#264653", "#9d755d", "#8c510a", "#c51b7d", "#e377c2")  # one an SM or CTA; none means prefill or decode
ALARM = "#c0392b"  # what is wrong, or waits
DPI = 110

# What a bar or a lane can be doing. Two operations have colours; all that serves them is a shade between.
KINDS = {
    "prefill": PREFILL,
    "compute": PREFILL,
    "decode": DECODE,
    "memory": DECODE,
    "hybrid": "#54a24b",
    "both": "#54a24b",
    "linear": "#9aa7b4",
    "merge": "#b279a2",
    "load": "#72b7b2",
    "host": "#d8b365",
    "wait": "#e3e8ed",
}


def colour(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, allowed are {', '.join(KINDS)}")
    return KINDS[kind]


def text_on(kind: str) -> str:
    """A readable colour for letters on a bar of this kind."""
    return "white" if kind in ("prefill", "compute", "hybrid", "both", "merge") else INK


def axes(width: float, height: float, columns: int = 1, rows: int = 1, **options):
    """A figure of width x height inches with tidy axes: one Axes, or an array of them for several columns or rows."""
    _, made = plt.subplots(rows, columns, figsize=(width, height), dpi=DPI, layout="constrained", **options)
    for ax in [made] if columns == rows == 1 else made.flat:
        tidy(ax)
    return made


def tidy(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=9)
    return ax


def legend(ax: Axes, **where) -> None:
    """The legend of what was drawn, each label once."""
    handles, labels = ax.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    ax.legend(once.values(), once.keys(), frameon=False, fontsize=9, **where)


def apart(places: list[float], gap: float) -> list[float]:
    """The same places, in the same order, moved until no two are nearer than `gap`: for words at the ends of lines."""
    order, moved = sorted(range(len(places)), key=places.__getitem__), list(places)
    for _ in range(100):
        for low, high in zip(order, order[1:], strict=False):
            lack = max(0.0, gap - (moved[high] - moved[low])) / 2
            moved[low], moved[high] = moved[low] - lack, moved[high] + lack
    return moved
