"""POD-Attention, Figure 8: CTAs that start on four SMs, and the tickets by which each becomes prefill or decode.

`python -m pod compute pod-08` runs the kernel again and writes its table. Drawing needs no compiler, only the table.
"""

from pod import kernels
from pod.batch import HybridBatch
from pod.data import read
from pod.lab import trace
from pod.lab.figure import Figure
from pod.lab.show import gantt, style
from pod.lab.show.tickets import LETTERS, book, counters

FIGURE = Figure(
    title="SM-aware CTA scheduling, step by step",
    says="Each SM draws its own tickets, so each holds both kinds from the start",
    chapter="07",
    method="The kernel in the CPU emulator: 8 prefill and 12 decode CTAs, 4 SMs, 2 CTAs an SM, 50:50.",
    data=("pod-08",),
)
COMPUTED = "pod-08"
KEYS, UNITS = ("step",), ("hybrid",)
SMS = 4
CHATS = (1200, 480, 448, 384, 320, 288, 224, 192, 160, 128, 96, 64)  # tokens of context, two chats of each length
BATCH = HybridBatch((256, *[1] * 24), (1024, *sorted(2 * CHATS)), num_q_heads=4, num_kv_heads=2, head_dim=64)
CHOICE = {"method": "pod", "policy": "50:50", "ctas_per_sm": 2, "prefill_splits": "none", "decode_splits": 1}


def cases() -> list[dict]:
    return [{}]  # one run


def measure(case: dict) -> list[dict]:
    """The table, from the kernel."""
    with kernels.machine(SMS):
        rows = trace.record(BATCH, **CHOICE)
    columns = ["sm", "ticket", "op", "id", "draws", "start", "end"]
    rows = rows.sort_values(["start", "ticket", "sm"])
    return rows[columns].reset_index(drop=True).rename_axis("step").reset_index().to_dict("records")


def table():
    """One row a CTA, in the order in which they start: SM, ticket, operation, work, draws, start and end."""
    return read("pod-08")


def draw(df):
    """The SMs over time above, and below the same CTAs by ticket. Hatched: there was nothing left of the other kind."""
    above, below = style.axes(9.5, 5.6, rows=2, height_ratios=(3, 2))
    bars = [(r.sm, r.start, r.end, r.op, f"{LETTERS[r.op]}{r.id}") for r in df.itertuples()]
    gantt(bars, rows=range(SMS), unit="µs (emulated)", ax=above)
    book(df, ax=below)
    below.set_title("the same CTAs by ticket", fontsize=10, loc="left")
    return above.figure


def after(ax, n: int) -> None:
    """The first n of these tickets, and what the counters then stand at."""
    book(table(), upto=n, ax=ax)
    ax.set_title(counters(table(), n).replace("; ", "\n"), fontsize=9)
