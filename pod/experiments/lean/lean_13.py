"""LeanAttention, Figure 13: the energy of a decode against FlashDecoding's.

Measured: energy of decode, 56 heads, one request, five readings each: stream-K, FlashDecoding's splits and two peers.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import chain
from random import Random

import pandas as pd

from pod.batch import HybridBatch
from pod.data import read
from pod.experiments.lean import lean, shared
from pod.lab.figure import Figure
from pod.lab.measure import meter, peers, timing
from pod.lab.show import style

FIGURE = Figure(
    title="Energy of a decode under FlashDecoding's splits and stream-K: 56 heads, one request",
    chapter="11",
    method="NVML's counter, 1.5 s of calls a reading; head dimension 64, fp16. Bars: median of five, strokes from "
    "least to most. Numbers: energy over that of the rule of 2.5.6 in the same tile, within a round.",
    data=("lean-energy",),
)
RECORDING = "lean-energy"
KEYS, WHOLE = ("context", "way", "reading"), ("context",)
UNITS = lean.UNITS
READINGS = REPEATS = 5
SECONDS, WARM = 1.5, 0.4  # of a reading, and of calls before it: the power limit acts within half a second
IN_A_ROW = 10  # calls in a graph: no way waits for the host
TIMER = f"{meter.TIMER}; {IN_A_ROW} calls in a CUDA graph"
L2 = "warm"
K, HEADS = lean.K, 56
CUTS = ("lean", "rule_256", "rule_now", "paper_lean", "paper_rule_256")
WAYS = (*CUTS, "fa3", "flashinfer")


def cases() -> list[dict]:
    rows = [(n * K, way, i) for n in (32, 128, 512) for way in WAYS for i in range(READINGS)]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    return readings(int(case["context"]))[case["way"]][int(case["reading"])]


@lru_cache(maxsize=1)
def readings(context: int) -> dict[str, list[dict]]:
    """Of every way, all readings at a context: in each round all ways, in a fresh random order."""
    batch = HybridBatch((1,), (context,), HEADS, HEADS, 64, dtype="float16")
    gauge = meter.gauge()
    idle = meter.visit(None, SECONDS, WARM, gauge).watts
    setting = peers.Setting(batch)
    made = makers(setting)
    calls, holes = peers.ready(setting, {way: peers.graphed(make, IN_A_ROW) for way, (make, _) in made.items()})
    rows = {way: [{"hole": why}] * READINGS for way, why in holes.items()} | {way: [] for way in calls}
    for way in chain.from_iterable(_order.sample(list(calls), len(calls)) for _ in range(READINGS)):
        seen = _row(meter.visit(calls[way], SECONDS, WARM, gauge))
        rows[way].append({"kv_bytes": batch.kv_bytes, "how": made[way][1]} | seen | {"idle_watts": round(idle, 1)})
    return rows


_order = Random(0)


def makers(setting: peers.Setting) -> dict[str, tuple[Callable, object]]:
    """A maker of every way, and how it computes: the parts of a head, or the kernel."""
    cuts = {"lean": "stream-k"} | lean.chosen_splits(setting.batch)
    splits = {way: cuts[way.removeprefix("paper_")] for way in CUTS}
    worker = {way: {"worker": "cta128"} if way.startswith("paper") else {} for way in CUTS}
    made = {way: (partial(lean.lean, splits=splits[way], **worker[way]), splits[way]) for way in CUTS}
    kernel = faster(setting, lean.FLASHINFER)
    return made | {"fa3": (peers.fa3_decode, ""), "flashinfer": (lean.FLASHINFER[kernel], kernel)}


def faster(setting: peers.Setting, choices: dict[str, Callable]) -> str:
    """The fastest of these on the setting; the first where none is installed."""
    times = timing.shuffled(peers.ready(setting, choices)[0], 3, 1.0)
    return min(times, key=lambda name: times[name].ms, default=next(iter(choices)))


def _row(window: meter.Window) -> dict:
    calls = window.calls * IN_A_ROW
    return {"ms": round(1e3 * window.seconds / calls, 5), "watts": round(window.watts, 1),
            "millijoules": round(window.millijoules / calls, 3), "sm_clock_mhz": window.mhz,
            "celsius": window.celsius}  # fmt: skip


# ---------------------------------------------------------------- what it shows

COMPARED = {
    "paper's tile, rule of 2.5.6": ("paper_rule_256", "paper_rule_256"),
    "paper's tile, equal ranges": ("paper_lean", "paper_rule_256"),
    "Hopper kernel, rule of 2.5.6": ("rule_256", "rule_256"),
    "Hopper kernel, today's rule": ("rule_now", "rule_256"),
    "Hopper kernel, equal ranges": ("lean", "rule_256"),
    "FlashInfer": ("flashinfer", "rule_256"),
    "FlashAttention-3": ("fa3", "rule_256"),
}
TONES = dict(zip(COMPARED, ("#c9a27a", style.WORKERS[3], "#b5dcae", "#7fbf77", "#3b7d3b", style.WORKERS[4], style.INK),
                 strict=True))  # fmt: skip


def readings_of(column: str):
    """What was read: one row a context and round, one column a way."""
    return read("lean-energy").pivot(index=["context", "reading"], columns="way", values=column)


def ratios(way: str, base: str):
    """Energy of one way over that of another in the same round: what the GPU's warmth does to both falls out."""
    df = readings_of("millijoules")
    return df[way] / df[base]


