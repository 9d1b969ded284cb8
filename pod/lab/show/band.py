"""The band in which every way of running two operations on one GPU ends: from max(a, b), side by side without any
interference, to a + b, one after the other."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from pod.lab.show import style


def overlap(time: float, a: float, b: float) -> float:
    """Where in the band a time lies: 0 at a + b, 1 at max(a, b). Below 0 is slower than one after the other."""
    _check(time=time, a=a, b=b)
    return (a + b - time) / min(a, b)


def _check(**times: float) -> None:
    for name, time in times.items():
        if not time > 0:
            raise ValueError(f"{name}: got {time!r}, allowed are times above 0")


def band(
    cases: Mapping[str, Sequence], ratios: tuple[float, float] = (1 / 8, 8), words: bool = True, ax: Axes | None = None
) -> Axes:
    """Time over max(a, b) against a / b, with a = prefill and b = decode alone.

    `cases` {label: (a, b)} or {label: (a, b, {method: time})}. The first form marks the height of the band, which is
    the best possible speed-up; the second puts each method's time into it. `words=False` is for small panels.
    """
    ax = style.axes(9.5, 4.2) if ax is None else style.tidy(ax)
    r = np.geomspace(*ratios, 201)
    ax.fill_between(r, 1, _top(r), color=style.IDLE, zorder=0)
    ax.plot(r, _top(r), color=style.INK, linewidth=1.6)
    ax.plot(r, np.ones_like(r), color=style.INK, linewidth=1.6)
    for label, case in cases.items():
        _case(ax, label if words else None, *case)
    ax.set(xscale="log", xlim=ratios, ylim=(0.9, 2.12))
    ticks = [t for t in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16) if ratios[0] <= t <= ratios[1]]
    ax.set_xticks(ticks, [f"{t:g}" if t >= 1 else f"1/{1 / t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set_xlabel("prefill time / decode time, each alone")
    ax.set_ylabel("time / max(prefill, decode)")
    if words:
        _name_edges(ax, ratios[1])
    return ax


def _name_edges(ax: Axes, right: float) -> None:
    ax.text(1, 0.965, "perfect overlap: the larger, max(a, b)", fontsize=9, va="top", ha="center")
    edge = right**0.75
    ax.annotate("one after the other:\nthe sum, a + b", (edge, _top(edge)), (right, 1.56), ha="right", fontsize=9,
                arrowprops={"arrowstyle": "-", "color": style.FRAME})  # fmt: skip


def _top(ratio):
    """(a + b) / max(a, b)."""
    return 1 + np.minimum(ratio, 1 / np.asarray(ratio))


def _case(ax: Axes, label: str | None, a: float, b: float, times: Mapping[str, float] | None = None) -> None:
    _check(a=a, b=b, **(times or {}))
    ratio, top = a / b, float(_top(a / b))
    tone, side = (style.PREFILL, "left") if a > b else (style.DECODE, "right")
    ax.plot([ratio, ratio], [1, top], color=tone, linewidth=1.6, zorder=2)
    if times is None:
        ax.plot([ratio, ratio], [1, top], "o", color=tone, markersize=6, zorder=3)
    for (method, time), marker in zip((times or {}).items(), "osD^vP*X", strict=False):
        ax.plot(ratio, time / max(a, b), marker, color=tone, markeredgecolor="white", markersize=8, zorder=3)
        ax.annotate(method, (ratio, time / max(a, b)), (7, 0), textcoords="offset points", fontsize=9, va="center")
    if label is not None:
        best = f"\nup to {top:.2f}×" if times is None else ""
        ax.annotate(label + best, (ratio, top), (8 if a > b else -8, 2), textcoords="offset points", ha=side,
                    fontsize=9, fontweight="bold")  # fmt: skip
