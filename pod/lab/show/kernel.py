"""Pictures of the sm_80 kernel: its rooms, the ring of K and V, who holds a score, and where rows lie in banks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from pod.files import ROOT
from pod.lab.show import style

CHUNK_BYTES, BANKS_BYTES = 16, 128  # what a lane of ldmatrix reads at once; all 32 banks of 4 bytes


# ---------------------------------------------------------------- rooms


@dataclass(frozen=True)
class Room:
    name: str
    file: str
    job: str
    chapter: str
    kind: str  # of pod.lab.show.style
    place: tuple[float, float, float, float]  # x, y, width, height in the picture


ROOMS = (
    Room("front door", "csrc/sm80/hybrid.cu", "tiles of a shape, a binding, and nothing else", "07", "linear",
         (0, 3.3, 17, 1.6)),
    Room("binding", "csrc/include/binding.cuh", "what shall I be, and which piece is mine?", "05, 06", "host",
         (21, 3.3, 15, 1.6)),
    Room("tile attention", "csrc/include/tile_attention.cuh", "query rows against a range of keys", "02", "hybrid",
         (61, 3.3, 18, 1.6)),
    Room("softmax", "csrc/include/softmax.cuh", "maximum, sum, and what fades", "01", "wait", (62, 5.6, 16, 1.2)),
    Room("merging", "csrc/include/merge.cuh", "parts of one tile become one result", "10", "merge",
         (84, 3.3, 16, 1.6)),
    Room("instructions", "csrc/include/ptx.cuh", "each in its GPU form and its emulated form", "07", "load",
         (40, 0.4, 39, 1.2)),
    Room("trace", "csrc/include/trace.cuh", "who ran where, when; nothing when off", "06", "wait", (84, 5.6, 16, 1.2)),
)  # fmt: skip


ARROWS = [((17, 4.1), (21, 4.1)), ((36, 4.4), (40, 5.4)), ((36, 3.8), (40, 2.9)), ((56, 5.4), (61, 4.5)),
          ((56, 2.9), (61, 3.7)), ((79, 4.1), (84, 4.1)), ((70, 4.9), (70, 5.6)), ((70, 3.3), (70, 1.6)),
          ((92, 4.9), (92, 5.6))]  # fmt: skip


def rooms_table():
    """One row a room: its file, how many lines of code it has, its job and the chapter that explains its idea."""
    import pandas as pd

    rows = [(r.name, r.file.removeprefix("csrc/"), code_lines(r.file), r.job, r.chapter) for r in ROOMS]
    return pd.DataFrame(rows, columns=["room", "csrc/", "lines", "its job", "idea in"]).set_index("room")


def code_lines(file: str) -> int:
    """Lines that are more than a comment or blank."""
    lines = (line.strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines())
    return sum(bool(line) and not line.startswith("//") for line in lines)


def rooms() -> Figure:
    """The way of a CTA through the kernel, from left to right."""
    ax = style.axes(11, 3.9)
    ax.axis("off")
    for room in ROOMS:
        x, y, width, height = room.place
        words = f"{room.name}\n{room.file.rpartition('/')[2]}"
        _box(ax, x, y, width, height, style.colour(room.kind), words, style.text_on(room.kind))
    for y, kind, words in ((4.7, "prefill", "prefill\n1 tile of 128 rows,\n4 warps together"),
                           (2.0, "decode", "decode\n4 tiles of 16 rows,\na warp each")):  # fmt: skip
        _box(ax, 40, y, 16, 1.7, style.colour(kind), words, style.text_on(kind))
    for start, end in ARROWS:
        ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=style.INK, linewidth=1.2))
    ax.text(8.5, 2.85, "the plan: lists of work", ha="center", fontsize=8.5, color=style.INK)
    ax.text(92, 2.85, "output", ha="center", fontsize=8.5, color=style.INK)
    ax.set(xlim=(-0.5, 100.5), ylim=(0.3, 7.0))
    return ax.figure


def _box(ax: Axes, x, y, width, height, face, words, ink) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=face, edgecolor="white", linewidth=2))
    ax.text(x + width / 2, y + height / 2, words, ha="center", va="center", fontsize=9, color=ink)


# ---------------------------------------------------------------- the ring


def ring_slots(smem_bytes: int, rows: int, keys: int, head_dim: int) -> int:
    """Panels of K or V that fit behind the queries of a tile."""
    return (smem_bytes - rows * head_dim * 2) // (keys * head_dim * 2)


def ring_steps(slots: int, blocks: int) -> list[dict[int, tuple[str, str]]]:
    """For each step: slot -> (panel, what), as TileAttention fills the ring.

    Panels lie in the order K0 V0 K1 V1 ... An even ring is filled as many whole pairs ahead as it has room for; a ring
    of three gets V of the present block and K of the next. "late" is a panel that is fetched and read in one step.
    """
    steps = []
    for step in range(blocks):
        first = 2 * step + (1 if slots == 3 else slots - 2)  # the first of two panels that are fetched
        what = dict.fromkeys(range(2 * step, first), "wait") | {i: "fetch" for i in (first, first + 1)}
        what |= {i: "late" if what.get(i) == "fetch" else "read" for i in (2 * step, 2 * step + 1)}
        steps.append({i % slots: (f"{'KV'[i % 2]}{i // 2}", w) for i, w in what.items() if i < 2 * blocks})
    return steps


RING = {
    "read": ("hybrid", None, "being read"),
    "fetch": ("load", None, "on its way"),
    "wait": ("wait", None, "there, or nearly"),
    "late": ("load", "//", "fetched, then read"),
}


def ring(slots: int, blocks: int = 4, ax: Axes | None = None) -> Axes:
    """A row a step, a column a slot of the ring; see RING for the colours."""
    ax = style.axes(1.2 + 0.75 * slots, 0.8 + 0.42 * blocks) if ax is None else style.tidy(ax)
    for y, cells in enumerate(ring_steps(slots, blocks)):
        for slot, (panel, what) in cells.items():
            kind, hatch, label = RING[what]
            face = style.colour(kind)
            ax.add_patch(Rectangle((slot, y), 1, 1, facecolor=face, edgecolor="white", linewidth=2, hatch=hatch,
                                   label=label))  # fmt: skip
            ax.text(slot + 0.5, y + 0.5, panel, ha="center", va="center", fontsize=9, color=style.text_on(kind),
                    bbox={"facecolor": face, "edgecolor": "none", "pad": 1})  # fmt: skip
    ax.set(xlim=(0, slots), ylim=(blocks, 0), xlabel="slot of the ring")
    ax.set_xticks(np.arange(slots) + 0.5, range(slots))
    ax.set_yticks(np.arange(blocks) + 0.5, [f"step {i}" for i in range(blocks)])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def ring_legend(panels) -> tuple[list, list[str]]:
    """Handles and labels of all that several rings show, each once."""
    once = {label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    return list(once.values()), list(once)


# ---------------------------------------------------------------- lanes and banks


def lane_of(row, column):
    """The lane of a warp that holds an element of a 16 x 8 tile of scores (ptx.cuh: mma_16816)."""
    return row % 8 * 4 + column // 2


def fragment_layout(ax: Axes | None = None) -> Axes:
    """Which lane holds which score of a 16 x 8 tile; the four lanes of row 2 are lit."""
    ax = style.axes(4.2, 4.6) if ax is None else style.tidy(ax)
    for row in range(16):
        for column in range(8):
            face = style.LIT if row == 2 else "white" if row < 8 else style.IDLE
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor=face, edgecolor=style.FRAME, linewidth=0.6))
            ax.text(
                column + 0.5, row + 0.5, lane_of(row, column), ha="center", va="center", fontsize=8, color=style.INK
            )
    ax.set(xlim=(0, 8), ylim=(16, 0), xlabel="key", ylabel="query row", xticks=[], yticks=[0, 8, 16])
    ax.spines[:].set_visible(False)
    return ax


def place(row, chunk, row_bytes: int, swizzled: bool = True):
    """Byte of a 16-byte chunk of a row in a panel, as `place` of tile_attention.cuh has it, or simply row by row."""
    return row * row_bytes + ((chunk ^ (row & 7) if swizzled else chunk) * CHUNK_BYTES)


def bank_conflicts(head_dim: int, swizzled: bool) -> int:
    """Times that shared memory is asked until ldmatrix has a chunk of each of eight rows."""
    row = np.arange(8)
    start = place(row, 3, head_dim * 2, swizzled) % BANKS_BYTES // CHUNK_BYTES
    return int(np.bincount(start).max())
