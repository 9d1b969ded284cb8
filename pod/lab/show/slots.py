"""A GPU of four SMs, slot by slot: which CTA had which, and when."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pod.kernels import fusion
from pod.kernels.trace import both_share
from pod.lab.show import style
from pod.lab.show.gantt import gantt, idle_share
from pod.schedule.waves import Ran

SMS = range(4)


def on_sms(ax: Axes, ran: Sequence[Ran], kinds: str | Sequence[str], words: str, until: float, unit: str = "tiles",
           labels: Sequence | None = None) -> None:  # fmt: skip
    """What `run` of pod.schedule.waves made of SMs with one slot each. Over it stand `words`, when the last CTA ends,
    and the idle part of all SMs' time until then. `kinds`: one for all CTAs, or one for each; `labels`: in the bars."""
    kind = [kinds] * len(ran) if isinstance(kinds, str) else kinds
    bars = [(r.slot, r.start, r.end, kind[r.cta], labels[r.cta] if labels else f"tile {r.cta}") for r in ran]
    gantt(bars, rows=SMS, unit=unit, ax=ax).get_legend().remove()
    end, idle = max(r.end for r in ran), idle_share(bars, rows=SMS)
    ax.set_xlim(0, until)
    ax.set_title(f"{words}: time {end:g}, idle {100 * idle:.0f} %", fontsize=10)


def then(first: Sequence[Ran], second: Sequence[Ran]) -> list[Ran]:
    """A second kernel after the first, whose last CTA it waits for. Its CTAs are counted on."""
    end = max(r.end for r in first)
    return [*first, *(Ran(len(first) + r.cta, r.slot, end + r.start, end + r.end) for r in second)]


def ways(work: fusion.Work, *methods: str) -> Figure:
    """Two loops on the emulator, a panel a method: its CTAs, and its time over the oracle, which is the dashed line."""
    best = fusion.oracle(work)
    panels = style.axes(9.5, 1.25 * len(methods) + 0.9, rows=len(methods), sharex=True)
    for ax, method in zip(panels if len(methods) > 1 else [panels], methods, strict=True):
        trace = fusion.record(work, method)
        slots = 4 if method == "warp" else 2  # two halves in each CTA's slot
        gantt(fusion.bars(trace), rows=SMS, slots_per_row=slots, ax=ax).get_legend().remove()
        ax.axvline(best, color=style.INK, linestyle="--")
        most = "at most " if method == "interleaved" else ""  # its CTAs count as both to their ends
        share = f"SMs hold both {most}{100 * both_share(trace, fusion.ALONE):.0f} % of the time"
        ax.set_title(f"{fusion.NAMES[method]}: {trace.end.max() / best:.2f} × oracle, {share}", fontsize=10, loc="left")
        ax.set(xlim=(0, 2.03 * best), xlabel="")
    ax.set_xlabel("time, µs (dashed: the oracle)")
    return ax.figure
