"""POD-Attention, Figure 10: how the rows of the decode tile set the use of the tensor cores, and not of DRAM."""

from __future__ import annotations

import pandas as pd

from pod.batch import HybridBatch
from pod.hardware import A100, H200
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.tiling import Tile, computed_flops

FIGURE = Figure(
    id="pod-10",
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
            out.append(
                {
                    "gpu": gpu.key,
                    "rows": rows,
                    "useful_share": batch.flops / flops,
                    "compute_util": 100 * gpu.compute_time(flops) / seconds,
                    "dram_util": 100 * gpu.memory_time(batch.bytes) / seconds,
                    "paper": stated.get(rows) if gpu is A100 else None,
                }
            )
    return pd.DataFrame(out)


def draw(df):
    axes = style.axes(8.5, 3.1, columns=2, sharey=True)
    for ax, column, title in (
        (axes[0], "compute_util", "tensor cores busy"),
        (axes[1], "dram_util", "DRAM busy"),
    ):
        for key, line, colour in (("a100", "o-", style.WORKERS[2]), ("h200", "s--", style.WORKERS[3])):
            mine = df[df.gpu == key]
            ax.plot(mine.rows, mine[column], line, color=colour, label=f"{key.upper()}, model")
        ax.set(xticks=ROWS, xticklabels=ROWS, xlabel="rows of the decode tile", title=title, ylim=(0, 109))
    stated = df.dropna(subset="paper")
    axes[0].plot(stated.rows, stated.paper, "X", color="black", markersize=9, label="A100, paper's text")
    axes[0].set_ylabel("%")
    style.legend(axes[0])
    return axes[0].figure
