"""Who read and wrote what, when: one run of a cell's kernel, thread by thread and between which barriers."""

from matplotlib.axes import Axes

from pod.lab.show import style

MOST_PANELS = 4
WRITE, READ, FAULT = style.WORKERS[1], style.INK, style.ALARM
MARKS = {"w": ("s", "writes"), "r": ("o", "reads"), "a": ("^", "atomic")}


def history(watched, memory: str | None = None, axes=None) -> Axes:
    """Panels of the times between barriers; in each, threads to the right and elements of `memory` upwards.

    Where a column of one panel has a filled mark and a ring on one row, somebody writes what somebody reads with no
    barrier between. The fault, if there was one, is red.
    """
    fault, known = watched.fault, watched.memories
    memory = memory or (fault.element[0] if fault and fault.element else next(iter(known)))
    if memory not in known:
        raise ValueError(f"memory: got {memory!r}, allowed are {', '.join(known)}")
    cta = fault.ctas[0] if fault else 0
    events = [e for e in watched.report.events if e.memory == known[memory] and e.cta == cta]
    last = min(max((e.phase for e in events), default=0), MOST_PANELS - 1)
    panels = style.axes(min(9.5, 5.0 * (last + 1)), 3.4, last + 1, sharey=True) if axes is None else axes
    panels = list(panels) if last else [panels]
    kinds = [kind for kind in MARKS if any(e.kind == kind for e in events)]
    for phase, ax in enumerate(panels):
        now = [e for e in events if e.phase == phase]
        _panel(ax, now, kinds, watched.launch.threads)
        if last:
            ax.set_title(f"after barrier {phase}" if phase else "before the first barrier", fontsize=10, loc="right")
        if fault and fault.element and fault.element[0] == memory:
            _mark(ax, fault, now)
    panels[0].set_ylabel(f"element of {memory}")
    style.legend(panels[0], loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)
    return panels[0]


def _panel(ax: Axes, events: list, kinds: list[str], threads: int) -> None:
    for kind in kinds:
        mark, words = MARKS[kind]
        places = [[getattr(e, of) for e in events if e.kind == kind] for of in ("thread", "element")]
        fill = {"facecolors": "none", "edgecolors": READ} if kind == "r" else {"color": WRITE}
        ax.scatter(*places, s=22, marker=mark, linewidths=1.0, label=words, **fill)
    ax.set(xlabel="thread", xlim=(-2, threads + 1))


def _mark(ax: Axes, fault, events: list) -> None:
    """The two accesses, where this panel has them; only the last of each, as the run ended there."""
    index = fault.element[1]
    here = {e.thread: e for e in events if e.element == index and e.thread in fault.threads}
    for i, event in enumerate(here.values()):
        ax.scatter(event.thread, index, s=150, facecolors="none", edgecolors=FAULT, linewidths=2)
        words = f"thread {event.thread} {'reads' if event.kind == 'r' else 'writes'} [{index}]"
        line = {"arrowstyle": "-", "color": FAULT, "linewidth": 0.8}
        ax.annotate(words, (event.thread, index), (14, 26 if i else -17), textcoords="offset points", fontsize=9,
                    color=FAULT, va="center", arrowprops=line)  # fmt: skip
