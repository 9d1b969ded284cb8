"""How long the first call waits for the compiler, and the next process for the cache."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure

FIGURE = Figure(
    id="build-time",
    source="This repository",
    title="Seconds until the kernels of a call are loaded: compiled, and from the cache",
    chapter="07",
    method="Wall clock in a process of its own, with an empty cache and again. Hopper: for all tensors.",
    state="recorded",
    data=("build",),
)
COLUMNS = ("cold_s", "cached_s")
FAMILIES = {"sm_80": "five methods, bf16, 128", "hopper": "Hopper kernel"}


def table():
    """One row a family: cores of the machine, seconds with an empty cache and with a full one."""
    df = read("build")
    return df.assign(family=df.family.map(FAMILIES))[["family", "cores", *COLUMNS]]


def cold() -> float:
    """Seconds of the slowest build."""
    return float(table().cold_s.max())


def cached() -> float:
    """Seconds of the slowest load."""
    return float(table().cached_s.max())


def draw(df):
    from pod.show import style

    ax = style.axes(8, 1.9)
    for i, row in enumerate(df.itertuples()):
        ax.barh(i, row.cold_s, 0.6, color=style.WORKERS[3])
        cached = f"from the cache {1000 * row.cached_s:.0f} ms"
        ax.text(row.cold_s, i, f" {row.cold_s:.0f} s; {cached}", va="center", fontsize=9)
    ax.set_yticks(range(len(df)), df.family)
    ax.invert_yaxis()
    ax.set(xlabel=f"seconds with an empty cache, {df.cores.iloc[0]} cores", xlim=(0, 1.5 * df.cold_s.max()))
    return ax.figure
