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
    title="Energy of a decode under FlashDecoding's splits and stream-K: 56 heads, one request",
    chapter="11",
    method="NVML's counter over 5 s of calls; head dimension 64, fp16. "
    "Over the bars: energy over that of the rule of 2.5.6 in the same tile.",
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

COMPARED = {
    "paper's tile, rule of 2.5.6": ("paper_rule_256", "paper_rule_256"),
    "paper's tile, stream-K": ("paper_lean", "paper_rule_256"),
    "ours, rule of 2.5.6": ("rule_256", "rule_256"),
    "ours, today's rule": ("rule_now", "rule_256"),
    "ours, stream-K": ("lean", "rule_256"),
    "FlashAttention-3": ("fa3", "rule_256"),
}
TONES = dict(zip(COMPARED, ("#c9a27a", style.WORKERS[3], "#b5dcae", "#7fbf77", "#3b7d3b", style.INK), strict=True))


def table():
    """One row a context and way: millijoules, watts, and energy over that of the split; net is without idle power."""
    df = read("lean-energy").set_index(["context", "way"])
    net = df.millijoules - df.idle_watts * df.ms
    rows = []
    for context in df.index.unique("context"):
        for name, (way, base) in COMPARED.items():
            one, other = (context, way), (context, base)
            ratios = df.millijoules[one] / df.millijoules[other], net[one] / net[other]
            per_byte = 1e9 * df.millijoules[one] / df.kv_bytes[one]
            rows.append((context, name, df.millijoules[one], df.watts[one], df.sm_clock_mhz[one], per_byte, *ratios))
    columns = ["context", "way", "millijoules", "watts", "sm_clock_mhz", "pj_per_byte", "ratio", "net_ratio"]
    return pd.DataFrame(rows, columns=columns)


def draw(df):
    ax = style.axes(9.5, 3.6)
    contexts = sorted(df.context.unique())
    for i, (way, tone) in enumerate(TONES.items()):
        part = df[df.way == way].set_index("context").loc[contexts]
        at = [group + (i - 2.5) * 0.14 for group in range(len(contexts))]
        ax.bar(at, part.pj_per_byte, 0.13, color=tone, label=way)
        for x, row in zip(at, part.itertuples(), strict=True):
            ax.text(x, row.pj_per_byte + 6, f"{row.ratio:.2f}", ha="center", fontsize=8)
    ax.set_xticks(range(len(contexts)), [shared.in_k(n) for n in contexts])
    ax.set(xlabel="context of one request, tokens", ylabel="energy per byte of K and V, pJ", ylim=(0, 460))
    handles, labels = ax.get_legend_handles_labels()
    ax.figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return ax.figure


# ---------------------------------------------------------------- what claims ask for


def gap_growth() -> float:
    """FlashDecoding's energy over stream-K's with the paper's tile, at 512K over the same at 128K."""
    df = table()
    ratio = df[df.way == "paper's tile, stream-K"].set_index("context").ratio
    return float(ratio[128 << 10] / ratio[512 << 10])
