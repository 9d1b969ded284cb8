"""SM-aware binding: which operation a CTA takes when it draws a ticket on its SM.

The kernel decides by a table `deal`, the same for all SMs: deal[t] is the operation that an SM's ticket t asks for. A
policy is a way to fill the table. csrc/include/binding.cuh makes the same decisions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

PREFILL, DECODE = 0, 1
OPS = ("prefill", "decode")
LEAD = 0.8  # prefill runs ahead: its CTAs are long, and one that starts last would end alone


def fifty_fifty(prefill: Sequence[float], decode: Sequence[float], sms: int, tickets: int) -> np.ndarray:
    """Prefill and decode in turn on every SM, whatever their numbers."""
    return np.arange(tickets) % 2


def integer_ratio(prefill: Sequence[float], decode: Sequence[float], sms: int, tickets: int) -> np.ndarray:
    """The paper's proportional policy as its artifact has it: the ratio of CTA counts, rounded down."""
    p, d, t = len(prefill), len(decode), np.arange(tickets)
    if p == 0 or d == 0:
        return np.full(tickets, PREFILL if p else DECODE)
    if p <= d:
        return np.where(t % (d // p + 1) == 0, PREFILL, DECODE)
    return np.where(t % (p // d + 1) == p // d, DECODE, PREFILL)


def proportional(prefill: Sequence[float], decode: Sequence[float], sms: int, tickets: int) -> np.ndarray:
    """Both operations advance evenly in work, on every SM alike: the one that is less far along gets the next round.

    A round is one CTA on each SM. SMs that took turns instead would hold two prefills here and two decodes there.
    """
    begins = []
    for costs, pace in ((prefill, LEAD), (decode, 1.0)):
        rounds = np.add.reduceat(np.asarray(costs, float), np.arange(0, len(costs), sms)) if len(costs) else np.zeros(0)
        begins.append(pace * (np.cumsum(rounds) - rounds) / max(np.sum(rounds), 1))
    ops = np.repeat([PREFILL, DECODE], [len(x) for x in begins])
    return ops[np.argsort(np.concatenate(begins), kind="stable")][:tickets]


POLICIES = {"50:50": fifty_fifty, "proportional": proportional, "integer ratio": integer_ratio}


def deal(policy: str, prefill: Sequence[float], decode: Sequence[float], sms: int) -> np.ndarray:
    """The table of a policy for CTAs that cost `prefill` and `decode`, in the order in which they are handed out.

    It covers at most four times the tickets that an SM takes on average; beyond, an SM tries decode first.
    """
    ctas = len(prefill) + len(decode)
    tickets = min(ctas, 4 * -(-ctas // sms) + 8)
    return POLICIES[policy](prefill, decode, sms, tickets).astype(np.int32)


def wish(table: np.ndarray, ticket: int) -> int:
    """The operation that an SM's ticket asks for."""
    return int(table[ticket]) if ticket < len(table) else DECODE


@dataclass(frozen=True)
class Assignment:
    """What a CTA got: its operation, the number of its work, its ticket, and how often it had to ask."""

    sm: int
    op: int
    id: int
    ticket: int
    draws: int


def draw(table: np.ndarray, sms_in_order: Iterable[int], prefills: int, decodes: int, sms: int) -> list[Assignment]:
    """What CTAs get that start on these SMs, in this order."""
    tickets, next_id, slots = [0] * sms, [0, 0], (prefills, decodes)
    drawn = []
    for sm in sms_in_order:
        sm %= sms
        ticket, tickets[sm] = tickets[sm], tickets[sm] + 1
        op, draws = wish(table, ticket), 1
        if next_id[op] >= slots[op]:
            op, draws = 1 - op, 2
        drawn.append(Assignment(sm, op, next_id[op], ticket, draws))
        next_id[op] += 1
    return drawn
