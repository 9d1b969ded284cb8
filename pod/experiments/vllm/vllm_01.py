"""PagedAttention post: block tables grow one block at a time, and need not be in one piece."""

from functools import cache

import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show.serving import pool_picture
from pod.serving.blocks import PagedPool
from pod.serving.loop import Ticks, serve
from pod.serving.request import Request
from pod.serving.schedulers import VLLM

FIGURE = Figure(
    title="Block tables growing on demand",
    chapter="12",
    method="three requests in a pool of 24 blocks of 4 tokens, block tables as the scheduler left them",
)
BLOCKS, SIZE, MOMENTS = 24, 4, (1, 6, 11)
LENGTHS = ((10, 16), (13, 4), (6, 20), (21, 6))


@cache
def snapshots() -> dict[int, dict[int, list[int]]]:
    """Block tables after each iteration, by its number."""
    pool = PagedPool(BLOCKS, SIZE, watermark=0.0)
    taken: dict[int, dict[int, list[int]]] = {}

    class Watch(Ticks):
        def submit(self, batch, event):
            taken[len(taken) + 1] = {i: list(t) for i, t in pool.tables.items()}
            return super().submit(batch, event)

    serve([Request(i, p, o, arrival=7.0 * (i == 3)) for i, (p, o) in enumerate(LENGTHS)], [VLLM(pool, 4)], Watch())
    return taken


def table():
    rows = [(moment, request, place, block) for moment in MOMENTS
            for request, blocks in snapshots()[moment].items() for place, block in enumerate(blocks)]  # fmt: skip
    return pd.DataFrame(rows, columns=["iteration", "request", "logical_block", "physical_block"])


def draw(df):
    moments = {
        f"iteration {moment}: {BLOCKS - len(mine)} blocks free": {
            request: list(rows.sort_values("logical_block", kind="stable").physical_block)
            for request, rows in mine.groupby("request")
        }
        for moment, mine in df.groupby("iteration")
    }
    return pool_picture(moments, BLOCKS, across=8)
