"""SARATHI post, Figure 1: whole prompts of unequal length tear holes into a pipeline."""

from functools import cache

import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show.serving import bubble_share, pipeline
from pod.serving.request import Request
from pod.simulate.run import Setup, simulate

FIGURE = Figure(
    title="Pipeline bubbles under continuous batching",
    chapter="13",
    method="four requests, LLaMA-13B in two stages on A100s (analytical times), two micro-batches, Orca's scheduler",
    state="simulated",
)
LENGTHS = ((1024, 12), (320, 14), (1792, 12), (512, 12))


@cache
def run(scheduler: str):
    setup = Setup(model="llama-13b", pp=2, scheduler=scheduler, max_batch=2, max_tokens=2048, chunk=256, host="none",
                  kernels="fa2")  # fmt: skip
    return simulate(setup, [Request(i, prompt, output) for i, (prompt, output) in enumerate(LENGTHS)])


def rows(scheduler: str):
    """One row a micro-batch and stage: when it ran, what was in it."""
    out = []
    for event in run(scheduler).iterations:
        words = " ".join([f"{'ABCD'[i]}p{n}" for i, n, *_ in event.prefills] + [f"{'ABCD'[i]}d" for i in event.decodes])
        out += [(stage, 1000 * a, 1000 * b, event.lane, words) for stage, (a, b) in enumerate(event.stages)]
    return pd.DataFrame(out, columns=["stage", "start_ms", "end_ms", "micro_batch", "content"])


def table():
    return rows("orca")


def bubbles_until_done(scheduler: str) -> float:
    """Share of both stages' time that is idle until the last token is out."""
    log = run(scheduler)
    return bubble_share(log, 0.0, max(e.end for e in log.iterations))


def draw(df):
    return picture("orca", "whole prompts")


def picture(scheduler: str, words: str):
    log, share = run(scheduler), bubbles_until_done(scheduler)
    end = max(e.end for e in log.iterations)
    title = f"{words}: done after {1000 * end:.0f} ms, stages idle {100 * share:.0f} % of it"
    longest = max(e.end for s in ("orca", "sarathi_v1") for e in run(s).iterations)
    return pipeline({title: log}, 0.0, longest)
