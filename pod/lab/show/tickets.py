"""Pictures of SM-aware binding: the tickets of every SM, and what a policy deals."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pod.kernels.trace import both_over_time, both_share
from pod.lab.show import style
from pod.schedule import binding

LETTERS = {"prefill": "P", "decode": "D"}
COLOURS = {"proportional": style.WORKERS[0], "50:50": style.INK, "integer ratio": style.LIT}


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


def holding(traces: dict, ax: Axes, sms: int) -> None:
    """How many SMs hold both operations over time, a line a policy. A trace is in seconds."""
    for policy, trace in traces.items():
        label = f"{policy}: {sms * both_share(trace):.1f} on average"
        times, counts = both_over_time(trace)
        ax.step(1e6 * np.asarray(times), counts, where="post", color=COLOURS[policy], linewidth=2, label=label)
    ax.set(xlabel="time, µs (model)", ylabel="SMs that hold both", ylim=(0, 1.55 * sms), yticks=range(sms + 1))
    ax.label_outer()
    style.legend(ax, loc="upper right")


def dealt(policies: Sequence[str], prefill, decode, sms: int, ax: Axes) -> dict[str, float]:
    """How far each operation's work is dealt out, against the other's. Returns the largest gap of each policy, in %."""
    gaps = {}
    ax.plot([0, 100], [0, 100], color=style.FRAME, linewidth=1)
    for policy in policies:
        shares = dealt_shares(policy, prefill, decode, sms)
        gaps[policy] = float(np.abs(shares[0] - shares[1]).max())
        dashed = "--" if policy == "integer ratio" else "-"  # it may lie on another
        ax.plot(*shares, color=COLOURS[policy], linewidth=2, linestyle=dashed, label=policy)
    ax.set(xlim=(0, 100), ylim=(0, 100), aspect="equal", xlabel="prefill work dealt, %", ylabel="decode work dealt, %")
    style.legend(ax, loc="upper left")
    return gaps


def dealt_shares(policy: str, prefill, decode, sms: int) -> tuple[np.ndarray, np.ndarray]:
    """Percent of each operation's work that is dealt out after 0, 1, ... CTAs, when SMs take turns."""
    count = len(prefill) + len(decode)
    drawn = binding.draw(binding.deal(policy, prefill, decode, sms), [i % sms for i in range(count)], len(prefill),
                         len(decode), sms)  # fmt: skip
    return tuple(
        100 * np.append(0, np.cumsum([work[a.id] if a.op == op else 0 for a in drawn])) / np.sum(work)
        for op, work in ((binding.PREFILL, prefill), (binding.DECODE, decode))
    )
