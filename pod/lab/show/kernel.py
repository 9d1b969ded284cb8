"""Pictures of the ladder and the sm_80 kernel: rooms, the ring of K and V, who holds a score, and rows in banks."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from pod.lab.show import style
from pod.lab.show.gantt import gantt

CHUNK_BYTES, BANKS_BYTES = 16, 128  # what a lane of ldmatrix reads at once; all 32 banks of 4 bytes


# ---------------------------------------------------------------- rooms


@dataclass(frozen=True)
class Room:
    name: str
    file: str
    kind: str  # of pod.lab.show.style
    place: tuple[float, float, float, float]  # x, y, width, height in the picture


ROOMS = (
    Room("front door", "csrc/sm80/hybrid.cu", "linear", (0, 3.3, 17, 1.6)),
    Room("binding", "csrc/include/binding.cuh", "host", (21, 3.3, 15, 1.6)),
    Room("tile attention", "csrc/include/tile_attention.cuh", "hybrid", (61, 3.3, 18, 1.6)),
    Room("softmax", "csrc/include/softmax.cuh", "wait", (62, 5.6, 16, 1.2)),
    Room("write, or merge", "csrc/include/merge.cuh", "merge", (84, 3.3, 16, 1.6)),
    Room("instructions", "csrc/include/ptx.cuh", "load", (40, 0.4, 39, 1.2)),
    Room("trace", "csrc/include/trace.cuh", "wait", (0, 5.6, 17, 1.2)),
)


WAY = [((17, 4.1), (21, 4.1)), ((36, 4.4), (40, 5.4)), ((36, 3.8), (40, 2.9)), ((56, 5.4), (61, 4.5)),
       ((56, 2.9), (61, 3.7)), ((79, 4.1), (84, 4.1))]  # fmt: skip
USES = [((70, 4.9), (70, 5.6)), ((70, 3.3), (70, 1.6)), ((8.5, 4.9), (8.5, 5.6))]


def rooms() -> Figure:
    """The way of a CTA through the kernel, from left to right, and dashed what it uses on the way."""
    ax = style.axes(9.5, 3.9)
    ax.axis("off")
    for room in ROOMS:
        x, y, width, height = room.place
        words = f"{room.name}\n{room.file.rpartition('/')[2]}"
        _box(ax, x, y, width, height, style.colour(room.kind), words, style.text_on(room.kind))
    for y, kind, words in ((4.7, "prefill", "prefill\n1 tile of 128 rows,\n4 warps together"),
                           (2.0, "decode", "decode\n4 tiles of 16 rows,\na warp each")):  # fmt: skip
        _box(ax, 40, y, 16, 1.7, style.colour(kind), words, style.text_on(kind))
    for start, end in WAY + USES:
        ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=style.INK, linewidth=1.2,
                                     linestyle="--" if (start, end) in USES else "-"))  # fmt: skip
    ax.text(8.5, 2.85, "the plan: lists of work", ha="center", fontsize=8.5, color=style.INK)
    ax.text(92, 2.85, "output", ha="center", fontsize=8.5, color=style.INK)
    ax.set(xlim=(-0.5, 100.5), ylim=(0.3, 7.0))
    return ax.figure


def _box(ax: Axes, x, y, width, height, face, words, ink) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=face, edgecolor="white", linewidth=2))
    ax.text(x + width / 2, y + height / 2, words, ha="center", va="center", fontsize=9, color=ink)


# ---------------------------------------------------------------- who reads which keys

HEADS, KEYS, UNITS = 4, 64, 64  # query heads of a KV head; thousands of keys; KV heads of all sequences
SHARED = {  # title -> a bar a CTA: its heads, and the keys from ... to that it reads
    "rung 5: a CTA for each head": [(f"head {head}", 0, KEYS) for head in range(HEADS)],
    "heads in one tile": [(f"heads 0 to {HEADS - 1}", 0, KEYS)],
    "and its keys cut": [(f"heads 0 to {HEADS - 1}", 0, KEYS // 2), (f"heads 0 to {HEADS - 1}", KEYS // 2, KEYS)],
}


def shared_keys() -> Figure:
    """Which keys of one KV head and one sequence each CTA reads, a row a CTA: rung 5, heads in one tile, keys cut."""
    panels = style.axes(9.5, 2.3, columns=len(SHARED))
    for ax, (title, ctas) in zip(panels, SHARED.items(), strict=True):
        for y, (words, begin, end) in enumerate(ctas):
            _bar(ax, y, begin, end, "decode", words)
        ax.set_title(f"{title}: {UNITS * len(ctas)} CTAs in all", fontsize=10)
        ax.set(xlim=(0, KEYS), ylim=(HEADS - 0.4, -0.6), xlabel="keys that a CTA reads")
        ax.set_xticks([0, KEYS // 2, KEYS], ["0", f"{KEYS // 2}K", f"{KEYS}K"])
        ax.set_yticks(range(len(ctas)), [f"CTA {y}" for y in range(len(ctas))])
    return panels[0].figure


# ---------------------------------------------------------------- who ran where


def ran_where(traces: dict, ctas_per_sm: int = 2) -> Figure:
    """The CTAs of each SM in the order in which they came, a panel a trace. An emulator's times are no GPU's, so every
    CTA is equally long, and of those that came together the first stands above."""
    panels = style.axes(9.5, 3.4, columns=len(traces))
    for ax, (name, trace) in zip(panels, traces.items(), strict=True):
        turn = trace.sort_values("start", kind="stable").groupby(["sm", "slot"]).cumcount()
        bars = trace.assign(
            row=trace.sm, start=turn, end=turn + 1, kind=trace.op, label=trace.op + " " + trace.id.astype(str)
        )
        bars = bars.sort_values(["start", "op", "id"], ascending=[True, False, True])
        gantt(bars, slots_per_row=ctas_per_sm, ax=ax)
        ax.set_title(name, fontsize=10)
        ax.get_legend().remove()
        ax.set(xlabel="who came first, who second (widths are no times)", xticks=())
        ax.set_yticks(ax.get_yticks(), [f"SM {sm}" for sm in sorted(set(trace.sm))])
    return panels[0].figure


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
    """A row a step, a column room for a panel of the ring; see RING for the colours."""
    ax = style.axes(1.2 + 0.75 * slots, 0.8 + 0.42 * blocks) if ax is None else style.tidy(ax)
    for y, cells in enumerate(ring_steps(slots, blocks)):
        for slot, (panel, what) in cells.items():
            kind, hatch, label = RING[what]
            face = style.colour(kind)
            ax.add_patch(Rectangle((slot, y), 1, 1, facecolor=face, edgecolor="white", linewidth=2, hatch=hatch,
                                   label=label))  # fmt: skip
            ax.text(slot + 0.5, y + 0.5, panel, ha="center", va="center", fontsize=9, color=style.text_on(kind),
                    bbox={"facecolor": face, "edgecolor": "none", "pad": 1})  # fmt: skip
    ax.set(xlim=(0, slots), ylim=(blocks, 0), xlabel="room in the ring, panel by panel")
    ax.set_xticks(np.arange(slots) + 0.5, range(slots))
    ax.set_yticks(np.arange(blocks) + 0.5, [f"step {i}" for i in range(blocks)])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def rings(slots: dict[str, int]) -> Figure:
    """A panel for each ring, under one legend."""
    panels = style.axes(9.5, 2.7, columns=len(slots))
    for ax, (name, n) in zip(panels, slots.items(), strict=True):
        ring(n, ax=ax)
        ax.set_title(f"{name}: {n} panels", fontsize=10)
    where = {"loc": "outside upper center", "ncols": len(RING), "frameon": False, "fontsize": 9}
    panels[0].figure.legend(*ring_legend(panels), **where)
    return panels[0].figure


def ring_legend(panels) -> tuple[list, list[str]]:
    """Handles and labels of all that several rings show, each once."""
    once = {label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    return list(once.values()), list(once)


# ---------------------------------------------------------------- copies in time


def ring_times(stages: int, blocks: int, copy: float = 2.0, compute: float = 1.0) -> list[tuple[float, ...]]:
    """When each block's copy begins and is there, and when it is read and done with.

    As in rung 4 of csrc/ladder, a step asks for the block that comes `stages - 1` later; with one stage it can only
    ask for its own, once the block before is done with.
    """
    times = []
    for block in range(blocks):
        asks, done = block - stages + 1, times[-1][3] if times else 0.0
        begins = done if stages == 1 else times[asks][2] if 0 <= asks else 0.0
        there = begins + copy
        read = max(there, done)
        times.append((begins, there, read, read + compute))
    return times


def ring_in_time(stages=(1, 3), blocks: int = 6) -> Figure:
    """Blocks of keys in the stages of a ring, copied and then read: a panel for each length of the ring."""
    panels = style.axes(9.5, 3.3, rows=len(stages), sharex=True, height_ratios=stages)
    for ax, n in zip(panels, stages, strict=True):
        times = ring_times(n, blocks)
        for block, (begins, there, read, done) in enumerate(times):
            _bar(ax, block % n, begins, there, "load", f"copy {block}")
            _bar(ax, block % n, read, done, "both", f"{block}")
        words = "one stage: copy, then compute" if n == 1 else f"{n} stages: copies run ahead"
        ax.set_title(f"{words}; {blocks} blocks take {times[-1][3]:.0f}", fontsize=10, loc="left")
        ax.set(ylim=(n - 0.4, -0.6), yticks=range(n), yticklabels=[f"stage {i}" for i in range(n)])
    panels[-1].set_xlabel("time, in computations of a block; a copy takes two (a sketch)", fontsize=9)
    return panels[0].figure


def _bar(ax: Axes, y: int, start: float, end: float, kind: str, words: str) -> None:
    ax.barh(y, end - start, left=start, height=0.8, color=style.colour(kind), edgecolor="white")
    ax.text((start + end) / 2, y, words, ha="center", va="center", fontsize=8.5, color=style.text_on(kind))


# ---------------------------------------------------------------- lanes and banks


def lane_of(row, column):
    """The lane of a warp that holds an element of `mma`'s left operand or of its result (ptx.cuh: mma_16816).

    Eight rows by eight columns go to all 32 lanes, two neighbours to each, and the next eight likewise. Of the right
    operand, rows and columns are exchanged."""
    return row % 8 * 4 + column % 8 // 2


OPERANDS = (("Q: 16 rows x 16 numbers", 16, False), ("K, transposed: 16 numbers x 8 keys", 8, True),
            ("S: 16 rows x 8 keys", 8, False))  # fmt: skip


def fragments(lane: int = 9) -> Figure:
    """Which lane holds which number of the operands of one `mma`: those of a lane are lit, and its row of the result.
    The frame is the 16 bytes of the row of Q that lane `lane // 4` asks ldmatrix for."""
    panels = style.axes(9.5, 4.6, columns=3, width_ratios=(16, 8, 8))
    for ax, (title, columns, exchanged) in zip(panels, OPERANDS, strict=True):
        _fragment(ax, lane, columns, exchanged)
        ax.set_title(title, fontsize=10)
    frame = Rectangle((0, lane // 4), 8, 1, fill=False, edgecolor=style.WORKERS[2], linewidth=2.2, zorder=3)
    panels[0].add_patch(frame)
    return panels[0].figure


def _fragment(ax: Axes, lane: int, columns: int, exchanged: bool) -> None:
    for row in range(16):
        for column in range(columns):
            holder = lane_of(column, row) if exchanged else lane_of(row, column)
            mates = columns == 8 and not exchanged and row == lane // 4
            face = style.LIT if holder == lane else style.DIM if mates else "white"
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor=face, edgecolor=style.FRAME, linewidth=0.6))
            ax.text(column + 0.5, row + 0.5, holder, ha="center", va="center", fontsize=8, color=style.INK)
    ax.set(xlim=(0, columns), ylim=(16, 0), xticks=[0, columns // 2, columns], yticks=[0, 8, 16], aspect="equal")
    ax.tick_params(length=0, labelsize=8)
    ax.spines[:].set_visible(False)


def place(row, chunk, row_bytes: int, swizzled: bool = True):
    """Byte of a 16-byte chunk of a row in a panel, as `place` of tile_attention.cuh has it, or simply row by row."""
    return row * row_bytes + ((chunk ^ (row & 7) if swizzled else chunk) * CHUNK_BYTES)


def bank_conflicts(head_dim: int, swizzled: bool) -> int:
    """Times that shared memory is asked until ldmatrix has a chunk of each of eight rows."""
    row = np.arange(8)
    start = place(row, 3, head_dim * 2, swizzled) % BANKS_BYTES // CHUNK_BYTES
    return int(np.bincount(start).max())


def banks(chunk: int = 3, head_dim: int = 128) -> Figure:
    """Where the first eight 16-byte pieces of eight rows lie, row by row and swizzled; those that one ldmatrix reads
    are lit."""
    panels = style.axes(9.5, 3.4, columns=2)
    for ax, swizzled in zip(panels, (False, True), strict=True):
        for row in range(8):
            for piece in range(8):
                x = place(row, piece, head_dim * 2, swizzled) % BANKS_BYTES // CHUNK_BYTES
                face = style.LIT if piece == chunk else "white"
                ax.add_patch(Rectangle((x, row), 1, 1, facecolor=face, edgecolor=style.FRAME, linewidth=0.8))
                ax.text(x + 0.5, row + 0.5, piece, ha="center", va="center", fontsize=8.5, color=style.INK)
        asked = bank_conflicts(head_dim, swizzled)
        words = "piece c at c ^ row % 8" if swizzled else "row by row"
        ax.set_title(f"{words}: {asked} access{'es' * (asked > 1)}", fontsize=10)
        ax.set(xlim=(0, 8), ylim=(8, 0), xlabel="banks", ylabel="row")
        ax.set_xticks(np.arange(8) + 0.5, [f"{4 * i}-{4 * i + 3}" for i in range(8)], fontsize=8)
        ax.set_yticks(np.arange(8) + 0.5, range(8))
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    return panels[0].figure
