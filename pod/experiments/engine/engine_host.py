"""How much of an iteration the GPU waits for the host, in hybrid and in decode-only iterations of real runs."""

from collections import defaultdict

import numpy as np

from pod.experiments.engine.shared import of_runs
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate import calibrate
from pod.simulate.windows import RUNS

FIGURE = Figure(
    id="engine-host",
    title="The host's share of an iteration",
    chapter="14",
    method="medians over the iterations of runs of the engine, 9 to 64 s each, random weights; GPU time by CUDA events",
    data=("engine-runs", "engine-host"),
)
COMPUTED = "engine-host"
KEYS, READS = ("run", "kind"), ("engine-runs",)
ATTENTION = {"fa3": "FlashAttention-3", "hopper-serial": "ours, in turn", "hopper": "ours"}


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
    """One row a run and kind of iteration: how many, milliseconds from its begin to the next one's, and those of
    the GPU."""
    df = of_runs(COMPUTED).query("iterations >= 20")
    runs, attention = df.run.str.rpartition(", ")[0], df.run.map(lambda run: ATTENTION[RUNS[run][1]])
    df = df.assign(run=runs, attention=attention, host_percent=100 * (1 - df.gpu_ms / df.ms))
    columns = ["run", "attention", "kind", "iterations", "ms", "gpu_ms", "host_percent"]
    return df[columns].reset_index(drop=True)


LIMIT = 10  # percent
TONES = dict(zip(ATTENTION.values(), (style.INK, style.WORKERS[1], style.WORKERS[0]), strict=True))


def draw(df):
    """A row a run and kind of iteration, a dot an attention."""
    rows = df.run + ", " + df.kind
    places = {row: y for y, row in enumerate(dict.fromkeys(rows))}
    ax = style.axes(9.5, 0.8 + 0.38 * len(places))
    ax.axvline(LIMIT, color=style.INK, linestyle="--", linewidth=1)
    for attention, percent, y in zip(df.attention, df.host_percent, rows.map(places), strict=True):
        ax.plot(percent, y, "o", color=TONES[attention], markersize=8, label=attention)
        ax.text(percent, y - 0.24, f"{percent:.1f}", ha="center", va="bottom", fontsize=8.5)
    ax.set_yticks(range(len(places)), list(places), fontsize=9)
    ax.set(xlim=(0, 11), ylim=(len(places) - 0.5, -0.8), xlabel="% of an iteration in which the GPU waits, median")
    ax.grid(axis="y", color=style.IDLE)
    ax.set_axisbelow(True)
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3)
    return ax.figure


def shares(df, names, words):
    """One bar a row: what the GPU works of the iteration (gpu_ms of ms) and what it waits, with words behind."""
    ax = style.axes(9.5, 0.9 + 0.3 * len(df))
    y = range(len(df))
    ax.barh(y, df.gpu_ms, color=style.colour("hybrid"), label="GPU works")
    ax.barh(y, df.ms - df.gpu_ms, left=df.gpu_ms, color=style.colour("host"), label="GPU waits for the host")
    for i, ms, word in zip(y, df.ms, words, strict=True):
        ax.text(ms, i, f" {word}", va="center", fontsize=9)
    ax.set(yticks=list(y), ylim=(len(df) - 0.4, -0.6), xlabel="ms an iteration, median", xlim=(0, 1.12 * df.ms.max()))
    ax.set_yticklabels(names, fontsize=8.5)
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    return ax.figure


# ---------------------------------------------------------------- what claims ask for


def worst_hybrid() -> float:
    """Largest share of the host in hybrid iterations, percent."""
    return _worst("hybrid")


def worst_decodes() -> float:
    """Largest share of the host in iterations of decodes alone, percent."""
    return _worst("decode only")


def _worst(kind: str) -> float:
    df = table()
    return float(df.host_percent[df.kind == kind].max())
