"""SARATHI post, Figure 9: bubbles and completion times of GPT-3 on 64 A100s, three ways."""

from functools import partial

import pandas as pd

from pod.data import read
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.pipeline import PIPELINES
from pod.simulate.run import kv_tokens
from pod.simulate.scenarios import GPT3, PIPELINE_LENGTH, pipeline, pipeline_batch, speedups
from pod.simulate.summary import BUBBLE_PERCENTILES

FIGURE = Figure(
    title="Bubble time and completion time of a GPT-3 pipeline",
    chapter="13",
    method="analytical A100, 10,000 requests, Zipf 0.4 from 1K to 4K, P:D 10, chunk 256",
    data=("sarathi-09",),
)
COMPUTED = "sarathi-09"
KEYS = ("system", "pipeline")
REQUESTS = 10_000


def cases() -> list[dict]:
    return [{"system": name, "pipeline": kind} for kind in PIPELINES for name in pipeline(REQUESTS)]


def measure(case: dict) -> dict[str, float]:
    run = pipeline(REQUESTS)[case["system"]].but(pipeline=case["pipeline"])
    return {"batch": run.setup.max_batch} | run.metrics()


# ---------------------------------------------------------------- what it shows


def table(kind: str = PIPELINES[0]):
    """Batch cap, minutes, and percentiles of the bubble time in seconds, by system; replicas have no bubbles. `kind`:
    whether micro-batches keep their requests."""
    df = read("sarathi-09")
    columns = ["system", "batch", "minutes", *(f"bubble_p{p}" for p in BUBBLE_PERCENTILES)]
    return df[df.pipeline == kind][columns].fillna(0.0).reset_index(drop=True)


def draw(df):
    axes = style.axes(9.5, 3.0, 2)
    colours = (style.WORKERS[1], style.WORKERS[0], style.colour("linear"))
    for row, colour in zip(df.itertuples(index=False), colours, strict=True):
        if row.system.startswith("TP8 x"):
            axes[0].plot(row[3:], BUBBLE_PERCENTILES, "o-", markersize=4, color=colour)
            name = row.system.removeprefix("TP8 x PP8, ")
            middle = row[3 + BUBBLE_PERCENTILES.index(50)]
            axes[0].plot(middle, 50, "o", markersize=8, color=colour)
            at, side = (1.2, "left") if middle < 10 else (0.83, "right")
            axes[0].text(at * middle, 51, f"median {middle:.1f} s", color=colour, fontsize=9, va="center", ha=side)
            axes[0].text(1.25 * row[3], BUBBLE_PERCENTILES[0], name, color=colour, fontsize=9, va="center")
    axes[0].set_xscale("log")
    axes[0].set(xlabel="bubble time of a request, TP8 x PP8, s", ylabel="% of requests", ylim=(0, 100))
    names = [f"{name}\nbatch {batch}" for name, batch in zip(df.system, df.batch, strict=True)]
    axes[1].barh(range(len(df)), df.minutes, color=colours)
    for i, minutes in enumerate(df.minutes):
        axes[1].text(minutes, i, f" {minutes:.1f}", va="center", fontsize=9)
    axes[1].set(yticks=range(len(df)), yticklabels=names, ylim=(len(df) - 0.5, -0.5), xlim=(0, 1.15 * df.minutes.max()),
                xlabel=f"minutes for {REQUESTS:,} requests")  # fmt: skip
    return axes[0].figure


# ---------------------------------------------------------------- what claims ask for


def ratios():
    """Stated and simulated ratios, side by side."""
    ours, again = map(_ratios, PIPELINES)
    words = {"tp_over_pp": "8 replicas over pipeline with Orca", "over_pp": "SARATHI over pipeline with Orca",
             "over_tp": "SARATHI over 8 replicas", "bubble_gain": "median bubble time, Orca over SARATHI"}  # fmt: skip
    return pd.DataFrame([(text, paper.value(f"sarathi.f09.{k}"), ours[k], again[k]) for k, text in words.items()],
                        columns=["ratio", "post", "ours", "ours_reformed"])  # fmt: skip


def _ratios(kind: str) -> dict[str, float]:
    df = table(kind)
    return speedups(df.minutes) | {"bubble_gain": df.bubble_p50[0] / df.bubble_p50[1]}


def ratio(words: str, column: str = "ours") -> float:
    return float(ratios().set_index("ratio")[column][words])


bubble_gain_reformed = partial(ratio, "median bubble time, Orca over SARATHI", "ours_reformed")
over_pipeline_reformed = partial(ratio, "SARATHI over pipeline with Orca", "ours_reformed")
replicas_reformed = partial(ratio, "8 replicas over pipeline with Orca", "ours_reformed")
bubble_gain = partial(ratio, "median bubble time, Orca over SARATHI")


def pipeline_cap() -> float:
    return pipeline_batch(8, 8)


def cap_of_our_a100(pp: int) -> int:
    return kv_tokens(GPT3, "a100", 8, pp) // PIPELINE_LENGTH // pp


def replica_cap() -> float:
    return pipeline_batch(8, 1)
