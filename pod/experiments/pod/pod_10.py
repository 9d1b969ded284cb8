"""POD-Attention, Figure 10: how the rows of the decode tile set the use of the tensor cores, and not of DRAM."""

import pandas as pd

from pod.batch import HybridBatch
from pod.hardware import A100, H200
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.tiling import Tile, computed_flops

FIGURE = Figure(
    title="What the decode tile size does to compute and bandwidth",
    chapter="02",
    method="roofline with padded FLOPs, Llama-2-7B heads at 4K; full DRAM rate, so an upper bound at every batch size",
    state="simulated",
)
ROWS = (16, 32, 64, 128)


def table():
    """Utilisation in % by rows of the decode tile; `paper` is what its text states for compute on A100."""
    batch = HybridBatch.of(0, 0, decodes=32, decode_context=4096, num_q_heads=32, num_kv_heads=32, dtype="float16")
    stated = {16: paper.value("pod.f10.compute_util_16"), 128: paper.value("pod.f10.compute_util_128")}
    out = []
    for gpu in (A100, H200):
        for rows in ROWS:
            flops = computed_flops(batch, Tile(rows, 64, dtype="float16"))
            seconds = gpu.roofline_time(flops, batch.bytes)
            busy = (100 * time / seconds for time in (gpu.compute_time(flops), gpu.memory_time(batch.bytes)))
            out.append((gpu.key, rows, batch.flops / flops, *busy, stated.get(rows) if gpu is A100 else None))
    return pd.DataFrame(out, columns=["gpu", "rows", "useful_share", "compute_util", "dram_util", "paper"])


def draw(df):
    ax = style.axes(7.5, 3.1)
    for key, line, colour in (("a100", "o-", style.INK), ("h200", "s--", style.SMS[3])):
        mine = df[df.gpu == key]
        ax.plot(mine.rows, mine.compute_util, line, color=colour)
        away, side = ((-2, 3), "right") if key == "a100" else ((3, -7.4), "left")  # above its line, below its line
        for row in mine.itertuples():
            y = max(row.compute_util + away[1], 1.5)  # not on the axis
            ax.text(row.rows + away[0], y, f"{row.compute_util:.0f}", color=colour, ha=side, fontsize=9)
        ax.text(mine.rows.iloc[-1] + 3, mine.compute_util.iloc[-1], f"{key.upper()}, rows / ridge", color=colour,
                va="center", fontsize=9)  # fmt: skip
    stated = df.dropna(subset="paper")
    ax.plot(stated.rows, stated.paper, "X", color=style.ALARM, markersize=9)
    row = stated.iloc[-1]
    ax.text(row.rows + 3, row.paper, f"the paper's “compute utilization”: {stated.paper.iloc[0]:.0f}, {row.paper:.0f}",
            color=style.ALARM, va="center", fontsize=9)  # fmt: skip
    ax.set(xticks=ROWS, xticklabels=ROWS, xlabel="rows of the decode tile", ylim=(0, 100), xlim=(0, 218))
    ax.set_ylabel("tensor cores busy, %")
    ax.set_title("Rows that decode does not need keep the tensor cores busy all the same", fontsize=10, loc="left")
    return ax.figure
