"""POD's Figure 12 as windows of real runs on an H200: three models, three systems, whole iterations in CUDA graphs.

Measured: 240 to 480 iterations out of a long offline run by vLLM's scheduler and by Sarathi's, with four attentions.

A window is short, since an offline run repeats itself: so many requests run from the start as do in the long run, each
with another part of its answer behind it, and 14 to 30 prompts pass while it lasts. Sarathi's batches are the same
whatever computes their attention, so its runs are compared batch by batch, and nothing but the GPU's clock may drift.
"""

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pandas as pd

from pod.data import kept, read
from pod.experiments.engine import running
from pod.experiments.pod import pod_12
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import provenance, timing
from pod.lab.show import style
from pod.serving.engine import Engine
from pod.serving.loop import Ticks, WallClock
from pod.serving.schedulers import VLLM, Sarathi
from pod.serving.shapes import SHAPES
from pod.simulate.windows import LOADS, OFFLINE, Load, began, window

FIGURE = Figure(
    title="Offline throughput in real runs: vLLM's scheduler, Sarathi, and Sarathi with POD",
    says="Of the gain over FlashAttention-3's faster call a third to a half is overlap",
    chapter="15",
    method="windows of 240 to 480 iterations out of a long offline run, 14 to 30 requests each; bf16, random weights, "
    "iterations of up to 2,048 tokens as CUDA graphs; time from an answer's end to another's",
    data=("engine-windows",),
)
RECORDING = "engine-windows"
KEYS, WHOLE = ("run", "iteration"), ("run",)
UNITS = ("hopper", "plan", "model")
REPEATS = 1
TIMER = "the host's clock at every decision of the scheduler; gpu_ms by CUDA events around the launch of an iteration"
L2 = "warm"
ITERATIONS = {"llama-3-8b": 240, "yi-6b": 480, "llama-2-7b": 240}
MORE = 1.5  # requests than Sarathi takes in meanwhile: vLLM's scheduler takes some at once
SYSTEMS = {  # what matters most comes first, in case time runs out
    "Sarathi, fa3": (Sarathi, "fa3"), "Sarathi, hopper": (Sarathi, "hopper"), "vLLM, fa3": (VLLM, "fa3"),
    "Sarathi, fa3-one": (Sarathi, "fa3-one"), "Sarathi, hopper-serial": (Sarathi, "hopper-serial"),
}  # fmt: skip
RUNS = {f"{model}, {system}": (model, *how) for model in OFFLINE for system, how in SYSTEMS.items()}


def cases() -> list[dict]:
    return [{"run": run, "iteration": i} for run, (model, *_) in RUNS.items() for i in range(ITERATIONS[model])]


def measure(case: dict) -> dict:
    return _run(case["run"])[int(case["iteration"])]


@lru_cache(maxsize=1)
def _run(run: str) -> list[dict]:
    name, kind, attention = RUNS[run]
    load = loaded(name)
    return timed(load, kind, ITERATIONS[name], engine(name, load, attention))


def engine(model: str, load: Load, attention: str) -> Engine:
    """With room for the load, after the memory of the engine before is free."""
    timing.free_memory()
    return Engine(running.model(model, load.total), load.pool(), attention)


def loaded(name: str) -> Load:
    return replace(LOADS[name], iterations=int(MORE * ITERATIONS[name]))


def timed(load: Load, kind, iterations: int, engine) -> list[dict]:
    """A row an iteration, on an engine that has captured whatever comes."""
    import torch

    with torch.inference_mode():
        for size in sizes(load, kind, iterations) if engine.whole else ():
            engine.whole.made_for(*size)
    scheduler = running.prepare(engine, load, kind)
    with running.unswept(), provenance.watch(running.WATCH_SECONDS) as watched:
        engine.clock = WallClock()
        events = window(load, engine, scheduler, engine.clock, iterations)
    state = running.state(watched)
    return [running.row(event, *marks) | batch(event) | state
            for event, marks in zip(events, engine.marks, strict=True)]  # fmt: skip


def sizes(load: Load, kind, iterations: int) -> list[tuple[int, int, int]]:
    """(tokens, sequences, chunks) of every iteration: offline, nobody's time decides who is in a batch."""
    return running.sizes(window(load, Ticks(), load.scheduler(kind=kind), most=iterations))


def batch(event) -> dict:
    """Who was in the batch, and who had to leave it."""
    return running.batch(event) | {"preempted": len(event.preempted)}


# ---------------------------------------------------------------- what it shows

FASTER = "Sarathi, the faster of both"  # calls of FlashAttention-3, batch by batch
NAMES = {"vLLM, fa3": "vLLM", "Sarathi, fa3": "Sarathi, FlashAttention-3 in two calls",
         "Sarathi, fa3-one": "Sarathi, FlashAttention-3 in one call", FASTER: "Sarathi, the faster call each time",
         "Sarathi, hopper-serial": "Sarathi, ours in turn", "Sarathi, hopper": "Sarathi, ours at once"}  # fmt: skip
POD = "Sarathi, hopper"


def iterations(df: pd.DataFrame, run: str) -> pd.DataFrame:
    """Of one run, `ms` from where an iteration begins to where the next one does; the last one's is not known."""
    mine = df[df.run == run].sort_values("iteration", kind="stable").reset_index(drop=True)
    return mine.assign(ms=np.append(np.diff(began(mine.scheduled_ms, mine.end_ms)), np.nan))


