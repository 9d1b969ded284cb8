"""The same two loops cut into other tiles, on the emulator: who still computes and reads at once.

`python -m pod compute micro-cuts` runs every cut in every way. Drawing needs no compiler, only the table.
"""

from dataclasses import replace
from functools import lru_cache

from pod import kernels
from pod.data import read
from pod.kernels import fusion
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Two loops cut into other tiles, in eight ways",
    says="Where compute's tiles are the longer ones, only SM-aware CTAs stay near the oracle",
    chapter="06",
    method="Figure 7's loops at equal halves in the CPU emulator: 4 SMs, 2 CTAs an SM. Dashed: the oracle.",
    data=("micro-cuts",),
)
COMPUTED = "micro-cuts"
KEYS, UNITS = ("compute_tiles", "memory_tiles", "method"), ("fusion",)
SMS, TILES = 4, (8, 16, 32, 64)
SHOWN = ((16, 16), (16, 64), (64, 16))
FUSED = ("warp", "interleaved", "sm-aware")  # that overlap while the tiles are equal


def cases() -> list[dict]:
    return [{"compute_tiles": compute, "memory_tiles": memory} for compute in TILES for memory in TILES]


@lru_cache
def halves() -> fusion.Work:
    """Both loops take equally long alone."""
    work = fusion.Work(compute=64, memory=256, multiplications=500, tiles=(16, 16))
    return fusion.balanced(work, lambda work, side: fusion.record(work, side).end.max())


def measure(case: dict) -> list[dict]:
    """The time of every way over the oracle, and the share of the time in which an SM holds both, from the kernel."""
    with kernels.machine(SMS):
        work = replace(halves(), tiles=(case["compute_tiles"], case["memory_tiles"]))
        return fusion.compare(work)[["method", "over_oracle", "together"]].round(4).to_dict("records")


def table():
    """One row a cut and method: time over the oracle, and the share of the time with both on an SM."""
    return read("micro-cuts")


def cut(ax, compute_tiles: int, memory_tiles: int, df=None):
    """One cut, all ways: the three that overlap with equal tiles are green."""
    df = table() if df is None else df
    found = df[(df.compute_tiles == compute_tiles) & (df.memory_tiles == memory_tiles)]
    tones = [style.KINDS["both"] if method in FUSED else style.FRAME for method in found.method]
    ax.barh(found.method.map(fusion.NAMES), found.over_oracle, color=tones)
    for y, value in enumerate(found.over_oracle):
        ax.text(value + 0.03, y, f"{value:.2f}", va="center", fontsize=9)
    ax.axvline(1, color=style.INK, linestyle="--")
    ax.set(xlim=(0, 2.4), ylim=(7.6, -0.6), xlabel="time / oracle")
    ax.set_title(f"{compute_tiles} compute, {memory_tiles} memory tiles", fontsize=10)


def draw(df):
    panels = style.axes(9.5, 3.0, columns=len(SHOWN), sharey=True)
    for ax, (compute, memory) in zip(panels, SHOWN, strict=True):
        cut(ax, compute, memory, df)
    return panels[0].figure
