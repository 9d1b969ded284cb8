"""Pictures of serving, all drawn from the event log: slots over iterations, requests over time, blocks in the pool."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from pod.lab.show import style
from pod.lab.show.lanes import lanes, longest_gap
from pod.serving.events import Log

IDLE, PREFILL, DECODE = "idle", "prefill", "decode"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def name(request: int) -> str:
    return LETTERS[request] if request < len(LETTERS) else str(request)


def slot_table(log: Log, slots: int) -> list[tuple[int, int, int, str]]:
    """(slot, tick, request, what it did) of every cell in use; a request keeps its slot until it is answered."""
    cells, seat = [], {}
    for tick, event in enumerate(log.iterations):
        doing = {c[0]: PREFILL for c in event.prefills} | dict.fromkeys(event.decodes, DECODE)
        doing |= dict.fromkeys(event.idle, IDLE)
        for gone in [r for r in seat if r not in doing]:  # preempted
            del seat[gone]
        for request, what in doing.items():
            if request not in seat:
                seat[request] = min(set(range(slots)) - set(seat.values()))
            cells.append((seat[request], tick, request, what))
        for request in event.finished:
            seat.pop(request, None)
    return cells


def wasted(log: Log, slots: int) -> float:
    """Share of all slots of all iterations in which nothing useful ran."""
    useful = sum(what != IDLE for *_, what in slot_table(log, slots))
    return 1 - useful / (slots * len(log.iterations))


def slot_grid(log: Log, slots: int, title: str = "", ticks: int | None = None, ax: Axes | None = None) -> Axes:
    """One cell a slot and iteration, as the posts draw them. Hatched: the slot is held or free, and nothing runs."""
    ticks = ticks or len(log.iterations)
    ax = style.axes(9.5, 0.7 + 0.42 * slots) if ax is None else style.tidy(ax)
    last = {}
    ax.add_patch(Rectangle((0, 0), len(log.iterations), slots, facecolor="white", edgecolor=style.FRAME, hatch="////",
                           linewidth=0))  # fmt: skip
    cells = slot_table(log, slots)
    for slot, tick, request, what in cells:
        if what != IDLE:
            last[request] = (slot, tick)
            ax.add_patch(Rectangle((tick, slot), 1, 1, facecolor=style.colour(what), edgecolor="white", linewidth=1.5))
            ax.text(tick + 0.5, slot + 0.5, name(request), ha="center", va="center", fontsize=9,
                    color=style.text_on(what))  # fmt: skip
    for slot, tick in last.values():
        ax.add_patch(Rectangle((tick + 0.82, slot + 0.08), 0.12, 0.84, facecolor=style.ALARM, linewidth=0))
    ax.set(xlim=(0, ticks), ylim=(slots, 0), yticks=np.arange(slots) + 0.5, xlabel="iteration")
    ax.set_yticklabels([f"slot {i}" for i in range(slots)])
    ax.set_xticks(range(0, ticks + 1, 5))
    ax.set_title(title, fontsize=10, loc="left")
    return ax


def slot_grids(logs: Mapping[str, Log], slots: int) -> Figure:
    """The same requests under several schedulers, one grid above the other on one time axis."""
    ticks = max(len(log.iterations) for log in logs.values())
    figure, axes = _stack(len(logs), 0.75 + 0.36 * slots)
    for ax, (title, log) in zip(axes, logs.items(), strict=True):
        share = f"{100 * wasted(log, slots):.0f} % of the slots wasted"
        slot_grid(log, slots, f"{title}: {len(log.iterations)} iterations, {share}", ticks, ax)
    for ax in axes[:-1]:
        ax.set_xlabel("")
    return figure


def _stack(rows: int, height: float):
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, 1, figsize=(9.5, rows * height), dpi=style.DPI, layout="constrained",
                                squeeze=False)  # fmt: skip
    return figure, axes[:, 0]


# ---------------------------------------------------------------- requests over time


def bars(log: Log, requests: Mapping[int, str], start: float = 0.0, end: float = float("inf")) -> list[tuple]:
    """(row, start, end, kind) of what each request did; iterations that follow one another become one bar."""
    out: dict[str, list[list]] = {row: [] for row in requests.values()}
    for event in log.iterations:
        if event.end <= start or event.scheduled >= end:
            continue
        kinds = {c[0]: PREFILL for c in event.prefills} | dict.fromkeys(event.decodes, DECODE)
        for request in kinds.keys() & requests.keys():
            mine, kind = out[requests[request]], kinds[request]
            begin, stop = max(event.scheduled, start) - start, min(event.end, end) - start
            if mine and kind == DECODE == mine[-1][3] and abs(mine[-1][2] - begin) < 1e-9:
                mine[-1][2] = stop
            else:
                mine.append([requests[request], begin, stop, kind])
    return [tuple(bar) for mine in out.values() for bar in mine]


def tokens(log: Log, requests: Mapping[int, str], start: float = 0.0, end: float = float("inf")) -> dict[str, list]:
    """When each request's tokens came out, from `start` on."""
    out: dict[str, list] = {row: [] for row in requests.values()}
    for event in log.iterations:
        if start <= event.end <= end:
            for request in [c[0] for c in event.prefills if c[3]] + event.decodes:
                if request in requests:
                    out[requests[request]].append(event.end - start)
    return out


