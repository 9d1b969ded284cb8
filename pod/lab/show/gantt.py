"""Who did what, when: one row an SM or a role, one bar a piece of work."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pod.lab.show import style

TALL = 16  # up to so many rows each is named and its bars can carry words
INCHES_PER_LETTER = 0.085


class Span(NamedTuple):
    """One bar. A row is a number (an SM) or a name (a role, a request); `kind` is one of style.KINDS."""

    row: Hashable
    start: float
    end: float
    kind: str
    label: str = ""


def spans(records: Iterable) -> list[Span]:
    """Records as bars: tuples (row, start, end, kind[, label]), mappings, or a DataFrame with these columns."""
    if hasattr(records, "to_dict"):
        records = records.to_dict("records")
    bars = [_span(record) for record in records]
    if not bars:
        raise ValueError("records: got none, allowed is at least one (row, start, end, kind)")
    return bars


def _span(record) -> Span:
    values = [record[k] for k in Span._fields if k in record] if isinstance(record, Mapping) else record
    try:
        bar = Span(*values)
    except TypeError:
        raise ValueError(f"records: got {record!r}, allowed is (row, start, end, kind[, label])") from None
    if not bar.start <= bar.end:
        raise ValueError(f"records: got {record!r}, allowed are bars that end after they start")
    style.colour(bar.kind)
    return bar


def slots(bars: Sequence[Span]) -> list[int]:
    """The slot of each bar within its row, so that bars of one row that overlap in time do not hide each other."""
    free: dict[Hashable, list[float]] = {}
    place = [0] * len(bars)
    for i in sorted(range(len(bars)), key=lambda i: (bars[i].start, bars[i].end)):
        ends = free.setdefault(bars[i].row, [])
        slot = next((s for s, end in enumerate(ends) if end <= bars[i].start + 1e-12), len(ends))
        ends[slot : slot + 1] = [bars[i].end]
        place[i] = slot
    return place


def idle_share(records: Iterable, rows: Sequence | None = None, slots_per_row: int | None = None) -> float:
    """The part of all slots' time, up to the last end, in which nothing runs."""
    bars = spans(records)
    rows = list(dict.fromkeys(b.row for b in bars)) if rows is None else rows
    width = slots_per_row or max(slots(bars)) + 1
    end, start = max(b.end for b in bars), min(b.start for b in bars)
    return 1 - sum(b.end - b.start for b in bars) / (len(rows) * width * (end - start))


def gantt(
    records: Iterable,
    rows: Sequence | None = None,
    unit: str = "",
    marks: Mapping[str, float] | None = None,
    title: str = "",
    slots_per_row: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Bars over time. Grey is idle time, dashed lines are `marks` {words: time}.

    `rows` gives the order, and names rows that stay empty; `slots_per_row` the bars that fit side by side in a row
    (CTAs on an SM), when no row is ever full.
    """
    bars = spans(records)
    rows = _rows(bars) if rows is None else list(rows)
    if lost := {b.row for b in bars} - set(rows):
        raise ValueError(f"rows: got {rows!r}, allowed are sequences that hold every row of the records, also {lost!r}")
    place = slots(bars)
    width = slots_per_row or max(place) + 1
    ax = style.axes(9.5, _height(len(rows), width)) if ax is None else style.tidy(ax)
    begin, end = min(0, *(b.start for b in bars)), max(b.end for b in bars)
    top = -0.035 * len(rows) - 0.2 if marks else 0
    ax.set(xlim=(begin, begin + 1.02 * (end - begin)), ylim=(len(rows), top), title=title)
    gap = 0.06 if len(rows) <= TALL else 0  # many thin rows stand without gaps, or they would flicker
    for y in range(len(rows)):
        ax.add_patch(_box(begin, y + gap, end - begin, 1 - 2 * gap, facecolor=style.IDLE, zorder=0))
    for bar, slot in zip(bars, place, strict=True):
        _draw(ax, bar, rows.index(bar.row) + gap + (1 - 2 * gap) * slot / width, (1 - 2 * gap) / width, words=gap > 0)
    _mark(ax, marks or {})
    _name_rows(ax, rows)
    ax.set_xlabel(f"time, {unit}" if unit else "time")
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6, borderaxespad=0.2)
    return ax


def _rows(bars: Sequence[Span]) -> list:
    """All rows: numbers from 0 to the largest, names in order of appearance."""
    seen = list(dict.fromkeys(b.row for b in bars))
    if all(hasattr(row, "__index__") for row in seen):
        return list(range(max(seen) + 1))
    return seen


def _height(rows: int, width: int) -> float:
    """Inches. Rows that can carry words get room for them, the others two pixels a slot and three at least."""
    return 0.9 + (rows * (0.34 + 0.1 * width) if rows <= TALL else rows * max(2 * width, 3) / style.DPI)


def _box(x: float, y: float, width: float, height: float, **look) -> Rectangle:
    return Rectangle((x, y), width, height, antialiased=False, **look)


def _draw(ax: Axes, bar: Span, y: float, height: float, words: bool) -> None:
    edge = {"edgecolor": "white", "linewidth": 0.8} if words else {"linewidth": 0}
    fill = style.colour(bar.kind)
    ax.add_patch(_box(bar.start, y, bar.end - bar.start, height, facecolor=fill, label=bar.kind, **edge))
    inches = (bar.end - bar.start) / (ax.get_xlim()[1] - ax.get_xlim()[0]) * _inches_wide(ax)
    if words and inches > INCHES_PER_LETTER * len(str(bar.label)):
        ax.text((bar.start + bar.end) / 2, y + height / 2, bar.label, ha="center", va="center", fontsize=8.5,
                color=style.text_on(bar.kind), clip_on=True)  # fmt: skip


def _inches_wide(ax: Axes) -> float:
    return ax.get_position().width * ax.figure.get_figwidth()


def _mark(ax: Axes, marks: Mapping[str, float]) -> None:
    for words, time in marks.items():
        ax.axvline(time, color=style.INK, linestyle="--", linewidth=1.2)
        ax.annotate(words, (time, ax.get_ylim()[1]), (4, -1), textcoords="offset points", fontsize=9, va="top",
                    color=style.INK)  # fmt: skip


def _name_rows(ax: Axes, rows: Sequence) -> None:
    step = 1 if len(rows) <= TALL else -(-len(rows) // 12)
    shown = range(0, len(rows), step)
    names = [f"SM {row}" if hasattr(row, "__index__") else row for row in rows]
    ax.set_yticks([y + 0.5 for y in shown], [names[y] for y in shown])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
