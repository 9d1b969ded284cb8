"""The kernel as it was: how busy it keeps arithmetic and memory.

Measured: counters (ncu) of six versions of vLLM's first decode kernel and of Hopper decode: rates, issue slots, stalls.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

from pod.data import card, read
from pod.experiments.plus34 import shared, single_query
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import ncu, peers
from pod.lab.show import style

FIGURE = Figure(
    title="Single-query attention kernel: compute and memory utilisation",
    chapter="16",
    method="ncu, percent of each peak over one call. Rebuilt kernel, query in registers, bf16, 40 heads, pages of 16.",
    data=("single-query-counters",),
)
RECORDING = "single-query-counters"
KEYS = ("batch", "kernel")
UNITS = ("single-query", "hopper")
REPEATS = 1
TIMER = "no times: counters by Nsight Compute, which empties the caches before each pass"
BATCHES = ("144 chats", "256 x 512", "1 x 2048")
KERNELS: dict[str, Callable] = single_query.IDEAS | {"hopper": single_query.hopper}
STALLS = ("long_scoreboard", "short_scoreboard", "barrier", "wait", "lg_throttle", "mio_throttle", "math_pipe_throttle")
METRICS = ncu.METRICS | {
    "l1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram_bytes": "dram__bytes_read.sum",
    "instructions": "smsp__inst_executed.sum",
    **{f"stall_{name}": f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in STALLS},
}


def cases() -> list[dict]:
    return [{"batch": batch, "kernel": kernel} for batch in BATCHES for kernel in KERNELS]


def measure(case: dict) -> dict:
    """Percent of peaks; stall_x is how many warps stand for reason x in an average cycle with an instruction issued."""
    return {name: round(value, 3) for name, value in _counters()[cases().index(case)].items()}


@lru_cache
def _counters() -> list[dict[str, float]]:
    return ncu.profile(__name__, METRICS)


def calls() -> Iterator[Callable]:
    for case in cases():
        yield KERNELS[case["kernel"]](peers.Setting(single_query.batch(case["batch"])))


PEAKS = {"compute": "SM (compute)", "dram": "DRAM"}
STATED = {"compute": "plus34.f01.compute_util", "dram": "plus34.f01.memory_util"}


def table():
    """Percent of the peak, by place and what is busy: the post's A100, and each batch on an H200."""
    df = read("single-query-counters")
    before = df[df.kernel == "registers"].set_index("batch")
    out = before[list(PEAKS)].rename(index=lambda batch: f"{card()}, {batch}")
    out.loc["the post, A100"] = [paper.value(STATED[name]) for name in PEAKS]
    return out.iloc[[-1, *range(len(before))]].rename_axis("where").reset_index()


def draw(df):
    ax = style.axes(8.0, 0.8 + 0.5 * len(df))
    for i, row in enumerate(df.itertuples()):
        for j, (name, tone) in enumerate(style.BUSY.items()):
            value, y = getattr(row, name), i + 0.2 * (2 * j - 1)
            ax.barh(y, value, 0.36, color=tone, alpha=0.55 if i == 0 else 1, label=PEAKS[name] if i else "")
            ax.text(value + 1, y, f"{value:.0f} %", va="center", fontsize=9)
    ax.set_yticks(range(len(df)), df["where"], fontsize=9)
    ax.set(xlim=(0, 108), ylim=(len(df) - 0.5, -0.5), xlabel="% of its peak, mean over the kernel")
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    return ax.figure


def memory_before() -> float:
    """DRAM utilisation on the run's batch, %."""
    return float(table().set_index("where").dram[f"{card()}, {shared.CHATS}"])
