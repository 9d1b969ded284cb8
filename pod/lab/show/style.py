"""One look for all pictures. Prefill is blue and decode is orange everywhere; the pair survives colour blindness.

Nothing here changes matplotlib's global settings, so a figure does not depend on what was drawn before it."""

from pathlib import Path

from matplotlib import font_manager, get_data_path
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

PREFILL, DECODE = "#4c78a8", "#f58518"
INK, LIT, DIM, FRAME, IDLE = "#22303c", "#ffd166", "#fff6dc", "#c9d1d9", "#f1f4f7"
WORKERS = ("#54a24b", "#643a6e", "#e0457b", "#844b0b", "#dc97ed", "#4f3517", "#a0e3b2", "#b1e774")  # requests, ways
SMS = ("#264653", "#9d755d", "#8c510a", "#c51b7d", "#e377c2")  # one an SM or CTA; none means prefill or decode
ALARM = "#a50f2b"  # what is wrong, or waits
BUSY = {"compute": WORKERS[1], "dram": WORKERS[4]}  # what a counter says of SMs and of memory
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
    "merge": "#643a6e",
    "load": "#a0e3b2",
    "host": "#d8b365",
    "wait": "#e3e8ed",
}


def complete_fonts() -> None:
    """matplotlib keeps one list of fonts for all its installations. What another one wrote, or one that was being taken
    away, lacks those that mathematics is set in, and every logarithmic axis would say so."""
    if "STIXGeneral" not in font_manager.get_font_names():
        for path in sorted(Path(get_data_path(), "fonts", "ttf").glob("*.ttf")):
            font_manager.fontManager.addfont(path)


complete_fonts()


def colour(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, allowed are {', '.join(KINDS)}")
    return KINDS[kind]


def text_on(kind: str) -> str:
    """A readable colour for letters on a bar of this kind."""
    return letters_on(colour(kind))


def letters_on(tone: str) -> str:
    """White or dark, whichever is read more easily on it."""
    light = luminance(tone) + 0.05
    return "white" if 1.05 / light > light / (luminance(INK) + 0.05) else INK


def luminance(tone: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(tone)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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


def ticks(ax: Axes, places, words=None, axis: str = "x", **font) -> None:
    """These ticks and no others, as on a logarithmic axis; `words` are the numbers unless given."""
    words = [f"{place:g}" for place in places] if words is None else words
    ax.set(**{f"{axis}ticks": places})
    getattr(ax, f"set_{axis}ticklabels")(words, **font)
    ax.minorticks_off()


def legend(ax: Axes, **where) -> None:
    """The legend of what was drawn, each label once."""
    ax.legend(*_once(ax), frameon=False, fontsize=9, **where)


def legend_outside(ax: Axes, side: str, ncols: int) -> Figure:
    """The same for all panels, above ("upper") or below ("lower") them; returns the figure."""
    ax.figure.legend(*_once(ax), loc=f"outside {side} center", ncols=ncols, frameon=False, fontsize=9)
    return ax.figure


def _once(ax: Axes) -> tuple:
    handles, labels = ax.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    return once.values(), once.keys()


def apart(places: list[float], gap: float) -> list[float]:
    """The same places, in the same order, moved until no two are nearer than `gap`: for words at the ends of lines."""
    order, moved = sorted(range(len(places)), key=places.__getitem__), list(places)
    for _ in range(100):
        for low, high in zip(order, order[1:], strict=False):
            lack = max(0.0, gap - (moved[high] - moved[low])) / 2
            moved[low], moved[high] = moved[low] - lack, moved[high] + lack
    return moved
