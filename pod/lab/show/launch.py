"""The threads of a launch, where each says that it is: a box a CTA, a row a warp, a cell a thread."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pod.lab.show import style

LANES, ROW = 32, 1.3  # cells of a row; from row to row, in cells' heights


def threads(cta: Sequence[int], warp: Sequence[int], lane: Sequence[int], marked: int) -> Axes:
    """Thread i of the grid lies where `cta[i]`, `warp[i]` and `lane[i]` say; `marked` is the one to look at."""
    ax = style.axes(9.5, 1.7)
    places = [tuple(map(int, place)) for place in zip(cta, warp, lane, strict=True)]
    warps = 1 + max(w for _, w, _ in places)
    for i, (c, w, k) in enumerate(places):
        tone = style.LIT if i == marked else style.IDLE
        ax.add_patch(Rectangle((_left(c) + k, w * ROW), 1, 1, facecolor=tone, edgecolor=style.FRAME, linewidth=0.6))
    for c in sorted({c for c, _, _ in places}):
        own = [i for i, place in enumerate(places) if place[0] == c]
        ax.add_patch(Rectangle((_left(c) - 0.8, -0.4), LANES + 1.6, warps * ROW + 0.5, fill=False,
                               edgecolor=style.INK, linewidth=1.2))  # fmt: skip
        words = f"CTA {c}: i = {min(own)} to {max(own)}"
        ax.text(_left(c) + LANES / 2, -0.6, words, ha="center", va="bottom", fontsize=9)
    for w in range(warps):
        ax.text(-1.3, w * ROW + 0.5, f"warp {w}", ha="right", va="center", fontsize=9)
    c, w, k = places[marked]
    ax.annotate(f"i = {marked}: CTA {c}, warp {w}, lane {k}", (_left(c) + k + 0.5, w * ROW + 1), (0, -24),
                textcoords="offset points", ha="center", va="top", fontsize=9, fontweight="bold",
                arrowprops={"arrowstyle": "-", "color": style.INK})  # fmt: skip
    ax.set(xlim=(-7, _left(max(c for c, _, _ in places)) + LANES + 1), ylim=(warps * ROW + 1.5, -1.6))
    ax.axis("off")
    return ax


def _left(cta: int) -> int:
    """Where the cells of a CTA begin."""
    return cta * (LANES + 4)
