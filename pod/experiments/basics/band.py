"""The whole argument in one picture: what overlap could give, batch by batch."""

import pandas as pd

from pod.batch import TABLE1
from pod.experiments.basics.stutter import batch as chat_batch
from pod.hardware import A100, H200
from pod.lab.figure import Figure
from pod.lab.show import band

FIGURE = Figure(
    title="Prefill and decode attention of one batch: between the sum and the maximum",
    chapter="00",
    method="Roofline times of the two parts alone, from counted FLOPs and bytes and the data sheets' peaks.",
)
CHAT = "the chat server"


def batches():
    return {CHAT: chat_batch(), **TABLE1}


def table():
    """One row a batch and GPU: both parts in microseconds, the two edges of the band, and their ratio."""
    rows = []
    for name, batch in batches().items():
        for gpu in (A100, H200):
            prefill, decode = (1e6 * t for t in batch.times(gpu))
            rows.append((name, gpu.key, prefill, decode, prefill + decode, max(prefill, decode)))
    df = pd.DataFrame(rows, columns=["batch", "gpu", "prefill_us", "decode_us", "sum_us", "max_us"])
    return df.assign(speedup_at_best=df.sum_us / df.max_us)


def draw(df):
    ax = band({row.batch: (row.prefill_us, row.decode_us) for row in df[df.gpu == A100.key].itertuples()})
    ax.set_title("All that overlap can gain lies between two lines, and most of it where both parts are equal",
                 fontsize=10, loc="left")  # fmt: skip
    ax.set_title(A100.name, fontsize=10, loc="right")
    return ax.figure