def request_lanes(
    logs: Mapping[str, Log], requests: Mapping[int, str], start: float, end: float, watch: Sequence[int] = ()
) -> Figure:
    """What some requests {id: name} went through between two times, one panel a system, on one time axis.

    The title of a panel says the longest gap between tokens of the requests `watch`.
    """
    figure, axes = _stack(len(logs), 0.6 + 0.26 * len(requests))
    rows = list(requests.values())
    for ax, (title, log) in zip(axes, logs.items(), strict=True):
        arrived = {requests[i]: t - start for i, t, *_ in log.requests if i in requests and start <= t <= end}
        came = tokens(log, requests, start, end)
        lanes(bars(log, requests, start, end), came, arrived, rows=rows, unit="s", ax=ax)
        ax.set_xlim(0, end - start)
        gaps = [stop - begin for i in watch for begin, stop in [longest_gap(came[requests[i]])]]
        words = f": longest gap {max(gaps) * 1000:.0f} ms" if gaps else ""
        ax.set_title(title + words, fontsize=10, loc="right")
        ax.get_legend().remove()
        ax.set_xlabel("time, s" if ax is axes[-1] else "")
    marks = [Rectangle((0, 0), 1, 1, color=style.colour(kind)) for kind in (PREFILL, DECODE)]
    marks += [Line2D([], [], color=style.INK, marker=".", linestyle=""),
              Line2D([], [], color=style.ALARM, marker=">", linestyle="")]  # fmt: skip
    axes[0].legend(marks, ("prefill", "decode", "token", "arrival"), frameon=False, fontsize=9, ncols=4,
                   loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)  # fmt: skip
    return figure


def iteration_strip(logs: Mapping[str, Log], start: float, end: float) -> Figure:
    """One bar an iteration, as long as it took: prompts, decodes, or both."""
    figure, axes = _stack(len(logs), 0.85)
    for ax, (title, log) in zip(axes, logs.items(), strict=True):
        style.tidy(ax)
        for event in log.iterations:
            if event.end > start and event.scheduled < end:
                kind = "hybrid" if event.prefills and event.decodes else PREFILL if event.prefills else DECODE
                ax.add_patch(Rectangle((event.scheduled - start, 0), event.seconds, 1, facecolor=style.colour(kind),
                                       edgecolor="white", linewidth=0.3, label=kind))  # fmt: skip
        ax.set(xlim=(0, end - start), ylim=(0, 1), yticks=[])
        ax.spines["left"].set_visible(False)
        ax.set_title(title, fontsize=10, loc="right")
        style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.1)
    axes[-1].set_xlabel("time, s")
    return figure


def request_grid(log: Log, title: str = "", ax: Axes | None = None, waits: str = "") -> Axes:
    """One row a request, one column an iteration; a cell says how many tokens were computed. What lies between, from a
    preemption to the return, is hatched. `waits`: the words for who is there and gets nothing."""
    rows = [i for i, *_ in log.requests]
    ax = style.axes(9.5, 0.8 + 0.36 * len(rows)) if ax is None else style.tidy(ax)
    away: dict[int, tuple[int, str]] = {}
    last: dict[int, int] = {}  # iteration with work
    for tick, event in enumerate(log.iterations):
        away |= {i: (tick, how) for i, how in event.preempted}
        work = {c[0]: (PREFILL, c[1]) for c in event.prefills} | {i: (DECODE, 1) for i in event.decodes}
        for i, (kind, count) in work.items():
            if i in away:
                since, how = away.pop(i)
                _absent(ax, since, tick, rows.index(i), "swapped out" if how == "swap" else "dropped")
            elif waits and tick > last.get(i, tick) + 1:
                ax.text((last[i] + 1 + tick) / 2, rows.index(i) + 0.5, waits, ha="center", va="center", fontsize=8.5,
                        linespacing=0.95, color=style.INK)  # fmt: skip
            last[i] = tick
            ax.add_patch(Rectangle((tick, rows.index(i) + 0.06), 1, 0.88, facecolor=style.colour(kind),
                                   edgecolor="white", linewidth=1.2, label=kind))  # fmt: skip
            ax.text(tick + 0.5, rows.index(i) + 0.5, str(count), ha="center", va="center", fontsize=8.5,
                    color=style.text_on(kind))  # fmt: skip
    ax.set(xlim=(0, len(log.iterations)), ylim=(len(rows), 0), yticks=np.arange(len(rows)) + 0.5, xlabel="iteration",
           yticklabels=[name(i) for i in rows])  # fmt: skip
    ax.set_title(title, fontsize=10, loc="right")
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)
    return ax


