"""Real runs of the engine on an H200: the same batches, three ways to compute their attention.

Measured: the engine on random weights, three models, attention by FlashAttention-3 and by us: every iteration's time.
"""

from functools import lru_cache, partial

import pandas as pd

from pod.experiments.engine import engine_host, running
from pod.experiments.engine.engine_parts import overlap
from pod.experiments.engine.shared import of_runs
from pod.lab.figure import Figure
from pod.lab.measure import provenance, timing
from pod.lab.show import style
from pod.serving.loop import WallClock
from pod.serving.shapes import SHAPES
from pod.simulate import calibrate
from pod.simulate.windows import OFFLINE, RUNS, window

FIGURE = Figure(
    title="The same batches with FlashAttention-3, with ours in turn, and with ours at once",
    chapter="15",
    method="windows of 1,050 to 1,800 iterations out of a long offline run, about a minute each; bf16, random weights; "
    "time from start to end",
    data=("engine-runs", "engine-host"),
)
RECORDING = "engine-runs"
KEYS, WHOLE = ("run", "iteration"), ("run",)
UNITS = ("hopper", "model")
REPEATS = 1
TIMER = "host clock at every step of an iteration; gpu_ms by CUDA events around it"
L2 = "warm"


def cases() -> list[dict]:
    return [{"run": run, "iteration": i} for run, (load, _) in RUNS.items() for i in range(load.iterations)]


def measure(case: dict) -> dict:
    return _run(case["run"])[int(case["iteration"])]


@lru_cache(maxsize=1)
def _run(run: str) -> list[dict]:
    load, attention = RUNS[run]
    engine, scheduler = running.ready(load, attention)
    with running.unswept(), provenance.watch(running.WATCH_SECONDS) as watched:
        engine.clock = WallClock()
        events = window(load, engine, scheduler, engine.clock)
    clock = running.state(watched)
    rows = [running.row(event, *marks) | clock for event, marks in zip(events, engine.marks, strict=True)]
    del engine
    timing.free_memory()
    return rows


# ---------------------------------------------------------------- what it shows

WAYS = {"fa3": "FlashAttention-3, two calls", "hopper-serial": "ours, halves in turn", "hopper": "ours, at once"}


def table():
    """A row a run: milliseconds an iteration (all of the window over its iterations), of these the GPU's from its
    first kernel to its last, and the time saved against FlashAttention-3 in percent."""
    rows, sums = [], of_runs(engine_host.COMPUTED).groupby("run")[["decodes", "decode_context"]].sum()
    for run, (load, attention) in RUNS.items():
        if not load.qps and run in calibrate.recorded():
            real = calibrate.recorded()[run]
            decodes, context = sums.decodes[run] / len(real), sums.decode_context[run] / sums.decodes[run]
            ms = 1e3 * (real[-1]["end"] - real[0]["scheduled"]) / len(real)
            gpu = 1e3 * sum(row["gpu"] for row in real) / len(real)
            rows.append((load.model, WAYS[attention], load.chunk, round(decodes), round(context), ms, gpu))
    order = list(WAYS.values())
    df = pd.DataFrame(rows, columns=["model", "attention", "budget", "decodes", "context", "ms", "gpu_ms"])
    df = df.sort_values("attention", key=lambda names: names.map(order.index), kind="stable", ignore_index=True)
    serial = df[df.attention == WAYS["fa3"]].set_index("model").ms
    return df.assign(saved_percent=100 * (1 - df.ms / df.model.map(serial)))


