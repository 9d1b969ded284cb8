"""POD's Figure 15 in real runs on an H200: the gain of fusing against the ratio of prompt to answer tokens.

Measured: 160 iterations out of the long offline run of Llama-3-8B at each ratio, requests of 16,500 tokens, as many at
once as memory holds; Sarathi's batches with both calls of FlashAttention-3, and with our halves in turn and at once.

Where answers are long, some 50 requests fill the memory before their tokens fill an iteration: the next prompt waits
until one of them has ended, and most iterations are decodes alone. Where answers are short, few decode beside a chunk.
"""

from functools import lru_cache, partial

import pandas as pd

from pod.data import a_card, read
from pod.experiments.engine import engine_windows
from pod.experiments.engine.engine_windows import check_same, faster, iterations
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.schedulers import Sarathi
from pod.simulate.windows import K, Load

FIGURE = Figure(
    title=f"What one kernel for both gains, against the ratio of prompt to answer tokens, on {a_card()}",
    chapter="15",
    method="Llama-3-8B, bf16, random weights, requests of 16.5K tokens, memory for 800K, chunk 1,024; windows of 160 "
    "iterations as CUDA graphs; over FlashAttention-3 in two calls or one, whichever was faster for the batch. "
    "At each ratio all four ran one after the other, and who begins changes",
    data=("engine-ratios",),
)
RECORDING = "engine-ratios"
KEYS, WHOLE = ("run", "iteration"), ("run",)
UNITS = ("hopper", "plan", "model")
REPEATS = 1
TIMER = engine_windows.TIMER
L2 = "warm"
MODEL, TOTAL, CHUNK, ROOM, ITERATIONS = "llama-3-8b", 16_500, K, 3120, 160
RATIOS = (4, 8, 12, 18, 24, 36)
SYSTEMS = ("hopper", "fa3", "hopper-serial", "fa3-one")
RUNS = {f"{attention}, {pd}": (attention, pd)
        for i, pd in enumerate(RATIOS) for attention in SYSTEMS[i % 4 :] + SYSTEMS[: i % 4]}  # fmt: skip


def cases() -> list[dict]:
    return [{"run": run, "iteration": i} for run in RUNS for i in range(ITERATIONS)]


def measure(case: dict) -> dict:
    return _run(case["run"])[int(case["iteration"])]


def load(ratio: float) -> Load:
    return Load(MODEL, ratio, CHUNK, TOTAL, ITERATIONS, room=ROOM)


@lru_cache(maxsize=1)
def _run(run: str) -> list[dict]:
    attention, ratio = RUNS[run]
    engine = engine_windows.engine(MODEL, load(ratio), attention)
    return engine_windows.timed(load(ratio), Sarathi, ITERATIONS, engine)


# ---------------------------------------------------------------- what it shows


def window(attention: str, ratio: float) -> pd.DataFrame:
    """Its iterations; the first one warms up, and the last one's end is not known."""
    return iterations(read(RECORDING), f"{attention}, {ratio}")[1:-1]


def table() -> pd.DataFrame:
    """A row a ratio: throughput that our kernel gains over the faster call of each batch, percent: of all iterations,
    of the hybrid ones, of decodes alone; what it gains over our own halves in turn; the share of the time in hybrid
    ones, and the chats beside a chunk."""
    rows = []
    for ratio in RATIOS:
        base, ours = faster(window("fa3", ratio), window("fa3-one", ratio)), window("hopper", ratio)
        in_turn = window("hopper-serial", ratio)
        check_same(base, ours)
        check_same(in_turn, ours)
        fused = 100 * (in_turn.ms.sum() / ours.ms.sum() - 1)
        both = (ours.prompt > 0) & (ours.decodes > 0)
        gains = (100 * (base.ms[some].sum() / ours.ms[some].sum() - 1) if some.any() else None
                 for some in (both | True, both, ~both))  # fmt: skip
        rows.append((ratio, *gains, fused, 100 * base.ms[both].sum() / base.ms.sum(), ours.decodes[both].mean()))
    columns = ["pd", "gain_percent", "hybrid_gain_percent", "decode_gain_percent", "fused_gain_percent",
               "hybrid_percent", "decodes"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def decodes_alone() -> pd.DataFrame:
    """Median milliseconds of an iteration without a prompt, by attention and how many decode in it."""
    every = pd.concat(window(attention, ratio).assign(attention=attention) for attention, ratio in RUNS.values())
    alone = every[every.prompt == 0]
    return alone.pivot_table(index="attention", columns="decodes", values="ms", aggfunc="median").loc[list(SYSTEMS)]


def draw(df):
    axes = style.axes(9.5, 3.1, 2)
    lines = {"over the faster call": ("gain_percent", "o-", 0), "over ours in turn": ("fused_gain_percent", "s-", 2)}
    for label, (column, mark, colour) in lines.items():
        axes[0].plot(df.pd, df[column], mark, color=style.WORKERS[colour], label=label)
    axes[0].axvspan(paper.value("pod.f15.peak_low"), paper.value("pod.f15.peak_high"), color=style.LIT, alpha=0.35,
                    label="paper: peak gains", linewidth=0)  # fmt: skip
    axes[0].set(ylabel="gain of ours at once, %", ylim=(0, 1.45 * df.gain_percent.max()))
    axes[1].plot(df.pd, df.hybrid_percent, "s--", color=style.INK, label="time in hybrid iterations, %")
    axes[1].plot(df.pd, df.decodes, "D-", color=style.colour("linear"), label="chats beside a chunk")
    axes[1].set_ylim(0, 105)
    for ax in axes:
        ax.set(xscale="log", xlabel="prompt tokens to each answer token, P:D")
        style.ticks(ax, RATIOS)
        style.legend(ax, loc="best")
    return axes[0].figure


# ---------------------------------------------------------------- what claims ask for


def best_ratio() -> float:
    return float(table().set_index("pd").gain_percent.idxmax())


def _gain(of: str, ratio: str | float) -> float:
    return float(table().set_index("pd")[f"{of}_gain_percent"][float(ratio)])


decodes_gain = partial(_gain, "decode")  # of the iterations without a prompt alone
fused_gain = partial(_gain, "fused")  # of all iterations, over our own halves in turn


def least_gain() -> float:
    return float(table().gain_percent.min())


def step(attention: str = "fa3") -> float:
    """How much longer an iteration of decodes takes for one chat more, the 50th, percent."""
    ms = decodes_alone().loc[attention]
    return 100 * float(ms[50] / ms[49] - 1)
