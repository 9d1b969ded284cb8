"""POD's Table 6 on a real server: a larger chunk answers the prompt sooner and the others later.

Measured: what each request of five minutes felt, Llama-3-8B on one H200 a run, at the paper's share of what Sarathi can
serve: vLLM's scheduler, and Sarathi with our kernel at three chunks.
"""

from functools import lru_cache

import pandas as pd

from pod.data import a_card, kept, read
from pod.experiments.engine import engine_served
from pod.experiments.engine.engine_served import LOWER, POD, REQUESTS, Run, foretold, side_by_side, summed, worst_off
from pod.experiments.pod.pod_t5 import plain_ticks
from pod.experiments.pod.pod_t6 import CHUNKS, METRICS
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title=f"Chunk size in five minutes of real serving, on {a_card()}: TTFT against TBT",
    says="A larger chunk costs the others about as much as in the paper, and here wins the prompt little",
    chapter="15",
    method="Llama-3-8B, random weights, bf16; the requests of five minutes, at the paper's share of what Sarathi "
    "serves; one run a system, iterations of up to 2,048 tokens as CUDA graphs; the artifact's definitions",
    data=("engine-chunks", "engine-foretold"),
)
RECORDING = "engine-chunks"
KEYS, WHOLE = ("run", "request"), ("run",)  # whoever is stopped keeps those that ended
UNITS = engine_served.UNITS
REPEATS = 1
TIMER = engine_served.TIMER
L2 = "warm"
RUNS = {run.name: run for run in (Run(LOWER, "vLLM"), *(Run(LOWER, POD, chunk) for chunk in CHUNKS))}


def cases() -> list[dict]:
    return [{"run": run, "request": request} for run in RUNS for request in range(REQUESTS[LOWER])]


def measure(case: dict) -> dict:
    return _round(_beside(case["run"]))[case["run"]][int(case["request"])]


def _beside(run: str) -> tuple[str, ...]:
    """The runs that go on at the same time: as many as there are GPUs."""
    import torch

    names, cards = list(RUNS), torch.cuda.device_count()
    first = names.index(run) // cards * cards
    return tuple(names[first : first + cards])


@lru_cache(maxsize=1)
def _round(names: tuple[str, ...]) -> dict[str, list[dict]]:
    return side_by_side([RUNS[name] for name in names])


# ---------------------------------------------------------------- what it shows


@kept("engine-chunks")
def measured() -> dict[str, dict[str, float]]:
    return {run: summed(rows) for run, rows in read("engine-chunks").groupby("run", sort=False)}


def table() -> pd.DataFrame:
    """A row a system and metric: what the paper states of two A100s, what we measured, what had been foretold."""
    done, said = measured(), foretold()
    rows = [(_short(run), metric, paper.value(f"pod.t6.{run.chunk or 'vllm'}.{metric}"), done[name][metric],
             said[name][metric]) for name, run in RUNS.items() for metric in METRICS]  # fmt: skip
    return pd.DataFrame(rows, columns=["system", "metric", "paper", "measured", "foretold"])


def _short(run: Run) -> str:
    return f"chunk {run.chunk}" if run.chunk else run.system


def draw(df):
    ax = style.axes(7.5, 3.6)
    for source, marker, line in (("paper", "X", ":"), ("foretold", "o", "--"), ("measured", "o", "-")):
        wide = df.pivot(index="system", columns="metric", values=source)
        chunks, filled = wide.loc[[f"chunk {chunk}" for chunk in CHUNKS]], source != "foretold"
        for rows, name, colour in ((chunks, POD, style.WORKERS[0]), (wide.loc[["vLLM"]], "vLLM", style.WORKERS[1])):
            ax.plot(rows.tbt_p99, rows.ttft_p50, marker + line, color=colour, markersize=8,
                    fillstyle="full" if filled else "none", label=f"{name}, {LABELS[source]}")  # fmt: skip
        if filled:
            for chunk, row in zip(CHUNKS, chunks.itertuples(), strict=True):
                ax.annotate(f"{chunk:,}", (row.tbt_p99, row.ttft_p50), (6, 6), textcoords="offset points", fontsize=8.5)
    ax.tick_params(which="both", labelsize=9)
    ax.set(xscale="log", yscale="log", xlabel="P99 TBT, s: what the others feel",
           ylabel="median TTFT, s: what the prompt feels")  # fmt: skip
    for axis in (ax.xaxis, ax.yaxis):
        plain_ticks(axis)
    style.legend(ax, loc="upper right")
    return ax.figure


LABELS = {"paper": "paper, two A100s", "foretold": "simulated before", "measured": "measured, one H200"}


# ---------------------------------------------------------------- what claims ask for


def times(metric: str, chunk: str | int, than: str | int) -> float:
    """How many times as much of a metric a chunk has as another."""
    mine, other = (measured()[Run(LOWER, POD, int(size)).name][metric] for size in (chunk, than))
    return mine / other


def foretold_off(metric: str) -> float:
    """By how much the simulator was wrong about a metric in the run that it foretold worst, percent."""
    return worst_off(table(), metric)


def chunks_off(metric: str) -> float:
    """The same of Sarathi's chunks alone."""
    return worst_off(table().query("system != 'vLLM'"), metric)
