"""Where in the program warps stand: the loads that stall.

Measured: the instructions at which warps wait most (ncu): query in registers, the same with keys in turn, query shared.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from pod.data import read
from pod.experiments.plus34 import shared, single_query
from pod.lab.figure import Figure
from pod.lab.measure import ncu, peers
from pod.lab.show import style

FIGURE = Figure(
    title="The loads that stall",
    says="Warps wait for keys in four places where loads overlap, in sixteen where they do not",
    chapter="16",
    method="ncu's samples of where warps are, by instruction; the 40 most frequent. 144 chats, bf16.",
    data=("single-query-stalls",),
)
RECORDING = "single-query-stalls"
KEYS, WHOLE = ("kernel", "rank"), ()
UNITS = ("single-query",)
REPEATS = 1
TIMER = "no times: samples of warps by Nsight Compute, which empties the caches before each pass"
BATCH, KERNELS, RANKS = "144 chats", ("registers", "registers_in_turn", "shared"), 40


def cases() -> list[dict]:
    return [{"kernel": kernel, "rank": rank} for kernel in KERNELS for rank in range(1, RANKS + 1)]


def measure(case: dict) -> dict:
    """Place in the program, share of all samples in percent, and the instruction as the GPU has it.

    `loads` and `barriers` count the global loads and the barriers that come before it in the program.
    """
    program = _programs()[KERNELS.index(case["kernel"])]
    total = sum(i["samples"] for i in program)
    place = sorted(range(len(program)), key=lambda i: -program[i]["samples"])[int(case["rank"]) - 1]
    before = [i["sass"] for i in program[:place]]
    return {
        "place": place, "instructions": len(program), "share": round(100 * program[place]["samples"] / total, 3),
        "loads": sum("LDG" in sass for sass in before), "barriers": sum("BAR.SYNC" in sass for sass in before),
        "sass": program[place]["sass"],
    }  # fmt: skip


@lru_cache
def _programs() -> list[list[dict]]:
    return ncu.stalls(__name__)


def calls() -> Iterator[Callable]:
    for kernel in KERNELS:
        yield single_query.IDEAS[kernel](peers.Setting(single_query.batch(BATCH)))


PARTS = {"scores": style.WORKERS[2], "softmax": style.colour("linear"), "values": style.WORKERS[0],
         "last sums": style.WORKERS[1]}  # fmt: skip
PLACE = 4  # % of the samples at a place that the post counts
LAST_BARRIERS = (0, 4, 5)  # barriers before the end of scores, softmax and values, without that of a shared query


def table():
    """One row an instruction: its place in the program, the share of samples there, and the part it is of."""
    df = read("single-query-stalls")
    barriers = df.barriers - (df.kernel == "shared")
    part = [list(PARTS)[sum(b > last for last in LAST_BARRIERS)] for b in barriers]
    return df.assign(part=part, label=df.kernel.map(shared.KERNELS))


def draw(df):
    kernels = list(dict.fromkeys(df.kernel))
    axes = np.atleast_1d(style.axes(9.5, 2.0 * len(kernels) + 0.4, rows=len(kernels), sharex=True, sharey=True))
    for ax, kernel in zip(axes, kernels, strict=True):
        mine = df[df.kernel == kernel]
        for name, tone in PARTS.items():
            rows = mine[mine.part == name]
            share = f"{name}: {rows.share.sum():.0f} %"
            ax.bar(rows.place, rows.share, 2.5, color=tone, label=share)
        waits = mine[(mine.part == "scores") & (mine.share >= PLACE)].sort_values("place", kind="stable")
        for i, row in enumerate(waits.itertuples(), 1):
            if len(waits) > 8 and i not in (1, len(waits)):  # no room for all numbers
                continue
            ax.annotate(str(i), (row.place, row.share), (0, 2), textcoords="offset points", ha="center", fontsize=9)
        ax.set(xlim=(0, df.instructions.max()), ylabel="% of samples")
        ax.set_title(mine.label.iloc[0], fontsize=10, loc="left")
        style.legend(ax, loc="upper right")
    axes[-1].set_xlabel("place in the program, instructions")
    return axes[0].figure