def _absent(ax: Axes, start: int, end: int, row: int, words: str) -> None:
    if end > start:
        ax.add_patch(Rectangle((start, row + 0.06), end - start, 0.88, facecolor="white", edgecolor=style.FRAME,
                               hatch="////", linewidth=0))  # fmt: skip
        if end - start > 2:
            ax.text((start + end) / 2, row + 0.5, words, ha="center", va="center", fontsize=8.5, color=style.INK,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip


def request_grids(logs: Mapping[str, Log], waits: str = "") -> Figure:
    figure, axes = _stack(len(logs), 0.85 + (0.44 if waits else 0.34) * len(next(iter(logs.values())).requests))
    longest = max(len(log.iterations) for log in logs.values())
    for ax, (title, log) in zip(axes, logs.items(), strict=True):
        request_grid(log, f"{title}: {len(log.iterations)} iterations", ax, waits)
        ax.set_xlim(0, longest)
        ax.set_xlabel("iteration" if ax is axes[-1] else "")
    return figure


# ---------------------------------------------------------------- blocks


def pool_picture(tables: Mapping[str, Mapping[int, Sequence[int]]], blocks: int, across: int = 12) -> Figure:
    """The pool at a few moments {title: block tables}: each block in the colour of its owner, numbered in the order
    of the owner's table."""
    from matplotlib import pyplot as plt

    rows, side = -(-blocks // across), min(0.33, 9.2 / (across * len(tables)))
    figure, axes = plt.subplots(1, len(tables), figsize=(9.5, 0.7 + side * rows), dpi=style.DPI, layout="constrained",
                                squeeze=False)  # fmt: skip
    for ax, (title, owners) in zip(axes[0], tables.items(), strict=True):
        for block in range(blocks):
            ax.add_patch(Rectangle((block % across, block // across), 1, 1, facecolor=style.IDLE, edgecolor="white"))
        for request, table in owners.items():
            tone = style.WORKERS[request % len(style.WORKERS)]
            for place, block in enumerate(table):
                ax.add_patch(Rectangle((block % across, block // across), 1, 1, edgecolor="white",
                                       facecolor=tone))  # fmt: skip
                ax.text(block % across + 0.5, block // across + 0.5, f"{name(request)}{place}", ha="center",
                        va="center", fontsize=8.5, color=style.letters_on(tone))  # fmt: skip
        ax.set(xlim=(0, across), ylim=(rows, 0), aspect="equal", xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.set_title(title, fontsize=9.5)
    return figure


def pipeline(logs: Mapping[str, Log], start: float, end: float, unit: str = "ms", scale: float = 1e3) -> Figure:
    """Stages over time: a bar is a micro-batch on a stage and carries its number; grey between bars is a bubble."""
    stages = len(next(iter(logs.values())).iterations[0].stages)
    figure, axes = _stack(len(logs), 0.8 + 0.36 * stages)
    for ax, (title, log) in zip(axes, logs.items(), strict=True):
        stages_on(ax, log, start, end, unit, scale)
        ax.set_title(title, fontsize=10, loc="right")
    for ax in axes[:-1]:
        ax.set_xlabel("")
    return figure


def stages_on(ax: Axes, log: Log, start: float, end: float, unit: str = "ms", scale: float = 1e3) -> None:
    from pod.lab.show.gantt import gantt

    records = []
    for event in log.iterations:
        kind = "hybrid" if event.prefills and event.decodes else PREFILL if event.prefills else DECODE
        for stage, (begin, stop) in enumerate(event.stages):
            if stop > start and begin < end:
                inside = (max(begin, start) - start) * scale, (min(stop, end) - start) * scale
                records.append((f"stage {stage}", *inside, kind, str(event.lane)))
    gantt(records, [f"stage {i}" for i in range(len(log.iterations[0].stages))], unit=unit, ax=ax, slots_per_row=1)
    ax.set_xlim(0, (end - start) * scale)


def bubble_share(log: Log, start: float, end: float) -> float:
    """Share of the stages' time between two moments in which no batch was on them."""
    stages = len(log.iterations[0].stages)
    busy = sum(max(0.0, min(stop, end) - max(begin, start)) for event in log.iterations for begin, stop in event.stages)
    return 1 - busy / (stages * (end - start))


def gap_histogram(gaps: Mapping[str, Sequence[float]], limits: Sequence[float]) -> Figure:
    """How often each wait between two tokens occurs, a line a system; `limits` in seconds are marked."""
    ax, bins = style.axes(9.5, 3.2), np.geomspace(0.008, 12, 70)
    tones = style.colour("linear"), style.WORKERS[1], style.WORKERS[0]
    for (system, mine), tone in zip(gaps.items(), tones, strict=True):
        share = np.histogram(mine, bins)[0] / len(mine)
        ax.stairs(np.maximum(share, 1e-7), bins, label=system, color=tone, linewidth=2)
    for limit in limits:
        ax.axvline(limit, color=style.INK, linestyle="--", linewidth=1)
    marked = " and ".join(f"{1000 * limit:g}" for limit in limits)
    ax.set(xscale="log", yscale="log", ylim=(1e-6, 0.4), xlabel=f"TBT, s (dashed: {marked} ms)",
           ylabel="share of all tokens")  # fmt: skip
    style.legend(ax, loc="upper right")
    return ax.figure
