"""POD-Attention, Figure 9: the code by which a CTA chooses, read in our source, beside what the printed listing has."""

import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show import style
from pod.lab.show.code import Listing, piece

FIGURE = Figure(
    title="The code of SM-aware CTA scheduling",
    says="The paper's listing is most of it; what it leaves out is in red",
    chapter="07",
    method="Cut out of csrc/include/binding.cuh. Grey: the paper's listing has it too. "
    "Red: it leaves this out, or a part of it.",
)
FILE = "csrc/include/binding.cuh"
FUNCTIONS = ("sptr<Assignment> box", "Assignment draw(", "draw_op(const Choice& c, int", "void reset_if_last(")
SAME, LEFT_OUT = "in the paper's listing", "not in the paper's listing"
PARTLY = "in the paper's listing, without % c.sms"
# A word on the line where this text begins.
NOTES = {
    "box[0] = draw(c)": (SAME, "one thread asks for all of the CTA; its answer waits in shared memory"),
    "__syncthreads();\n    const Assignment a": (SAME, "nobody reads before it is there"),
    "__syncthreads();  // the box": (SAME, "nobody overwrites it before all have read"),
    "if (threadIdx.x == 0) reset": (LEFT_OUT, "who sets the counters back to zero?"),
    "const int sm = ptx::smid()": (PARTLY, "where am I? (ids can exceed the number of SMs)"),
    "a.ticket = atomicAdd": (SAME, "how many CTAs drew on this SM before me?"),
    "a.op = draw_op": (SAME, "so which operation do I want?"),
    "a.id = atomicAdd(c.tickets + c.sms + a.op, 1);\n    a.draws": (SAME, "and which piece of its work?"),
    "if (a.id >= c.slots[a.op])": (SAME, "nothing left of it: take the other"),
    "if (ticket >= c.deals)": (LEFT_OUT, "more tickets than the table foresees: decode"),
    "return c.deal[ticket]": (LEFT_OUT, "the policy is a table, made on the host: look the ticket up"),
    "if (ptx::atomic_add_acq_rel": (LEFT_OUT, "the last one to draw, since no other will look"),
}


def listing():
    """The functions of ByTicket that decide, as they are in the source."""
    return Listing(FILE, "\n\n".join(piece(FILE, start).text for start in FUNCTIONS))


def table():
    """One row a line of code: its text without the comment at its end, the note beside it, and whose it is."""
    text = listing().text
    rows = [[line.partition("  // ")[0], "", ""] for line in text.splitlines()]
    for key, (whose, note) in NOTES.items():
        if text.count(key) != 1:
            raise ValueError(f"NOTES: got {key!r}, which {FILE} has {text.count(key)} times here, allowed is once")
        rows[text[: text.index(key)].count("\n")][1:] = [note, whose]
    return pd.DataFrame(rows, columns=["code", "note", "whose"])


def draw(df):
    """The code, and under a line the note on it."""
    colour = {SAME: "#6b7785", LEFT_OUT: style.ALARM, PARTLY: style.ALARM}
    lines = []
    for row in df.itertuples():
        lines += [(row.code, "")] + [(row.note, row.whose)] * bool(row.note)
    ax = style.axes(9.5, 0.4 + 0.19 * len(lines))
    ax.axis("off")
    for y, (words, whose) in enumerate(lines):
        font = {"fontsize": 9, "color": colour[whose]} if whose else {"family": "monospace", "fontsize": 8.4}
        ax.text(0.12 if whose else 0, y, words.replace("$", r"\$"), va="center", **font)
    ax.set(xlim=(0, 1), ylim=(len(lines) - 0.4, -0.6))
    return ax.figure
