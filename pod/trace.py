"""Which CTA ran where and when: `python -m pod trace` draws it and writes it for ui.perfetto.dev.

A trace is what hybrid_attention(..., trace=True) returns: one row a CTA (under "warp" one row a half of a CTA).
"""

from __future__ import annotations

import json
from pathlib import Path

from pod import files
from pod.batch import HybridBatch
from pod.kernels.sm80 import TRACE_FIELDS
from pod.schedule.binding import OPS, POLICIES, wish

METHODS = ("serial", "streams", "cta", "warp", "pod")
TOY = HybridBatch.of(512, 1024, decodes=24, decode_context=512, num_q_heads=4, num_kv_heads=2, head_dim=64)
TOY_SMS = 4


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
    """The rows that pod.show.gantt draws: (SM, start, end, operation, work)."""
    return [(r.sm, r.start, r.end, r.op, str(r.id)) for r in table.itertuples()]


def held_both(table) -> int:
    """SMs on which a prefill and a decode ran at the same time."""
    return sum(_meet(on_sm) for _, on_sm in table.groupby("sm"))


def _meet(on_sm) -> bool:
    prefill, decode = (on_sm[on_sm.op == op] for op in OPS)
    return any(((decode.start < p.end) & (decode.end > p.start)).any() for p in prefill.itertuples())


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


def record(batch: HybridBatch, device: str = "cpu", **choice):
    """Run a batch once and return its trace as a table. `choice`: arguments of pod.plan that say how."""
    import torch

    import pod

    heads = (batch.num_q_heads, batch.num_kv_heads, batch.head_dim)
    dtype = getattr(torch, batch.dtype)
    plan = pod.plan(
        batch.q_lens, batch.kv_lens, *heads, page_size=batch.page_size, dtype=dtype, device=device, **choice
    )
    q, k, v, block_table = batch.tensors(device=device)
    if device != "cpu":
        pod.hybrid_attention(q, k, v, plan, block_table, causal=batch.causal, trace=True)  # the first launch loads code
    _, rows = pod.hybrid_attention(q, k, v, plan, block_table, causal=batch.causal, trace=True)
    return frame(rows)


# ---------------------------------------------------------------- python -m pod trace


def configure(parser) -> None:
    parser.add_argument("--method", choices=METHODS, default="pod")
    parser.add_argument("--policy", choices=POLICIES, default="proportional")
    parser.add_argument("--ctas", type=int, choices=(2, 4), default=2, help="CTAs an SM (default 2)")
    parser.add_argument("--batch", choices=("toy", "C0", "C1", "C2"), help="default: C0 on a GPU, else toy")
    parser.add_argument("--sms", type=int, default=TOY_SMS, help="SMs of the emulated machine (default 4)")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder (default figures)")


def run(args) -> int:
    import matplotlib

    from pod import kernels
    from pod.batch import TABLE1

    matplotlib.use("Agg")
    on_gpu = kernels.mode().name == "gpu"
    if kernels.mode().name == "recorded":
        raise ValueError(f"no trace can be taken here: {kernels.mode().reason}")
    name = args.batch or ("C0" if on_gpu else "toy")
    if name != "toy" and not on_gpu:
        raise ValueError(f"--batch: got {name!r}, allowed without a GPU is 'toy': the emulator would take hours")
    batch, out = TOY if name == "toy" else TABLE1[name], files.ready(args.out)
    with kernels.machine(args.sms):
        table = record(
            batch, "cuda" if on_gpu else "cpu", method=args.method, policy=args.policy, ctas_per_sm=args.ctas
        )
    _write(table, out / f"trace-{args.method}-{name}", f"{args.method}, {name}")
    sms = table.sm.nunique()
    both = f"SMs that held both: {held_both(table)} of {sms}, {sms * both_share(table):.1f} at a time on average"
    print(f"{len(table)} CTAs on {sms} SMs in {table.end.max():.1f} us; {both}")
    return 0


def _write(table, path: Path, title: str) -> None:
    from pod.show import gantt

    gantt(bars(table), unit="µs", title=title).figure.savefig(path.with_suffix(".png"))
    path.with_suffix(".json").write_text(json.dumps(chrome(table)), encoding="utf-8")
    print(f"wrote {path}.png and {path}.json (open the latter at https://ui.perfetto.dev)")
