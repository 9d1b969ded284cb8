"""Requests side by side over time: when each one's tokens arrive, and how long its user waits for the next."""

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes

from pod.lab.show import style
from pod.lab.show.gantt import gantt, spans


def longest_gap(times: Sequence[float]) -> tuple[float, float]:
    """Start and end of the longest wait between two tokens of one request."""
    if len(times) < 2:
        raise ValueError(f"times: got {len(times)} tokens, allowed are two or more")
    times = sorted(times)
    return max(zip(times, times[1:], strict=False), key=lambda pair: pair[1] - pair[0])


def lanes(
    records: Iterable,
    tokens: Mapping[str, Sequence[float]] | None = None,
    arrivals: Mapping[str, float] | None = None,
    gap_of: str | None = None,
    rows: Sequence[str] | None = None,
    **options,
) -> Axes:
    """One lane a request: bars (row, start, end, kind[, label]) for its work, a dot for each token that the user sees,
    a triangle for its arrival. The longest wait between tokens of the request `gap_of` is measured with an arrow."""
    bars = spans(records)
    rows = list(dict.fromkeys(b.row for b in bars) if rows is None else rows)
    ax = gantt(bars, rows, **options)
    for row, times in (tokens or {}).items():
        ax.plot(times, [rows.index(row) + 0.5] * len(times), ".", color=style.INK, markersize=5, label="token")
    for row, time in (arrivals or {}).items():
        ax.plot(time, rows.index(row) + 0.5, ">", color=style.ALARM, markersize=8, label="arrival", clip_on=False)
    if gap_of is not None:
        start, end = longest_gap((tokens or {})[gap_of])
        y = rows.index(gap_of) + 0.72
        ax.annotate("", (start, y), (end, y), arrowprops={"arrowstyle": "<->", "color": style.INK, "linewidth": 1.2})
        words = f"{end - start:.2g} {options.get('unit', '')} without a token"
        ax.text((start + end) / 2, y - 0.08, words, ha="center", va="bottom", fontsize=9, fontweight="bold")
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6, borderaxespad=0.2)
    return ax
