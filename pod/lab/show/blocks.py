"""Pictures of tiles: the walk over the score matrix, the padding of a query tile, the shared memory it needs."""

from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pod.hardware import A100, GPU, KIB
from pod.lab.show import style
from pod.lab.show.tiles import CELLS
from pod.simulate.tiling import USABLE_REGISTERS, Tile, crosses_diagonal

HOLDS = dict(zip("QKV", (style.WORKERS[1], style.WORKERS[6], style.WORKERS[3]), strict=True))


def tile_walk(n: int, s: int, tile: Tile, stops: Sequence[int]) -> Figure:
    """The blocks of an n x s causal score matrix after each of `stops` steps of tiled attention."""
    steps = list(tile.steps(n, s))
    figure, axes = plt.subplots(
        1, len(stops), figsize=(9.5, 0.7 + 9.0 / len(stops) * n / s), dpi=style.DPI, squeeze=False, layout="constrained"
    )
    visible = np.tri(n, s, s - n, dtype=bool)
    for ax, stop in zip(axes[0], stops, strict=True):
        for i, (rows, cols) in enumerate(steps):
            colour = style.LIT if i == stop - 1 else style.PREFILL if i < stop else "white"
            masked = crosses_diagonal(rows, cols, s - n)
            ax.add_patch(_cells(rows, cols, facecolor=colour, edgecolor=style.INK, hatch="///" if masked else None))
        ax.imshow(np.where(visible, np.nan, 1), extent=(0, s, n, 0), cmap="Greys", vmin=0, vmax=4, zorder=3, alpha=0.7)
        rows = steps[stop - 1][0]
        done = sum(r == rows for r, _ in steps[:stop]) == sum(r == rows for r, _ in steps)
        state = "finish, store" if done else "state stays on chip"
        ax.set_title(f"step {stop}: queries {rows.start} to {rows.stop - 1}\n{state}", fontsize=9)
        ax.set(xlim=(0, s), ylim=(n, 0), aspect="equal", xlabel="keys")
        ax.set_xticks(range(0, s + 1, tile.cols))
        ax.set_yticks(range(0, n + 1, tile.rows))
    axes[0, 0].set_ylabel("queries")
    return figure


def _cells(rows: slice, cols: slice, **style) -> Rectangle:
    return Rectangle((cols.start, rows.start), cols.stop - cols.start, rows.stop - rows.start, linewidth=1, **style)


def moved_lines(tokens: Sequence[int], moved: dict[str, Sequence[int]]) -> Figure:
    """Megabytes that one head moves against the tokens: each line with its name, and with the megabytes at its end."""
    ax = style.axes(8.5, 3.3)
    tones = (*style.SMS[:3], style.INK)
    for (name, nbytes), line, tone in zip(moved.items(), ("o-", "^-", "s-", "--"), tones, strict=True):
        ax.loglog(tokens, np.array(nbytes) / 1e6, line, color=tone)
        ax.text(1.08 * tokens[-1], nbytes[-1] / 1e6, f"{name}: {nbytes[-1] / 1e6:.3g} MB", color=tone, fontsize=9,
                va="center")  # fmt: skip
    ax.set(xlabel="tokens", ylabel="MB moved by one head", xlim=(0.9 * tokens[0], 4.2 * tokens[-1]))
    style.ticks(ax, tokens, [f"{n:,}" for n in tokens])
    style.ticks(ax, [1, 10, 100], axis="y")
    return ax.figure


PADDED = {
    "a prompt": ("prefill", 128, 128),
    "Llama-3-8B decode,\nprefill tile": ("decode", 4, 128),
    "the same,\nsmallest wgmma": ("decode", 4, 64),
    "the same,\n16 rows, as on A100": ("decode", 4, 16),
}


def tile_padding(cases: dict[str, tuple[str, int, int]] = PADDED) -> Figure:
    """Query tiles drawn to scale, {title: ("prefill" or "decode", useful rows, tile rows)}.

    Rows that are not useful are hatched: padding, computed all the same.
    """
    figure, axes = plt.subplots(1, len(cases), figsize=(9.5, 2.7), dpi=style.DPI, sharey=True, layout="constrained")
    top = max(rows for _, _, rows in cases.values())
    for ax, (title, (kind, useful, rows)) in zip(axes, cases.items(), strict=True):
        face, hatch = CELLS["padding"]
        ax.add_patch(Rectangle((0, top - rows), 1, rows, facecolor=face, edgecolor=style.FRAME, hatch=hatch))
        ax.add_patch(Rectangle((0, top - rows), 1, useful, facecolor=style.colour(kind)))
        ax.set_title(title, fontsize=9)
        ax.text(0.5, top + 4, f"{useful} of {rows} rows useful", ha="center", va="top", fontsize=9, color=style.INK)
        ax.set(xlim=(-0.1, 1.1), ylim=(top + 16, -1))
        ax.axis("off")
    return figure


