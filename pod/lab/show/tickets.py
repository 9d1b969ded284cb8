"""Pictures of SM-aware binding: the tickets of every SM, and what a policy deals."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pod.kernels.trace import both_over_time, both_share
from pod.lab.show import style
from pod.lab.show.band import overlap
from pod.schedule import binding

LETTERS = {"prefill": "P", "decode": "D"}
COLOURS = {"proportional": style.WORKERS[0], "50:50": style.INK, "integer ratio": style.SMS[1]}


def book(table, upto: int | None = None, ax: Axes | None = None) -> Axes:
    """The tickets of every SM, one row an SM: what its first, second, ... CTA became. `upto`: after so many steps.

    `table` has a row a CTA in the order of their starts: sm, ticket, op, id, draws.
    """
    sms, tickets = table.sm.max() + 1, table.ticket.max() + 1
    ax = style.axes(0.9 + 0.62 * tickets, 0.8 + 0.42 * sms) if ax is None else style.tidy(ax)
    for r in table.iloc[:upto].itertuples():
        second = {"hatch": "///", "edgecolor": "white"} if r.draws == 2 else {"edgecolor": "white"}
        ax.add_patch(Rectangle((r.ticket, r.sm), 1, 1, facecolor=style.colour(r.op), linewidth=2, **second))
        box = {"facecolor": style.colour(r.op), "edgecolor": "none", "pad": 1.5}
        ax.text(r.ticket + 0.5, r.sm + 0.5, f"{LETTERS[r.op]}{r.id}", ha="center", va="center", fontsize=9,
                color=style.text_on(r.op), bbox=box)  # fmt: skip
    ax.set(xlim=(0, tickets), ylim=(sms, 0), xlabel="ticket")
    ax.set_xticks(np.arange(tickets) + 0.5, range(tickets))
    ax.set_yticks(np.arange(sms) + 0.5, [f"SM {sm}" for sm in range(sms)])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def counters(table, upto: int) -> str:
    """What the counters stand at after `upto` CTAs have drawn, in words."""
    drawn = table.iloc[:upto]
    by_sm = ", ".join(str((drawn.sm == sm).sum()) for sm in range(table.sm.max() + 1))
    by_op = ", ".join(f"{op} {(drawn.op == op).sum()}" for op in binding.OPS)
    return f"after {upto}: tickets {by_sm}; {by_op}"


def holding(trace, ax: Axes, sms: int, tone: str) -> float:
    """How many SMs hold both operations over time; returns how many on average. A trace is in seconds."""
    times, counts = both_over_time(trace)
    ax.fill_between(1e6 * np.asarray(times), counts, step="post", color=tone, alpha=0.35, linewidth=0)
    ax.step(1e6 * np.asarray(times), counts, where="post", color=tone, linewidth=2)
    ax.set(ylim=(0, 1.04 * sms), yticks=range(sms + 1))
    return sms * both_share(trace)


def modelled(batch, gpu, ways: Mapping[str, Mapping], **choice) -> pd.DataFrame:
    """What chapter 10's model says of each way, {words: choice}: microseconds, the place in the band of its own two
    halves, and how many SMs hold both operations on average."""
    from pod.simulate import gpusim

    alone = [gpusim.seconds(part, gpu, "serial", **choice) for part in (batch.prefill, batch.decode)]
    rows = {}
    for words, way in ways.items():
        time = gpusim.seconds(batch, gpu, **choice, **way)
        both = gpu.sms * both_share(pd.DataFrame(gpusim.trace(batch, gpu, **choice, **way)))
        rows[words] = f"{1e6 * time:.0f}", f"{overlap(time, *alone):.2f}", f"{both:.1f}"
    return pd.DataFrame.from_dict(rows, orient="index", columns=["µs", "place in the band", "SMs that hold both"])


def meeting(batch, gpu, policies: Sequence[str], slots: Sequence[int], **choice) -> Figure:
    """The same model: a row a policy and a column a number of CTAs on an SM, how many SMs hold both over time."""
    from pod.simulate import gpusim

    panels = style.axes(9.5, 1.5 * len(policies) + 0.5, len(slots), len(policies), sharex=True, sharey=True)
    for row, policy in zip(panels, policies, strict=True):
        for ax, ctas in zip(row, slots, strict=True):
            way = {"method": "pod", "policy": policy, "ctas_per_sm": ctas, **choice}
            both = holding(pd.DataFrame(gpusim.trace(batch, gpu, **way)), ax, gpu.sms, COLOURS[policy])
            time = 1e6 * gpusim.seconds(batch, gpu, **way)
            ax.set_title(
                f"{policy}, {ctas} CTAs an SM: {both:.1f} SMs hold both, {time:.0f} µs", fontsize=10, loc="left"
            )
        row[0].set_ylabel("SMs that\nhold both")
    for ax in panels[-1]:
        ax.set_xlabel("time, µs (model)")
    return panels[0, 0].figure


def dealt(policies: Sequence[str], prefill, decode, sms: int, ax: Axes) -> dict[str, float]:
    """How far each operation's work is dealt out, against the other's. Returns the largest gap of each policy, in
    percentage points, which stands in the legend, too."""
    gaps = {}
    ax.plot([0, 100], [0, 100], color=style.FRAME, linewidth=1)
    for policy in policies:
        shares = dealt_shares(policy, prefill, decode, sms)
        gaps[policy] = float(np.abs(shares[0] - shares[1]).max())
        dashed = "--" if policy == "integer ratio" else "-"  # it may lie on another
        words = f"{policy}: up to {gaps[policy]:.0f} points apart"
        ax.plot(*shares, color=COLOURS[policy], linewidth=2, linestyle=dashed, label=words)
    ax.set(xlim=(0, 100), ylim=(0, 100), aspect="equal", xlabel="prefill work dealt, %", ylabel="decode work dealt, %")
    style.legend(ax, loc="upper left")
    return gaps


def dealings(cases: Mapping[str, tuple], policies: Sequence[str], sms: int) -> Figure:
    """A panel a case, {words: (prefill, decode)}, the work of each CTA as it is handed out."""
    panels = style.axes(9.5, 4.2, columns=len(cases))
    for ax, (words, work) in zip(panels, cases.items(), strict=True):
        dealt(policies, *work, sms=sms, ax=ax)
        ax.set_title(words, fontsize=10)
    return panels[0].figure


def dealt_shares(policy: str, prefill, decode, sms: int) -> tuple[np.ndarray, np.ndarray]:
    """Percent of each operation's work that is dealt out after 0, 1, ... CTAs, when SMs take turns."""
    count = len(prefill) + len(decode)
    drawn = binding.draw(binding.deal(policy, prefill, decode, sms), [i % sms for i in range(count)], len(prefill),
                         len(decode), sms)  # fmt: skip
    return tuple(
        100 * np.append(0, np.cumsum([work[a.id] if a.op == op else 0 for a in drawn])) / np.sum(work)
        for op, work in ((binding.PREFILL, prefill), (binding.DECODE, decode))
    )
