"""POD's Figure 12 once more in real runs, with the kernels that its own GPU could run: the sm_80 family, on an H200.

Measured: 120 iterations out of the offline run of engine-windows, Sarathi's batches, our prefill and decode in turn and
as POD. Only fusing is between the two: the instructions, the tiles and the rest of the iteration are the same.

These kernels are planned on the host, so a hybrid iteration is launched kernel by kernel, and `gpu_ms` holds what the
GPU waited for the host. Each iteration is compared with its twin in the other run.
"""

from functools import lru_cache

import pandas as pd

from pod.data import a_card, read
from pod.experiments.engine import engine_windows
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.schedulers import Sarathi
from pod.serving.shapes import SHAPES
from pod.simulate.windows import OFFLINE

FIGURE = Figure(
    title=f"Sarathi and Sarathi with POD in real runs, both with the sm_80 kernels, on {a_card()}",
    says="With the same kernels before and after, fusing raises throughput by 5.5 to 13 %",
    chapter="15",
    method="windows of 120 hybrid iterations out of a long offline run, bf16, random weights; the same batches twice; "
    "time from decision to decision",
    data=("engine-sm80",),
)
RECORDING = "engine-sm80"
KEYS, WHOLE = ("run", "iteration"), ("run",)
UNITS = ("hybrid", "model")
REPEATS = 1
TIMER = engine_windows.TIMER
L2 = "warm"
ITERATIONS = 120
SYSTEMS = {"in turn": "serial", "POD": "pod"}
RUNS = {f"{model}, {system}": (model, attention) for model in OFFLINE for system, attention in SYSTEMS.items()}


def cases() -> list[dict]:
    return [{"run": run, "iteration": i} for run in RUNS for i in range(ITERATIONS)]


def measure(case: dict) -> dict:
    return _run(case["run"])[int(case["iteration"])]


@lru_cache(maxsize=1)
def _run(run: str) -> list[dict]:
    model, attention = RUNS[run]
    load = engine_windows.loaded(model)
    return engine_windows.timed(load, Sarathi, ITERATIONS, engine_windows.engine(model, load, attention))


def twins(model: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The iterations in turn and as POD; the first one warms up, and the last one's end is not known."""
    df = read(RECORDING)
    turn, pod = (engine_windows.iterations(df, f"{model}, {system}") for system in SYSTEMS)
    engine_windows.check_same(turn, pod)
    return turn[1:-1], pod[1:-1]


def table() -> pd.DataFrame:
    """A row a model: milliseconds an iteration, throughput that POD gains, percent, its standard error over the
    iterations, and the paper's gain."""
    rows = []
    for model in OFFLINE:
        turn, pod = twins(model)
        saved = (turn.ms - pod.ms) / pod.ms.mean()
        stated = paper.value(f"pod.f12.over_sarathi_{engine_windows.pod_12.MODELS[model][2]}")
        rows.append((model, turn.ms.mean(), pod.ms.mean(), 100 * saved.mean(), 100 * saved.sem(), stated))
    return pd.DataFrame(rows, columns=["model", "turn_ms", "pod_ms", "gain", "error", "paper"])


def draw(df):
    ax = style.axes(9.5, 0.8 + 0.75 * len(df))
    for i, row in enumerate(df.itertuples()):
        ax.barh(i - 0.2, row.turn_ms, 0.36, color=style.FRAME)
        ax.barh(i + 0.2, row.pod_ms, 0.36, color=style.colour("hybrid"))
        ax.text(0, i - 0.2, f" in turn: {row.turn_ms:.1f} ms", va="center", fontsize=9)
        ax.text(0, i + 0.2, f" POD: {row.pod_ms:.1f} ms, {row.gain:+.1f} ± {row.error:.1f} %; paper {row.paper:+.0f} %",
                va="center", fontsize=9, color=style.text_on("hybrid"))  # fmt: skip
    ax.set_yticks(range(len(df)), [SHAPES[model].name for model in df.model])
    ax.invert_yaxis()
    ax.set_xlabel("an iteration, ms, measured")
    return ax.figure


def gain(model: str) -> float:
    """Throughput that POD gains over the same kernels in turn, percent."""
    return float(table().set_index("model").gain[model])