def draw(df):
    models = list(dict.fromkeys(df.model))
    axes = style.axes(9.5, 2.9, len(models), width_ratios=[len(df[df.model == m]) + 0.5 for m in models])
    colours = dict(zip(WAYS.values(), (style.FRAME, style.colour("load"), style.colour("hybrid")), strict=True))
    for ax, model in zip(axes, models, strict=True):
        mine = df[df.model == model]
        ax.bar(mine.attention, mine.gpu_ms, color=mine.attention.map(colours), width=0.7)
        ax.bar(mine.attention, mine.ms - mine.gpu_ms, bottom=mine.gpu_ms, color="white", edgecolor=style.INK, width=0.7,
               linewidth=0.8, label="beside the GPU's time: the host plans")  # fmt: skip
        for i, row in enumerate(mine.itertuples()):
            ax.text(i, row.gpu_ms / 2, f"{row.gpu_ms:.1f}", ha="center", va="center", fontsize=9)
            words = f"{100 * (row.gpu_ms / mine.gpu_ms.iloc[0] - 1):+.1f} %" if i else ""
            words += overlap(mine.gpu_ms) if row.attention == "ours, at once" else ""
            ax.text(i, row.ms + 0.5, words, ha="center", va="bottom", fontsize=9)
        ax.set_xticks(range(len(mine)), [name.replace(", ", ",\n") for name in mine.attention], fontsize=8.5)
        row = mine.iloc[0]
        batch = f"{row.budget - row.decodes} prompt tokens, {row.decodes} chats at {row.context / 1024:.0f}K"
        ax.set_title(f"{SHAPES[model].name}\n{batch}", fontsize=9.5)
        ax.set_ylim(0, 1.35 * df.ms.max())
    axes[0].set_ylabel("ms an iteration, measured")
    return style.legend_outside(axes[0], "upper", 1)


def power():
    """Median clock of the SMs and power of the offline runs, in words: a row a model, a column an attention."""
    seen = pd.read_csv(calibrate.log()).drop_duplicates("run").set_index("run")
    said = {run: f"{seen.sm_clock_mhz[run]:.0f} MHz, {seen.power_w[run]:.0f} W" for run in seen.index}
    rows = [(SHAPES[load.model].name, WAYS[how], said[run]) for run, (load, how) in RUNS.items()
            if not load.qps and run in said]  # fmt: skip
    df = pd.DataFrame(rows, columns=["model", "attention", "seen"]).pivot(index="model", columns="attention")["seen"]
    return df[list(WAYS.values())].rename_axis(None).rename_axis(None, axis=1)


def launched(run: str) -> tuple[float, float]:
    """Medians over a run: milliseconds from the decision until all of an iteration is launched, and to the next one."""
    rows = pd.DataFrame(calibrate.recorded()[run])
    return 1e3 * (rows.launched - rows.scheduled).median(), 1e3 * rows.scheduled.diff().median()


def saved(model: str = "llama-3-8b", attention: str = "hopper") -> float:
    """Time saved in the whole run against FlashAttention-3, percent."""
    return float(table().set_index(["model", "attention"]).saved_percent[model, WAYS[attention]])


# ---------------------------------------------------------------- better halves x fusing


def _faster(one: str, other: str, model: str = "llama-3-8b", of: str = "ms") -> float:
    ms = table().set_index(["model", "attention"])[of]
    return float(ms[model, WAYS[one]] / ms[model, WAYS[other]])


halves = partial(_faster, "fa3", "hopper-serial")  # two FlashAttention-3 calls over ours in turn
fusing = partial(_faster, "hopper-serial", "hopper")  # ours in turn over ours at once


def fused(model: str, of: str = "ms") -> float:
    """Throughput that fusing adds, %; of "gpu_ms" by the GPU's time alone."""
    return 100 * (fusing(model, of) - 1)


def fused_max(of: str = "ms") -> float:
    return max(fused(model, of) for model in OFFLINE)


def least_halves() -> float:
    """Of the run in which least is saved."""
    return halves(min(table().model.unique(), key=saved))


def least_fusing() -> float:
    return fusing(min(table().model.unique(), key=saved))


def least_saved() -> float:
    """Of the models, the least time saved with our kernel at once, percent."""
    return min(saved(model) for model in table().model.unique())
