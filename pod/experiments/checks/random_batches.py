"""Random batches on the GPU: how many were checked, how many were wrong, and how exact the worst one is.

Measured: random batches of each kernel family against float64, on poisoned memory, with replays of a CUDA graph.
"""

from pod.data import read
from pod.lab.figure import Figure
from pod.lab.measure import check_kernels
from pod.lab.measure.check_kernels import MARGIN
from pod.lab.show import style

FIGURE = Figure(
    title="Random batches: the error over that of torch's attention, in the worst batch",
    chapter="08",
    method="Against float64, on poisoned outputs and pages, every batch also replayed from a CUDA graph; bf16, fp16.",
    data=("random-batches",),
)
RECORDING = "random-batches"
KEYS = ("family", "batches", "seed")
UNITS = ("hybrid", "hopper", "lean")
REPEATS = 3
TIMER, L2 = "no times: results are compared", "warm"


def cases() -> list[dict]:
    """`family`: what check_kernels calls --method; "any" is any method of the sm_80 family."""
    rows = (("any", 2000, 0), ("hopper", 2000, 7), ("rules", 1000, 5), ("lean", 2000, 3))
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    return check_kernels.checked(case["family"], case["batches"], case["seed"], REPEATS)


FAMILIES = {"any": "this kernel, five methods", "hopper": "Hopper kernel (17)",
            "rules": "the same: windows, caps, sinks", "lean": "stream-K decode (11)"}  # fmt: skip


def table():
    """One row a family: batches, how many were wrong, and the largest error over torch's in the same dtype."""
    df = read("random-batches")
    return df.assign(family=df.family.map(FAMILIES))[["family", "checked", "wrong", "largest_error"]]


def draw(df):
    ax = style.axes(8, 1.9)
    ax.barh(df.family, df.largest_error, 0.6, color=style.WORKERS[1])
    for y, row in enumerate(df.itertuples()):
        ax.text(0.02, y, f"{row.checked:,} batches, {row.wrong} wrong", va="center", fontsize=9, color="white")
        ax.text(row.largest_error, y, f" {row.largest_error:.2f}", va="center", fontsize=9)
    ax.axvline(MARGIN, color=style.INK, linestyle="--")
    ax.invert_yaxis()
    ax.set(xlabel="error / that of torch's attention, in the worst batch (dashed: the most allowed)", xlim=(0, 1.6))
    return ax.figure


def wrong() -> float:
    return float(table().wrong.sum())


def largest_error() -> float:
    return float(table().largest_error.max())
