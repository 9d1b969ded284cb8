"""SARATHI post, Figure 8: the ratio of prompt to output tokens at which every decode finds a chunk to ride on."""

import pandas as pd

from pod.data import read
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.scenarios import best_ratio, reserved_a6000

FIGURE = Figure(
    title="Throughput against P:D and its optimum",
    chapter="13",
    method="analytical A6000, LLaMA-13B, no host time, 200 requests of 1,024 tokens at each ratio, batch 18",
    data=("sarathi-08",),
    says="SARATHI gains most where chunks and decodes run out together",
)
COMPUTED = "sarathi-08"
KEYS = ("system", "chunk", "pd", "asked")
CHUNKS, RATIOS, LENGTH, REQUESTS = (128, 256, 512), (2, 4, 6, 7, 8, 10, 12, 14, 16, 20, 25, 30, 40, 60, 100), 1024, 200
ROUNDS = 5  # full batches in a short run, as many as in those that were measured


def cases() -> list[dict]:
    """Orca has no chunks: one row a ratio."""
    rows = [("orca", CHUNKS[0], ratio) for ratio in RATIOS]
    rows += [("sarathi_v1", chunk, ratio) for chunk in CHUNKS for ratio in RATIOS]
    return [dict(zip(KEYS, (*row, asked), strict=True)) for asked in (REQUESTS, _few()) for row in rows]


def _few() -> int:
    """Requests of a short run."""
    return ROUNDS * int(paper.value("sarathi.f08.batch"))


def measure(case: dict) -> dict[str, float]:
    batch = int(paper.value("sarathi.f08.batch"))
    return reserved_a6000(LENGTH, batch, case["pd"], case["chunk"], case["asked"])[case["system"]].metrics()


def table(short: bool = False):
    """Gain of SARATHI over Orca at each chunk and ratio, of long runs or of short ones."""
    asked = _few() if short else REQUESTS
    done = read("sarathi-08").set_index(list(KEYS)).requests_per_minute
    rows = [(chunk, ratio, done["orca", CHUNKS[0], ratio, asked], done["sarathi_v1", chunk, ratio, asked])
            for chunk in CHUNKS for ratio in RATIOS]  # fmt: skip
    df = pd.DataFrame(rows, columns=["chunk", "pd", "orca", "sarathi"])
    return df.assign(gain=df.sarathi / df.orca)


def draw(df):
    batch = int(paper.value("sarathi.f08.batch"))
    ax = style.axes(8.5, 3.4)
    for chunk, colour in zip(CHUNKS, style.WORKERS, strict=False):
        mine = df[df.chunk == chunk]
        ax.plot(mine.pd, mine.gain, "o-", markersize=4, color=colour, label=f"chunk {chunk}")
        ax.axvline(best_ratio(chunk, batch), color=colour, linestyle="-.", linewidth=1)
        ax.axvline(best_ratio(chunk, batch, aligned=False), color=colour, linewidth=0.6)
    ax.axhline(1, color=style.INK, linewidth=0.8)
    ax.set(xscale="log", xlabel="P:D", ylabel="throughput over Orca")
    style.ticks(ax, (2, 4, 7, 14, 30, 60, 100))
    ax.set_title("thin: C / (B - 1); dash-dotted: (C - B + 1) / (B - 1), tile-aligned", fontsize=9.5, loc="left")
    style.legend(ax, loc="lower left")
    return ax.figure


def least_gain() -> float:
    """Over all chunks and ratios."""
    return float(table().gain.min())


def loses_from(chunk: int) -> int:
    """P:D from which on Orca is ahead."""
    mine = table()
    mine = mine[mine.chunk == chunk]
    behind = (mine.gain < 1) & (mine.pd > mine.pd[mine.gain.idxmax()])
    return int(mine.pd[behind].min())


def best_over_formula(chunk: int = 256) -> float:
    """P:D of the largest gain over C / (B - 1)."""
    mine = table()
    mine = mine[mine.chunk == chunk]
    batch = int(paper.value("sarathi.f08.batch"))
    return float(mine.pd[mine.gain.idxmax()]) / best_ratio(chunk, batch, aligned=False)
