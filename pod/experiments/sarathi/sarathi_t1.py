"""SARATHI post, Table 1: a decode that rides along with a chunk costs a tenth of one that goes alone."""

from functools import partial

import pandas as pd

from pod.hardware import gpu
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.shapes import shape
from pod.simulate.cost import AnalyticalCost, Work

FIGURE = Figure(
    title="Prefill-only, decode-only and mixed batches",
    chapter="13",
    method="analytical cost, LLaMA-13B on an A6000, no host time; the whole batch in milliseconds",
    state="simulated",
)
CONTEXT = 1024


def table():
    """Batch time, and what one decode adds."""
    cost = AnalyticalCost(shape("llama-13b"), gpu("a6000"), host="none", kernels="fa2")
    works = {
        "prefill only: 1,021 tokens": Work(((1021, 0),), 0, 0),
        "prefill only: 1,024 tokens": Work(((1024, 0),), 0, 0),
        "decode only: 4 at 1,024": Work((), 4, 4 * CONTEXT),
        "mixed: 1,021 and 3 decodes": Work(((1021, 0),), 3, 3 * CONTEXT),
        "mixed, three rows too many: 1,024 and 3": Work(((1024, 0),), 3, 3 * CONTEXT),
    }
    seconds = {name: sum(cost.parts(work).values()) for name, work in works.items()}
    alone = {name: seconds[name] - sum(cost.parts(Work(work.chunks, 0, 0)).values()) if work.chunks else seconds[name]
             for name, work in works.items()}  # fmt: skip
    each = {name: 1000 * alone[name] / work.decodes if work.decodes else None for name, work in works.items()}
    stated = {"decode only: 4 at 1,024": "decode_only", "mixed: 1,021 and 3 decodes": "mixed"}
    return pd.DataFrame(
        [(name, 1000 * seconds[name], paper.value(f"sarathi.t1.{stated[name]}") if name in stated else None, each[name])
         for name in works],
        columns=["batch", "ours_ms", "post_ms", "ms_per_decode"],
    )  # fmt: skip


def draw(df):
    ax = style.axes(9.5, 2.6)
    y = range(len(df))
    ax.barh([i - 0.2 for i in y], df.ours_ms, 0.38, color=style.WORKERS[0], label="analytical A6000")
    ax.barh([i + 0.2 for i in y], df.post_ms.fillna(0), 0.38, color=style.FRAME, label="post, measured")
    for i, row in enumerate(df.itertuples()):
        each = "" if row.ms_per_decode != row.ms_per_decode else f", {row.ms_per_decode:.1f} ms a decode"
        ax.text(row.ours_ms + 4, i - 0.2, f"{row.ours_ms:.1f} ms{each}", va="center", fontsize=8.5)
        if row.post_ms == row.post_ms:
            ax.text(row.post_ms + 4, i + 0.2, f"{row.post_ms:g} ms", va="center", fontsize=8.5)
    ax.set(yticks=list(y), yticklabels=df.batch, ylim=(len(df) - 0.5, -0.5), xlim=(0, 420), xlabel="ms")
    style.legend(ax, loc="upper right")
    return ax.figure


def decode_gain() -> float:
    """Time of a decode alone over the time that it adds to a chunk."""
    each = table().set_index("batch").ms_per_decode
    return float(each["decode only: 4 at 1,024"] / each["mixed: 1,021 and 3 decodes"])


def _ms(batch: str) -> float:
    return float(table().set_index("batch").ours_ms[batch])


decode_ms = partial(_ms, "decode only: 4 at 1,024")
mixed_ms = partial(_ms, "mixed: 1,021 and 3 decodes")
