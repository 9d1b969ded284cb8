"""How much of an iteration the GPU waits for the host: where the host waits for tokens, and where it runs ahead."""

from collections import defaultdict
from functools import partial

import numpy as np
import pandas as pd

from pod import data
from pod.experiments.engine import engine_windows
from pod.experiments.engine.shared import of_runs
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.schedulers import VLLM
from pod.serving.shapes import SHAPES
from pod.simulate import calibrate
from pod.simulate.windows import RUNS

FIGURE = Figure(
    title="The host's share of an iteration",
    chapter="14",
    method="medians over the iterations of runs of the engine, random weights; GPU time by CUDA events. Rings: the "
    "host waits for an iteration's tokens. Dots: it launches the next one meanwhile, in CUDA graphs",
    data=("engine-runs", "engine-host", "engine-windows"),
)
COMPUTED = "engine-host"
KEYS, READS = ("run", "kind"), ("engine-runs",)
ATTENTION = {"fa3": "FlashAttention-3", "fa3-one": "FlashAttention-3, one call", "hopper-serial": "ours, in turn",
             "hopper": "ours"}  # fmt: skip
LEAST = 20  # iterations of a kind, for a median


def cases() -> list[dict]:
    return [{"run": run} for run in sorted(calibrate.recorded())]


def measure(case: dict) -> list[dict]:
    """By kind of iteration: how many, decodes and tokens that these attend to in all of them, and median milliseconds
    from its begin to the next one's, and of the GPU. A recording holds times and a digest of each batch; the scheduler
    says who is in it."""
    run, kinds = case["run"], defaultdict(list)
    rows = zip(calibrate.batches(run), calibrate.iteration_seconds(run), calibrate.recorded()[run], strict=True)
    for event, seconds, row in rows:
        kind = "hybrid" if event.prefills and event.decodes else "prefill only" if event.prefills else "decode only"
        kinds[kind].append((len(event.decodes), event.decode_context, 1e3 * seconds, 1e3 * row["gpu"]))
    return [{"kind": kind} | _together(rows) for kind, rows in kinds.items()]


def _together(rows: list[tuple[int, int, float, float]]) -> dict[str, float]:
    decodes, context, ms, gpu_ms = zip(*rows, strict=True)
    return {"iterations": len(rows), "decodes": sum(decodes), "decode_context": sum(context),
            "ms": round(float(np.median(ms)), 4), "gpu_ms": round(float(np.median(gpu_ms)), 4)}  # fmt: skip


# ---------------------------------------------------------------- what it shows


def table():
    """One row a run, kind of iteration and loop: how many, milliseconds from its begin to the next one's, and those of
    the GPU."""
    df = pd.concat([_waiting(), _ahead()], ignore_index=True)
    return df.assign(host_percent=100 * (1 - df.gpu_ms / df.ms))


COLUMNS = ["run", "attention", "kind", "loop", "iterations", "ms", "gpu_ms"]


def _waiting():
    df = of_runs(COMPUTED).query(f"iterations >= {LEAST}")
    runs, attention = df.run.str.rpartition(", ")[0], df.run.map(lambda run: ATTENTION[RUNS[run][1]])
    return df.assign(run=runs.map(_named), attention=attention, loop="waits")[COLUMNS]


def _ahead():
    rows = []
    for run, (model, kind, attention) in engine_windows.RUNS.items():
        mine = engine_windows.runs()[model, run.removeprefix(f"{model}, ")]
        name = _named(model) + (", vLLM's scheduler" if kind is VLLM else "")
        for what, part in (("hybrid", mine[(mine.prompt > 0) & (mine.decodes > 0)]),
                           ("decode only", mine[mine.prompt == 0])):  # fmt: skip
            rows.append((name, ATTENTION[attention], what, "ahead", len(part), part.ms.median(), part.gpu_ms.median()))
    return pd.DataFrame(rows, columns=COLUMNS).query(f"iterations >= {LEAST}")


def _named(run: str) -> str:
    """As "llama-3-8b calm"."""
    model, *how = run.split(" ")
    return " ".join([SHAPES[model].name, *how])


LIMIT, GREY = 2, "0.5"  # percent; of no attention
TONES = {"FlashAttention-3": style.INK, "our kernel": style.WORKERS[0]}
LOOPS = {"waits": "ring: the host waits for the tokens,\nthen launches the next iteration",
         "ahead": "dot: it launches the next iteration\nwhile this one runs"}  # fmt: skip
GROUPS = ("Offline: all are there", "Requests arrive meanwhile", "Offline, vLLM's scheduler")


