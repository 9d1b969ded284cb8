"""Who read and wrote what, when: one run of a cell's kernel, thread by thread and between which barriers."""

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pod.lab.show import style

MOST_PANELS = 4
LETTER = 4.9  # points that one takes, about
WRITE, READ, FAULT = style.WORKERS[1], style.INK, style.ALARM
MARKS = {"w": ("s", "writes"), "r": ("o", "reads"), "a": ("^", "atomic")}
DOES = {"w": "writes", "r": "reads", "a": "changes"}


def history(watched, memory: str | None = None, axes=None) -> Axes:
    """Panels of the times between barriers; in each, threads to the right and elements of `memory` upwards. Of a race
    of two CTAs, the threads of both.

    Where a column of one panel has a filled mark and a ring on one row, somebody writes what somebody reads with no
    barrier between. The fault, if there was one, is red; what lies outside of the memory, next to its end.
    """
    fault, known = watched.fault, watched.memories
    memory = memory or (fault.element[0] if fault and fault.element else next(iter(known), None))
    if memory not in known:
        raise ValueError(f"memory: got {memory!r}, allowed are {', '.join(known) or 'none: the kernel has no memory'}")
    ctas = sorted(set(fault.ctas)) if fault else [0]
    events = [e for e in watched.report.events if e.memory == known[memory] and e.cta in ctas]
    last = max((e.phase for e in events), default=0)
    phases = range(max(0, last - MOST_PANELS + 1), last + 1)  # a fault is among the latest
    panels = style.axes(min(9.5, 5.0 * len(phases)), 3.4, len(phases), sharey=True) if axes is None else axes
    panels = list(panels) if len(phases) > 1 else [panels]
    faulty = _faulty(fault, events) if fault and fault.element and fault.element[0] == memory else []
    kinds = [kind for kind in MARKS if any(e.kind == kind for e in events)]
    for phase, ax in zip(phases, panels, strict=True):
        now = [e for e in events if e.phase == phase]
        _panel(ax, now, kinds, watched.launch.threads, ctas)
        if len(phases) > 1:
            ax.set_title(_when(phase, last), fontsize=10, loc="right")
    panels[0].set_ylabel(f"element of {memory}")
    panels[0].yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if fault and fault.kind == "out of bounds" and fault.element and fault.element[0] == memory:
        _mark_outside(panels[-1], fault, watched.lengths[memory])
    for phase, ax in zip(phases, panels, strict=True):
        for i, event in enumerate(e for e in faulty if e.phase == phase):
            column, place = _column(event, watched.launch.threads, ctas), watched.place(memory, event.element)
            _mark(ax, (column, event.element), f"thread {event.thread} {DOES[event.kind]} {place}", i)
    above = 1.0 if len(phases) == 1 else 1.09  # the titles
    style.legend(panels[0], loc="lower left", bbox_to_anchor=(0, above), ncols=3, borderaxespad=0.2)
    return panels[0]


def _when(phase: int, last: int) -> str:
    """Barriers are counted from 1; if there is only one, it has no number."""
    if last == 1:
        return "after the barrier" if phase else "before the barrier"
    return f"after barrier {phase}" if phase else "before barrier 1"


def _column(event, threads: int, ctas: list[int]) -> int:
    """CTAs stand side by side, with room for a warp between them."""
    return ctas.index(event.cta) * (threads + 32) + event.thread


def _panel(ax: Axes, events: list, kinds: list[str], threads: int, ctas: list[int]) -> None:
    for kind in kinds:
        mark, words = MARKS[kind]
        mine = [e for e in events if e.kind == kind]
        places = [_column(e, threads, ctas) for e in mine], [e.element for e in mine]
        fill = {"s": 44, "facecolors": "none", "edgecolors": READ} if kind == "r" else {"s": 11, "color": WRITE}
        ax.scatter(*places, marker=mark, linewidths=1.0, label=words, **fill)  # a ring goes around what is written
    ax.set(xlabel="thread", xlim=(-2, threads + 1))
    if len(ctas) > 1:
        first = threads + 32
        ends = [0, threads - 1, first, first + threads - 1]
        ax.set(xlabel=f"thread of CTA {ctas[0]}; of CTA {ctas[1]}", xlim=(-2, first + threads + 1))
        ax.set_xticks(ends, [str(end % first) for end in ends])


def _faulty(fault, events: list) -> list:
    """The two accesses; only the last of each thread, as the run ended there."""
    who = set(zip(fault.ctas, fault.threads, strict=False))
    mine = [e for e in events if e.element == fault.element[1] and (e.cta, e.thread) in who]
    return list({(e.cta, e.thread): e for e in mine}.values())


def _mark_outside(ax: Axes, fault, size: int) -> None:
    """An element that is not there, beyond the end that it is nearer to, which a line shows; or one of the next row."""
    if 0 <= fault.element[1] < size:
        return _mark(ax, (fault.threads[0], fault.element[1]), f"thread {fault.threads[0]} beyond its row", 0)
    end, beyond = (-0.5, -1) if fault.element[1] < 0 else (size - 0.5, 1)
    room = max(1.0, 0.08 * size)
    near = abs(fault.element[1] - end) < room
    ax.set_ylim(-0.5 - 2 * room, size - 0.5 + 2 * room)
    ax.axhline(end, color=style.INK, linewidth=0.8, linestyle=":")
    place = fault.element[1] if near else end + beyond * room
    _mark(ax, (fault.threads[0], place), f"thread {fault.threads[0]} at [{fault.element[1]}]", 0)


def _mark(ax: Axes, point: tuple[int, float], words: str, number: int) -> None:
    """A ring around a point, and words above or below it that stay within the panel; a second one's further away."""
    ax.scatter(*point, s=150, facecolors="none", edgecolors=FAULT, linewidths=2)
    x, y = ax.transAxes.inverted().transform(ax.transData.transform(point))
    wide, high = (ax.get_window_extent().transformed(ax.figure.dpi_scale_trans.inverted()).size * 72).tolist()
    half = min(0.5, len(words) * LETTER / 2 / wide)
    away = (20 + 18 * number) / high * (1 if y < 0.5 else -1)
    place = min(max(x, half), 1 - half), y + away
    line = {"arrowstyle": "-", "color": FAULT, "linewidth": 0.8}
    box = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    ax.annotate(words, point, place, textcoords="axes fraction", fontsize=9, color=FAULT, va="center", ha="center",
                arrowprops=line, bbox=box)  # fmt: skip
