"""Rooflines of one or several GPUs, and what is attainable under them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from pod.hardware import GPU
from pod.lab.show import style

LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D")


class Point(NamedTuple):
    """Work with a FLOPs-per-byte ratio. Without a measured rate it is drawn where each roof allows it to be."""

    label: str
    intensity: float
    kind: str
    flops_per_s: float | None = None


def roofline(
    gpus: Sequence[GPU], points: Iterable = (), xlim: tuple[float, float] = (0.5, 16384), ax: Axes | None = None
) -> Axes:
    """Attainable TFLOP/s over FLOPs per byte, both logarithmic; `points` are (label, intensity, kind[, FLOP/s])."""
    points = [Point(*p) for p in points]
    for p in points:
        if not xlim[0] <= p.intensity <= xlim[1]:
            raise ValueError(f"points: got {p.intensity:g} FLOPs per byte for {p.label!r}, allowed are {xlim}")
    ax = style.axes(9.5, 4.4) if ax is None else style.tidy(ax)
    low = min(g.attainable(xlim[0]) for g in gpus) / 1e12
    ax.set(xscale="log", yscale="log", xlim=xlim, ylim=(low / 1.6, max(g.tensor_flops for g in gpus) / 1e12 * 2.2))
    for gpu, line in zip(gpus, LINES, strict=False):
        crossed = any(p.intensity > gpu.ridge for p in points)  # words on the roof would be, by the points' lines
        _roof(ax, gpu, line, xlim, crossed)
    for p in points:
        crowded = any(q.intensity < p.intensity < 1.4 * q.intensity for q in points)
        _point(ax, p, gpus, "left" if crowded else "right")
    ax.set_xlabel("FLOPs per byte of DRAM traffic")
    ax.set_ylabel("attainable TFLOP/s")
    ticks = [t for t in (1, 4, 16, 64, 256, 1024, 4096, 16384) if xlim[0] <= t <= xlim[1]]
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks])
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    ax.minorticks_off()
    return ax


def _roof(ax: Axes, gpu: GPU, line: str, xlim: tuple[float, float], outside: bool) -> None:
    """`outside` writes the GPU's limits behind the end of its roof, else above it."""
    x, top = np.array([xlim[0], gpu.ridge, xlim[1]]), gpu.tensor_flops / 1e12
    ax.plot(x, gpu.attainable(x) / 1e12, line, color=style.INK, linewidth=1.6, label=gpu.name)
    ax.plot(gpu.ridge, top, "|", color=style.INK, markersize=14)
    limits = f"{top:,.0f} TFLOP/s, {gpu.dram_bytes_per_s / 1e12:.1f} TB/s"
    if outside:
        ax.annotate(f"{gpu.name}\n{limits}\nridge {gpu.ridge:.0f}", (xlim[1], top), (6, 0), va="center",
                    textcoords="offset points", fontsize=9, color=style.INK)  # fmt: skip
        return
    words = f"{gpu.name}: {limits}, ridge {gpu.ridge:.0f}"
    ax.annotate(words, (gpu.ridge * 1.3, top), (0, 7), textcoords="offset points", fontsize=9, color=style.INK,
                zorder=4, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip


def _point(ax: Axes, p: Point, gpus: Sequence[GPU], align: str) -> None:
    """`align` "right" writes the words of a tall line before it, "left" behind it."""
    tone = style.colour(p.kind)
    heights = [g.attainable(p.intensity) for g in gpus] if p.flops_per_s is None else [p.flops_per_s]
    ax.plot([p.intensity] * 2, [ax.get_ylim()[0], max(heights) / 1e12], color=tone, linewidth=1, zorder=1)
    for height, marker in zip(heights, MARKERS, strict=False):
        ax.plot(p.intensity, height / 1e12, marker, color=tone, markeredgecolor="white", markersize=8, zorder=3)
    low, high = ax.get_ylim()
    above = max(heights) / 1e12 < high / 20  # words go where the page is empty
    shift = 2 if align == "left" else -2
    at, offset, align = (max(heights) / 1e12, (4, 9), "center") if above else (low, (shift, 5), align)
    ax.annotate(p.label, (p.intensity, at), offset, ha=align, textcoords="offset points", rotation=90, va="bottom",
                fontsize=9, color=style.INK)  # fmt: skip