def draw(df):
    """A row a run and kind of iteration, in groups of a load; a mark an attention, filled where the host runs ahead."""
    df = df.assign(group=df.run.map(_group), row=df.run.str.partition(", ")[0] + ", " + df.kind)
    places, heads, y = {}, [], 0.0
    for group, mine in df.groupby("group"):
        heads.append((y, GROUPS[group]))
        for row in sorted(set(mine.row)):
            y += 1
            places[group, row] = y
        y += 1.3
    ax = style.axes(9.5, 1.1 + 0.33 * y)
    df = df.assign(y=[places[key] for key in zip(df.group, df.row, strict=True)])
    ax.axvline(LIMIT, color=style.INK, linestyle="--", linewidth=1)
    ax.text(LIMIT + 0.08, -0.2, f"we claim: dots stay below {LIMIT} %", fontsize=9, va="center")
    for row in df.itertuples():
        _mark(ax, row.host_percent, row.y, TONES[_who(row.attention)], row.loop)
    for loop, words in LOOPS.items():
        _mark(ax, [], [], GREY, loop, words)
    for who, tone in TONES.items():
        ax.plot([], [], "s", color=tone, markersize=7, label=who)
    for (loop, y), most in df.groupby(["loop", "y"]).host_percent.max().items():
        ax.text(most + 0.18, y, f"{most:.1f}", ha="left", va="center", fontsize=9,
                fontweight="bold" if loop == "ahead" else None)  # fmt: skip
    ax.set_yticks(list(places.values()), [row for _, row in places], fontsize=9)
    for y, words in heads:
        ax.text(-0.02, y, words, fontsize=9, fontweight="bold", ha="right", va="center",
                transform=ax.get_yaxis_transform())  # fmt: skip
    ax.set(xlim=(-0.1, 11), ylim=(max(places.values()) + 0.7, -0.7),
           xlabel="% of an iteration in which the GPU waits for the host, median of a run")  # fmt: skip
    ax.grid(axis="y", color=style.IDLE)
    ax.set_axisbelow(True)
    style.legend(ax, loc="lower right", labelspacing=0.7)
    return ax.figure


def _group(run: str) -> int:
    return 2 if "vLLM" in run else 1 if run.endswith((" calm", " online")) else 0


def _who(attention: str) -> str:
    return "our kernel" if attention.startswith("ours") else attention.partition(",")[0]


def _mark(ax, x, y, tone: str, loop: str, label: str | None = None) -> None:
    ax.plot(x, y, "o", color=tone, markerfacecolor=tone if loop == "ahead" else "none", markersize=7, label=label)


def shares(df, names, words):
    """One bar a row: what the GPU works of the iteration (gpu_ms of ms) and what it waits, with words behind."""
    ax = style.axes(9.5, 0.9 + 0.3 * len(df))
    y = range(len(df))
    ax.barh(y, df.gpu_ms, color=style.colour("hybrid"), label="GPU busy")
    ax.barh(y, df.ms - df.gpu_ms, left=df.gpu_ms, color=style.colour("host"), label="GPU waits for the host")
    for i, ms, word in zip(y, df.ms, words, strict=True):
        ax.text(ms, i, f" {word}", va="center", fontsize=9)
    ax.set(yticks=list(y), ylim=(len(df) - 0.4, -0.6), xlabel="ms an iteration, median", xlim=(0, 1.12 * df.ms.max()))
    ax.set_yticklabels(names, fontsize=8.5)
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    return ax.figure


# ---------------------------------------------------------------- step by step

FIRST, LATER = data.SHOWN, "repeats/2026-11-27-afb7ae97/h200"  # the runs, and once more by an engine of whole graphs
STEPS = {"kernel after kernel; decodes in pieces": FIRST, "whole graphs": LATER}


def steps(model: str = "Llama-3-8B") -> pd.DataFrame:
    """One model as the engine grew: in words, how much of an iteration the GPU waits for the host. A row an attention,
    kind of iteration and load. In the last column the host runs ahead, on other windows of the offline load."""
    made = {}
    for step, place in STEPS.items():
        with data.chosen(place):
            made[step] = _in_words(_waiting())
    with data.chosen(FIRST):
        made["whole graphs, ahead"] = _in_words(_ahead())
    loads = {f"{model} calm": "calm", f"{model} online": "online", model: "offline"}
    rows = {(how, f"{kind}, {load}"): (run, kind, how) for how in ("FlashAttention-3", "ours")
            for kind in ("decode only", "hybrid") for run, load in loads.items()}  # fmt: skip
    df = pd.DataFrame({step: {name: said.get(row) for name, row in rows.items()} for step, said in made.items()})
    return df.dropna(subset=list(STEPS)).fillna("not run").rename_axis(["attention", "iterations"])


def _in_words(df: pd.DataFrame) -> dict[tuple[str, str, str], str]:
    """By run, kind of iteration and attention."""
    shares = 100 * (1 - df.gpu_ms / df.ms)
    return {(row.run, row.kind, row.attention): f"{share:.1f} % of {row.ms:.0f} ms"
            for share, row in zip(shares, df.itertuples(), strict=True)}  # fmt: skip


# ---------------------------------------------------------------- what claims ask for


def _worst(kind: str, loop: str = "ahead") -> float:
    """Largest share of the host in iterations of a kind, percent."""
    return float(table().groupby(["kind", "loop"]).host_percent.max()[kind, loop])


worst_hybrid, worst_decodes = partial(_worst, "hybrid"), partial(_worst, "decode only")
