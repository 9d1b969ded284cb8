"""Random batches on the GPU: how many were checked, how many were wrong, and how exact the worst one is."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure

FIGURE = Figure(
    id="random-batches",
    source="This repository",
    title="The largest error over random hybrid batches, as a share of that of torch's attention",
    chapter="07",
    method="Against float64, on poisoned outputs and pages, every batch also replayed from a CUDA graph; bf16, fp16.",
    state="recorded",
    data=("random-batches",),
)
FAMILIES = {"any": "five methods, sm_80", "hopper": "Hopper kernel", "lean": "stream-K decode"}


def table():
    """One row a family: batches, how many were wrong, and the largest error over torch's in the same dtype."""
    df = read("random-batches")
    return df.assign(family=df.family.map(FAMILIES))[["family", "checked", "wrong", "largest_error"]]


def wrong() -> float:
    return float(table().wrong.sum())


def largest_error() -> float:
    return float(table().largest_error.max())


def draw(df):
    from pod.measure.check_kernels import MARGIN
    from pod.show import style

    ax = style.axes(8, 1.9)
    ax.barh(df.family, df.largest_error, 0.6, color=style.WORKERS[3])
    for y, row in enumerate(df.itertuples()):
        ax.text(0.02, y, f"{row.checked:,} batches, {row.wrong} wrong", va="center", fontsize=9, color="white")
        ax.text(row.largest_error, y, f" {row.largest_error:.2f}", va="center", fontsize=9)
    ax.axvline(MARGIN, color=style.INK, linestyle="--")
    ax.invert_yaxis()
    ax.set(xlabel="largest error / that of torch's attention (dashed: the most that is allowed)", xlim=(0, 1.6))
    return ax.figure
