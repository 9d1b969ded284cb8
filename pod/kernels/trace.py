"""Which CTA ran where and when, as a table; pod/lab/trace.py takes and draws it.

A trace is what hybrid_attention(..., trace=True) returns: one row a CTA (under "warp" one row a half of a CTA).
"""

from pod.kernels.sm80 import TRACE_FIELDS
from pod.schedule.binding import OPS, wish


def frame(rows, ops=OPS):
    """A trace as a table: operation, work, SM, slot on it, start and end in microseconds, ticket, draws, block."""
    import pandas as pd

    table = pd.DataFrame(rows.cpu().numpy(), columns=list(TRACE_FIELDS)).sort_values(["start", "end", "block"])
    origin = table.start.min()
    table["start"], table["end"] = (table.start - origin) / 1e3, (table.end - origin) / 1e3
    table["op"] = [ops[i] for i in table.op]
    table.insert(3, "slot", _slots(table))
    return table.reset_index(drop=True)


def _slots(table) -> list[int]:
    """The hardware does not say which slot of an SM a CTA has: the first that is free when it starts."""
    free: dict[int, list[float]] = {}
    slots = []
    for row in table.itertuples():
        ends = free.setdefault(row.sm, [])
        slot = next((i for i, end in enumerate(ends) if end <= row.start), len(ends))
        ends[slot : slot + 1] = [row.end]
        slots.append(slot)
    return slots


def bars(table) -> list[tuple]:
    """The rows that pod.lab.show.gantt draws: (SM, start, end, operation, work)."""
    return [(r.sm, r.start, r.end, r.op, str(r.id)) for r in table.itertuples()]


def held_both(table) -> int:
    """SMs on which a prefill and a decode ran at the same time."""
    prefill, decode = (table.loc[table.op == op, ["sm", "start", "end"]].to_numpy().T for op in OPS)
    (sm, start, end), (there, since, until) = prefill[..., None], decode
    meet = (sm == there) & (since < end) & (until > start)
    return len(set(sm[meet.any(axis=1)].flat))


def held(table, times, ops=OPS):
    """How many SMs hold nothing, the first operation alone, the second alone, and both, at each time: [4, times].

    What is neither of the two `ops` counts as both.
    """
    import numpy as np

    sm, op, start, end = (np.asarray(table[column]) for column in ("sm", "op", "start", "end"))
    counts = np.zeros((4, len(times)), dtype=int)
    for here in (sm == one for one in np.unique(sm)):
        first, second = (_running(start[mine], end[mine], times) for mine in (here & (op != x) for x in ops[::-1]))
        counts[first + 2 * second, np.arange(len(times))] += 1
    return counts


def _running(start, end, times):
    """Whether something runs at each of these times; who ends then does not run any more."""
    import numpy as np

    return np.searchsorted(np.sort(start), times, "right") > np.searchsorted(np.sort(end), times, "right")


def both_over_time(table, ops=OPS):
    """(times, SMs): from each time on, how many SMs hold both operations."""
    import numpy as np

    times = np.unique([table["start"], table["end"]])
    return times, held(table, times, ops)[3]


def both_share(table, ops=OPS) -> float:
    """The part of the time in which an SM holds both, from the first start to the last end, on average over SMs."""
    import numpy as np

    times, sms = both_over_time(table, ops)
    return float(np.sum(np.diff(times) * sms[:-1]) / (times[-1] - times[0]) / len(np.unique(table["sm"])))


def disagreements(table, deal):
    """The CTAs of an SM-aware trace that did not ask for what the policy says for their ticket.

    A CTA that drew twice asked for the other operation, of which nothing was left.
    """
    wished = [OPS[wish(deal, r.ticket)] for r in table.itertuples()]
    return table[(table.op == wished) != (table.draws == 1)]


def chrome(table) -> dict:
    """The trace in Chrome's format, which Perfetto reads too: a process an SM, a thread a slot, microseconds."""
    events = [
        {"name": f"{r.op} {r.id}", "cat": r.op, "ph": "X", "ts": r.start, "dur": r.end - r.start, "pid": r.sm,
         "tid": r.slot, "args": {"ticket": r.ticket, "draws": r.draws, "block": r.block}}
        for r in table.itertuples()
    ]  # fmt: skip
    names = [
        {"name": "process_name", "ph": "M", "pid": sm, "args": {"name": f"SM {sm}"}} for sm in sorted(set(table.sm))
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}
