"""Pictures of tiles: the walk over the score matrix, the padding of a query tile, the shared memory it needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pod.hardware import GPU, KIB
from pod.show.states import DIM, INK, LIT, WORKERS
from pod.tiling import Tile, crosses_diagonal

BLUE, ORANGE, GREEN = WORKERS[:3]


def tile_walk(n: int, s: int, tile: Tile, stops: Sequence[int]) -> Figure:
    """The blocks of an n x s causal score matrix after each of `stops` steps of tiled attention."""
    steps = list(tile.steps(n, s))
    figure, axes = plt.subplots(1, len(stops), figsize=(9.5, 0.7 + 9.0 / len(stops) * n / s), dpi=110, squeeze=False)
    visible = np.tri(n, s, s - n, dtype=bool)
    for ax, stop in zip(axes[0], stops, strict=True):
        for i, (rows, cols) in enumerate(steps):
            colour = LIT if i == stop - 1 else BLUE if i < stop else "white"
            masked = crosses_diagonal(rows, cols, s - n)
            ax.add_patch(_cells(rows, cols, facecolor=colour, edgecolor=INK, hatch="///" if masked else None))
        ax.imshow(np.where(visible, np.nan, 1), extent=(0, s, n, 0), cmap="Greys", vmin=0, vmax=4, zorder=3, alpha=0.7)
        rows = steps[stop - 1][0]
        done = sum(r == rows for r, _ in steps[:stop]) == sum(r == rows for r, _ in steps)
        state = "finish, store" if done else "state stays on chip"
        ax.set_title(f"step {stop}: queries {rows.start} to {rows.stop - 1}\n{state}", fontsize=9)
        ax.set(xlim=(0, s), ylim=(n, 0), aspect="equal", xlabel="keys")
        ax.set_xticks(range(0, s + 1, tile.cols))
        ax.set_yticks(range(0, n + 1, tile.rows))
    axes[0, 0].set_ylabel("queries")
    figure.tight_layout()
    return figure


def _cells(rows: slice, cols: slice, **style) -> Rectangle:
    return Rectangle((cols.start, rows.start), cols.stop - cols.start, rows.stop - rows.start, linewidth=1, **style)


def tile_padding(cases: dict[str, tuple[int, int]]) -> Figure:
    """Query tiles drawn to scale, {title: (useful rows, tile rows)}; what is not useful is computed all the same."""
    figure, axes = plt.subplots(1, len(cases), figsize=(9.5, 2.7), dpi=110, sharey=True)
    top = max(rows for _, rows in cases.values())
    for ax, (title, (useful, rows)) in zip(axes, cases.items(), strict=True):
        ax.add_patch(Rectangle((0, top - rows), 1, rows, facecolor=DIM, edgecolor=ORANGE, hatch="xx", linewidth=0.8))
        ax.add_patch(Rectangle((0, top - rows), 1, useful, facecolor=BLUE))
        ax.set_title(title, fontsize=9)
        ax.text(0.5, top + 4, f"{useful} of {rows} rows useful", ha="center", va="top", fontsize=9, color=INK)
        ax.set(xlim=(-0.1, 1.1), ylim=(top + 16, -1))
        ax.axis("off")
    figure.tight_layout()
    return figure


def tile_budget(tiles: dict[str, Tile], gpus: Sequence[GPU]) -> Figure:
    """Shared memory of one CTA of each tile, by what it holds, against what the GPUs allow a CTA."""
    figure, ax = plt.subplots(figsize=(9, 1.1 + 0.42 * len(tiles)), dpi=110)
    limit = max(g.smem_per_cta for g in gpus) / KIB
    columns = {"KiB": lambda tile: tile.smem_bytes // KIB}
    columns |= {f"per SM,\n{g.key.upper()}": lambda tile, g=g: tile.ctas_per_sm(g) for g in gpus}
    for c, (title, number) in enumerate(columns.items()):
        x = (1.13 + 0.13 * c) * limit
        for y, text in [(-0.95, title), *enumerate(map(number, tiles.values()))]:
            ax.text(x, y, text, ha="center", va="center", fontsize=9, color=INK)
    for y, tile in enumerate(tiles.values()):
        left = 0.0
        for (what, size), colour in zip(tile.smem.items(), (BLUE, ORANGE, GREEN), strict=True):
            width = min(size / KIB, 1.04 * limit - left)  # what does not fit runs past the last limit, and stops there
            ax.barh(y, width, left=left, color=colour, label=what if y == 0 else None)
            left += width
    for g in gpus:
        ax.plot([g.smem_per_cta / KIB] * 2, [-0.6, len(tiles) - 0.5], color=INK, linestyle="--", linewidth=1)
        ax.text(g.smem_per_cta / KIB, -0.8, f"{g.key.upper()} limit", ha="center", fontsize=8.5, color=INK)
    ax.set(yticks=range(len(tiles)), yticklabels=tiles, ylim=(len(tiles) - 0.5, -1.3), xlim=(0, 1.5 * limit))
    ax.set_xticks(range(0, int(limit) + 32, 32))
    ax.set_xlabel("shared memory of one CTA, KiB", loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(0, 1.02), fontsize=8.5, ncols=3, frameon=False)
    figure.tight_layout()
    return figure
