"""How a number spreads over many cases: one violin a way, with its quartiles and its mean."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes

from pod.lab.show import style


def violins(
    ax: Axes, spreads: Mapping[str, Sequence[float]], tones: Sequence[str], mean: Callable, size: float = 10
) -> Axes:
    """One violin a name: all values, a dark bar for the middle half, a dot for the median, and `mean` in bold above."""
    made = ax.violinplot(list(spreads.values()), showextrema=False, widths=0.85, points=200)
    for body, tone in zip(made["bodies"], tones, strict=True):
        body.set(facecolor=tone, alpha=0.85, edgecolor=tone)
    for x, values in enumerate(spreads.values(), 1):
        low, middle, high = values.quantile([0.25, 0.5, 0.75])
        ax.vlines(x, low, high, color=style.INK, linewidth=5)
        ax.plot(x, middle, "o", color="white", markersize=3.5, zorder=3)
        ax.text(x, values.max() + 0.03, f"{mean(values):.2f}×", ha="center", fontsize=size, fontweight="bold")
    ax.axhline(1, color=style.INK, linewidth=0.8, zorder=0)
    ax.set_xticks(range(1, len(spreads) + 1), list(spreads))
    return ax