def tile_budget(tiles: dict[str, Tile], gpus: Sequence[GPU]) -> Figure:
    """Shared memory of one CTA of each tile, by what it holds, against what the GPUs allow a CTA."""
    figure, ax = plt.subplots(figsize=(9.5, 1.1 + 0.42 * len(tiles)), dpi=style.DPI, layout="constrained")
    limit = max(g.smem_per_cta for g in gpus) / KIB
    columns = {"KiB": lambda tile: tile.smem_bytes // KIB}
    columns |= {f"per SM,\n{g.key.upper()}": lambda tile, g=g: tile.ctas_per_sm(g) for g in gpus}
    for c, (title, number) in enumerate(columns.items()):
        x = (1.15 + 0.13 * c) * limit
        for y, text in [(-0.95, title), *enumerate(map(number, tiles.values()))]:
            ax.text(x, y, text, ha="center", va="center", fontsize=9, color=style.INK)
    for y, tile in enumerate(tiles.values()):
        left = 0.0
        for what, size in tile.smem.items():
            width = min(size / KIB, 1.04 * limit - left)  # what does not fit runs past the last limit, and stops there
            ax.barh(y, width, left=left, color=HOLDS[what], label=what if y == 0 else None)
            left += width
        if tile.smem_bytes / KIB > left:
            ax.text(0.98 * limit, y, "goes on …", ha="right", va="center", fontsize=9, color=style.INK)
    for g in gpus:
        ax.plot([g.smem_per_cta / KIB] * 2, [-0.6, len(tiles) - 0.5], color=style.INK, linestyle="--", linewidth=1)
        ax.text(g.smem_per_cta / KIB, -0.8, f"{g.key.upper()} limit", ha="center", fontsize=8.5, color=style.INK)
    ax.set(yticks=range(len(tiles)), yticklabels=tiles, ylim=(len(tiles) - 0.5, -1.3), xlim=(0, 1.5 * limit))
    ax.set_xticks(range(0, int(limit) + 32, 32))
    ax.set_xlabel("shared memory of one CTA, KiB", loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(0, 1.02), fontsize=8.5, ncols=3, frameon=False)
    return figure


def sm_fill(ax: Axes, rows: int, cols: int, stages: int = 1, gpu: GPU = A100) -> None:
    """The shared memory and the registers of one SM, filled with CTAs of this tile until one of the two is short."""
    tile = Tile(rows, cols, stages=stages)
    fits = tile.ctas_per_sm(gpu)
    share = {
        "shared\nmemory": (tile.smem_bytes + KIB) / gpu.smem_per_sm,
        "registers": tile.registers / gpu.registers_per_sm,
    }
    for x, part in enumerate(share.values()):
        for cta in range(max(fits, 1)):
            colour, edge = (style.SMS[cta % len(style.SMS)], "white") if fits else ("white", style.ALARM)
            ax.bar(x, 100 * part, bottom=100 * part * cta, color=colour, edgecolor=edge, width=0.6, linewidth=1.5)
    ax.axhline(100, color=style.INK, linestyle="--", linewidth=1)
    ax.plot([0.6, 1.4], [100 * USABLE_REGISTERS] * 2, color=style.INK, linestyle=":", linewidth=1.5)
    if not fits:
        short = min(share, key=lambda part: 1 / share[part])
        ax.text(0.5, 112, f"too many {short}".replace("\n", " "), ha="center", va="top", fontsize=9, color=style.ALARM)
    ax.set(xlim=(-0.6, 1.6), ylim=(0, 122), ylabel="% of the SM" if ax.get_subplotspec().is_first_col() else "")
    ax.set_xticks(range(2), share)
    count = f"{fits} CTA{'s' if fits != 1 else ''}" if fits else "does not fit"
    ax.set_title(f"{rows} x {cols}: {count}\nFLOPs per byte: {rows}", fontsize=9)
