"""Pictures of the online softmax: its state block by block, and the tree in which states are merged."""

from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from pod.lab.show.style import DIM, DPI, FRAME, INK, LIT, SMS, WORKERS, axes, letters_on, ticks
from pod.reference import State


def lit_table(columns: Sequence[str], rows: Sequence[Sequence[str]], light, ax: Axes | None = None) -> Axes:
    """A table whose cells glow: `light` [rows, columns] is 0 for plain, 1 for touched, 2 for the ones to look at."""
    widths = [2 + 0.75 * max(len(str(row[c])) for row in (columns, *rows)) for c in range(len(columns))]
    left = np.concatenate([[0], np.cumsum(widths)])
    if ax is None:
        ax = plt.subplots(figsize=(min(9.5, 0.125 * left[-1]), 0.34 * (len(rows) + 1)), dpi=DPI)[1]
    for r, row in enumerate([columns, *rows]):
        for c, text in enumerate(row):
            colour = "#e9eef3" if r == 0 else ("white", DIM, LIT)[int(light[r - 1][c])]
            ax.add_patch(Rectangle((left[c], r), widths[c], 1, facecolor=colour, edgecolor=FRAME, linewidth=0.8))
            ax.text(
                left[c] + widths[c] / 2, r + 0.52, text, ha="center", va="center", color=INK, fontsize=9,
                fontweight="bold" if r == 0 else "normal", family="DejaVu Sans Mono" if r else None,
            )  # fmt: skip
    ax.set(xlim=(-0.1, left[-1] + 0.1), ylim=(len(rows) + 1.03, -0.03))  # room for the outer lines
    ax.axis("off")
    return ax


def state_table(blocks: Sequence[tuple[str, State]], ax: Axes | None = None) -> Axes:
    """The running state of one query as blocks of keys arrive; `blocks` holds (label, state of that block alone).

    Bright: the maximum rose, so all that was summed before, if anything, was rescaled. Pale: something was added.
    """
    running = State.identity(1, blocks[0][1].o.shape[-1])
    rows, light = [_row("before any key", running, rescale="")], [[0] * 6]
    for label, block in blocks:
        after = running.merge(block)
        risen, past, added = bool(after.m[0] > running.m[0]), bool(running.l[0] > 0), bool(block.l[0] > 0)
        rows.append(_row(label, after, rescale=f"{np.exp(running.m[0] - after.m[0]):.3f}" if past else "–"))
        light.append([0, 2 * risen, 2 * (risen and past), added, added, rows[-1][-1] != rows[-2][-1]])
        running = after
    return lit_table(("keys", "m", "rescale old by", "l", "O", "answer so far, O / l"), rows, light, ax)


def _row(label: str, state: State, rescale: str) -> list[str]:
    out, _ = state.finish()
    answer = _vector(out[0]) if state.l[0] > 0 else "none"
    return [label, f"{state.m[0]:.0f}", rescale, f"{state.l[0]:.3f}", _vector(state.o[0]), answer]


def _vector(x: np.ndarray) -> str:
    return "(" + ", ".join(f"{value:.3f}" for value in x) + ")"


SHARES = (SMS[0], WORKERS[4], SMS[2], WORKERS[7], WORKERS[2])  # neighbours may share a head: hues far apart
Tree = int | tuple  # a block number, or the pair of trees that one merge brings together


def merge_trees(panels: dict[str, tuple[Sequence[Tree], Sequence[int]]]) -> Figure:
    """Merge trees over blocks of keys, one panel a way of sharing the work: {title: (trees, SM of each block)}.

    A block has the colour of its SM, a merge too; a merge of two SMs' states is hollow.
    """
    figure, axes = plt.subplots(
        1, len(panels), figsize=(9.5, 3.3), dpi=DPI, sharey=True, squeeze=False, layout="constrained"
    )
    top = 0.0
    for ax, (title, (trees, worker)) in zip(axes[0], panels.items(), strict=True):
        for tree in trees:
            x, y, _ = _draw_node(tree, worker, ax)
            ax.plot([x, x], [y, y + 0.6], color=INK, linewidth=1.2, zorder=0)
            ax.text(x, y + 0.7, "answer", ha="center", va="bottom", fontsize=9, color=INK)
            top = max(top, y)
        ax.set_xlim(-0.7, len(worker) - 0.3)
        busiest = max(map(list(worker).count, worker))
        ax.set_title(f"{title}\nbusiest SM: {busiest} blocks", fontsize=10)
        ax.axis("off")
    axes[0, 0].set_ylim(-0.6, top + 1.5)
    figure.supxlabel("blocks of keys, in the colour of their SM; a hollow dot merges the states of two SMs", fontsize=9)
    return figure


def _draw_node(tree: Tree, worker: Sequence[int], ax: Axes) -> tuple[float, float, int]:
    """Draws a tree and returns where its result is, and which SM holds it."""
    if isinstance(tree, int):
        colour = SHARES[worker[tree] % len(SHARES)]
        ax.add_patch(FancyBboxPatch((tree - 0.34, -0.3), 0.68, 0.6, "round,pad=0.04", facecolor=colour, linewidth=0))
        ax.text(tree, 0, str(tree), ha="center", va="center", color=letters_on(colour), fontsize=9)
        return tree, 0.35, worker[tree]
    (lx, ly, here), (rx, ry, there) = (_draw_node(branch, worker, ax) for branch in tree)
    x, y = (lx + rx) / 2, max(ly, ry) + 0.9
    for px, py in ((lx, ly), (rx, ry)):
        ax.plot([px, px, x], [py, y, y], color=INK, linewidth=1.2, zorder=0)
    edge, fill = (SHARES[here % len(SHARES)],) * 2 if here == there else (INK, "white")
    ax.plot(x, y, "o", color=edge, markerfacecolor=fill, markersize=5.5)
    return x, y, here


def error_lines(keys: Sequence[int], lost: dict[str, np.ndarray]) -> Figure:
    """Relative error against the number of keys: {format of the state: errors [keys, (chain, balanced tree)]}."""
    ax = axes(7.5, 3.2)
    for (name, errors), colour in zip(lost.items(), (SMS[3], SMS[0]), strict=True):
        for column, line, how in ((0, "o-", "chain"), (1, "o--", "balanced tree")):
            ax.loglog(keys, errors[:, column], line, color=colour)
            ax.text(1.12 * keys[-1], errors[-1, column], f"{name} state, {how}", color=colour, fontsize=9, va="center")
    ax.set(xlabel="keys", ylabel="error / answer", xlim=(0.8 * keys[0], 9 * keys[-1]), ylim=(None, 1))
    ticks(ax, keys, [f"{n:,}" for n in keys])
    ticks(ax, [1e-6, 1e-4, 1e-2, 1], ["0.0001 %", "0.01 %", "1 %", "100 %"], axis="y")
    return ax.figure