def table():
    """One row a context and way: of five readings the median, least and most picojoules a byte, median watts and clock,
    and energy over that of the split within a round."""
    df = read("lean-energy")
    per_byte = (1e9 * df.millijoules / df.kv_bytes).groupby([df.context, df.way]).agg(["median", "min", "max"])
    middle = df.groupby(["context", "way"])[["millijoules", "watts", "sm_clock_mhz"]].median()
    rows = []
    for context in df.context.unique():
        for name, (way, base) in COMPARED.items():
            ratio = ratios(way, base)[context]
            spread = ratio.median(), ratio.min(), ratio.max()
            rows.append((context, name, *middle.loc[context, way], *per_byte.loc[context, way], *spread))
    columns = ["context", "way", "millijoules", "watts", "sm_clock_mhz", "pj_per_byte", "pj_least", "pj_most",
               "ratio", "ratio_least", "ratio_most"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def draw(df):
    ax = style.axes(9.5, 3.6)
    contexts = sorted(df.context.unique())
    for i, (way, tone) in enumerate(TONES.items()):
        part = df[df.way == way].set_index("context").loc[contexts]
        at = [group + (i - (len(TONES) - 1) / 2) * 0.125 for group in range(len(contexts))]
        ends = part.pj_per_byte - part.pj_least, part.pj_most - part.pj_per_byte
        ax.bar(at, part.pj_per_byte, 0.115, color=tone, label=way, yerr=ends, error_kw={"elinewidth": 1, "capsize": 2})
        for x, row in zip(at, part.itertuples(), strict=True):
            ax.text(x, row.pj_most + 6, f"{row.ratio:.2f}", ha="center", fontsize=8.5)
    ax.set_xticks(range(len(contexts)), [shared.in_k(n) for n in contexts])
    ax.set(xlabel="context of one request, tokens", ylabel="energy per byte of K and V, pJ", ylim=(0, 440))
    return style.legend_outside(ax, "upper", 4)


# ---------------------------------------------------------------- what claims ask for


def gap_growth() -> float:
    """FlashDecoding's energy over stream-K's with the paper's tile, at 512K over the same at 128K."""
    df = table()
    ratio = df[df.way == "paper's tile, equal ranges"].set_index("context").ratio
    return float(ratio[128 << 10] / ratio[512 << 10])
