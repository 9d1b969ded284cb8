"""LeanAttention, Figure 13: the energy of a decode against FlashDecoding's.

Measured: energy of decode, 56 heads, one request, for stream-K, FlashDecoding's splits and FlashAttention-3.
"""

import time
from functools import cache, partial

import pandas as pd

from pod.batch import HybridBatch
from pod.data import read
from pod.experiments.lean import lean, shared
from pod.lab.figure import Figure
from pod.lab.measure import peers, timing
from pod.lab.measure.provenance import nvml_device
from pod.lab.show import style

FIGURE = Figure(
    id="lean-13",
    title="Energy of a decode over that of FlashDecoding's split: 56 heads, one request",
    chapter="11",
    method="NVML's counter over 5 s of calls; head dimension 64, fp16. Each tile against its split by rule 2.5.6.",
    data=("lean-energy",),
)
RECORDING = "lean-energy"
KEYS = ("context", "way")
UNITS = lean.UNITS
REPEATS, SECONDS = 1, 5.2
TIMER = "NVML's energy counter and the host clock around calls repeated back to back"
L2 = "warm"
K = lean.K
WAYS = ("lean", "rule_256", "rule_now", "fa3", "paper_lean", "paper_rule_256")


def cases() -> list[dict]:
    return [{"context": n * K, "way": way} for n in (32, 128, 512) for way in WAYS]


@cache
def idle_watts() -> float:
    """What the GPU draws when nothing runs, its memory still in use."""
    import pynvml

    pynvml.nvmlInit()
    device = nvml_device(pynvml)
    time.sleep(0.5)
    before, begin = pynvml.nvmlDeviceGetTotalEnergyConsumption(device), time.perf_counter()
    time.sleep(1.5)
    return (pynvml.nvmlDeviceGetTotalEnergyConsumption(device) - before) / (time.perf_counter() - begin) / 1e3


def measure(case: dict) -> dict:
    way, batch = case["way"], HybridBatch((1,), (int(case["context"]),), 56, 56, 64, dtype="float16")
    idle, setting = idle_watts(), peers.Setting(batch)
    parts = lean.chosen_splits(batch).get(way.removeprefix("paper_"), "stream-k")
    paper = {"worker": "cta128"} if way.startswith("paper") else {}
    make = peers.fa3_decode if way == "fa3" else partial(lean.lean, splits=parts, **paper)
    spent = timing.energy(make(setting), SECONDS)
    return {"kv_bytes": batch.kv_bytes, "parts": parts, "ms": round(spent.ms, 5), "watts": round(spent.watts, 1),
            "millijoules": round(spent.millijoules, 3), "sm_clock_mhz": spent.sm_clock_mhz,
            "idle_watts": round(idle, 1)}  # fmt: skip


# ---------------------------------------------------------------- what it shows

COMPARED = {"paper's tile, stream-K": ("paper_lean", "paper_rule_256"), "ours, stream-K": ("lean", "rule_256"),
        "ours, today's rule": ("rule_now", "rule_256"), "FlashAttention-3": ("fa3", "rule_256")}  # fmt: skip


def table():
    """One row a context and way: millijoules, watts, and energy over that of the split; net is without idle power."""
    df = read("lean-energy").set_index(["context", "way"])
    net = df.millijoules - df.idle_watts * df.ms
    rows = []
    for context in df.index.unique("context"):
        for name, (way, base) in COMPARED.items():
            one, other = (context, way), (context, base)
            ratios = df.millijoules[one] / df.millijoules[other], net[one] / net[other]
            rows.append((context, name, df.millijoules[one], df.watts[one], df.sm_clock_mhz[one], *ratios))
    columns = ["context", "way", "millijoules", "watts", "sm_clock_mhz", "ratio", "net_ratio"]
    return pd.DataFrame(rows, columns=columns)


def draw(df):
    ax = style.axes(8.5, 3.4)
    contexts, colours = sorted(df.context.unique()), (style.WORKERS[3], *style.WORKERS[:2], style.INK)
    for i, (way, colour) in enumerate(zip(COMPARED, colours, strict=True)):
        part = df[df.way == way].set_index("context")
        x = [c + (i - 1.5) * 0.2 for c in range(len(contexts))]
        ax.bar(x, part.ratio[contexts], 0.18, color=colour, label=way)
        ax.plot(x, part.net_ratio[contexts], "_", color=style.WORKERS[2], markersize=13, markeredgewidth=1.5,
                label="idle power subtracted" if i == len(COMPARED) - 1 else None)  # fmt: skip
        for at, context in zip(x, contexts, strict=True):
            words = f"{part.ratio[context]:.2f}\n{part.watts[context]:.0f} W"
            top = max(1, part.ratio[context], part.net_ratio[context])
            ax.text(at, top + 0.05, words, ha="center", fontsize=8)
    ax.axhline(1, color=style.INK, linewidth=0.8, zorder=0)
    ax.set_xticks(range(len(contexts)), [shared.in_k(n) for n in contexts])
    ax.set(xlabel="context", ylabel="energy over FlashDecoding's", ylim=(0, 3.2))
    style.legend(ax, loc="upper center", ncols=5, bbox_to_anchor=(0.5, 1.18), columnspacing=1.2)
    return ax.figure


# ---------------------------------------------------------------- what claims ask for


def gap_growth() -> float:
    """FlashDecoding's energy over stream-K's with the paper's tile, at 512K over the same at 128K."""
    df = table()
    ratio = df[df.way == "paper's tile, stream-K"].set_index("context").ratio
    return float(ratio[128 << 10] / ratio[512 << 10])