@kept("engine-windows")  # its claims ask for them twenty times
def runs() -> dict[tuple[str, str], pd.DataFrame]:
    """The iterations of each (model, system) but the last."""
    df = read("engine-windows")
    made = {}
    for run in df.run.unique():
        model, _, system = run.partition(", ")
        made[model, system] = iterations(df, run)[:-1]
    for model in {model for model, _ in made}:
        two, one = (made.get((model, f"Sarathi, {name}")) for name in ("fa3", "fa3-one"))
        if two is not None and one is not None:
            made[model, FASTER] = faster(two, one)
    return made


def check_same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    if not one.digest.equals(other.digest):
        raise ValueError("digest: got two runs with other batches, allowed are the same ones")


def faster(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Of two runs with the same batches, each batch as the faster one had it."""
    check_same(one, other)
    return one.where(one.ms <= other.ms, other)


def per_request(run: pd.DataFrame) -> np.ndarray:
    """Milliseconds from one answer's end to the next one's, over the window; where several end at once, each has its
    share."""
    ms, finished = run.ms.to_numpy(), run.finished.to_numpy()
    ends = np.flatnonzero(finished)
    return np.concatenate([np.full(int(finished[last]), ms[first + 1 : last + 1].sum() / finished[last])
                           for first, last in zip(ends, ends[1:], strict=False)])  # fmt: skip


@kept("engine-windows")
def table() -> pd.DataFrame:
    """A row a model and system: requests a minute with the standard error in percent, what POD gains over it, the
    paper's, and the medians of its hybrid iterations: milliseconds, and the share in which the GPU had no work."""
    done, rows = runs(), []
    answers = {key: per_request(run) for key, run in done.items()}
    rate = {key: 60_000 / each.mean() for key, each in answers.items()}
    for (model, system), run in sorted(done.items(), key=lambda item: (OFFLINE.index(item[0][0]), _order(item[0][1]))):
        each, hybrid = answers[model, system], run[(run.prompt > 0) & (run.decodes > 0)]
        error = 100 * each.std(ddof=1) / each.mean() / len(each) ** 0.5
        gain = 100 * (rate[model, POD] / rate[model, system] - 1) if (model, POD) in rate else None
        host = 100 * (1 - (run.gpu_ms / run.ms).median())
        rows.append((model, NAMES[system], rate[model, system], error, len(each), gain, stated(model, system),
                     hybrid.ms.median(), host, run.preempted.sum()))  # fmt: skip
    columns = ["model", "system", "requests_per_minute", "error_percent", "requests", "pod_gain", "pod_gain_paper",
               "hybrid_ms", "host_percent", "preempted"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _order(system: str) -> int:
    return list(NAMES).index(system)


def stated(model: str, system: str) -> float | None:
    """What the paper's POD gains over this system, percent; its Sarathi calls FlashAttention-2."""
    over = {"vLLM, fa3": "over_vllm", FASTER: "over_sarathi"}.get(system)
    return paper.value(f"pod.f12.{over}_{pod_12.MODELS[model][2]}") if over else None


def draw(df):
    models = list(dict.fromkeys(df.model))
    axes = np.atleast_1d(style.axes(9.5, 0.9 + 0.34 * len(NAMES), len(models), sharey=True))
    for ax, model in zip(axes, models, strict=True):
        mine = df[df.model == model]
        colours = [style.colour("hybrid") if name == NAMES[POD] else style.FRAME for name in mine.system]
        ax.barh(mine.system, mine.requests_per_minute, xerr=mine.error_percent * mine.requests_per_minute / 100,
                color=colours)  # fmt: skip
        for i, row in enumerate(mine.itertuples()):
            gain = f"  POD {row.pod_gain:+.0f} %" if row.pod_gain else ""
            ax.text(0, i, f" {row.requests_per_minute:.0f}{gain}", va="center", fontsize=8.5,
                    color=style.text_on("hybrid") if row.system == NAMES[POD] else None)  # fmt: skip
        ax.set(xlabel="requests a minute, measured")
        ax.set_title(SHAPES[model].name, fontsize=10)
    axes[0].invert_yaxis()
    return axes[0].figure


# ---------------------------------------------------------------- what claims ask for


def gain(model: str = "llama-3-8b", over: str = FASTER) -> float:
    """Throughput that Sarathi with POD has more than another system, percent."""
    df = table().set_index(["model", "system"])
    return float(df.pod_gain[model, NAMES[over]])


def gain_max(over: str = FASTER) -> float:
    return max(gain(model, over) for model in table().model.unique())


def gain_least(over: str = FASTER) -> float:
    return min(gain(model, over) for model in table().model.unique())


over_vllm = partial(gain, over="vLLM, fa3")
fused = partial(gain, over="Sarathi, hopper-serial")  # what computing both halves at once gains, percent


def halves(model: str) -> float:
    """What the better halves, in turn, gain over the faster call of FlashAttention-3, percent."""
    return 100 * ((1 + gain(model) / 100) / (1 + fused(model) / 100) - 1)


def requests(model: str) -> int:
    """Answers that end in the window of Sarathi with POD."""
    return int(table().set_index(["model", "system"]).requests[model, NAMES[POD]])
