"""The line of tiles of all heads, and how a way of cutting it shares the tiles among workers."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pod.lab.show import style
from pod.schedule.choose import flash_splits
from pod.schedule.decode import segments
from pod.schedule.waves import run

RULES = "2.5.6", "today's"  # of FlashDecoding: the first counts one slot an SM, the second two


def shares(blocks: Sequence[int], cuts: Sequence[int], workers: int) -> list[tuple[int, int, int, int, int]]:
    """(worker, head, begin, end, start) of every segment; start is in tiles. A range goes to the first free worker."""
    ran = {r.cta: r for r in run(np.diff(cuts, prepend=0).tolist(), workers)}
    done = dict.fromkeys(ran, 0)
    rows = []
    for piece, head, begin, end in zip(*segments(np.asarray(blocks), np.asarray(cuts)), strict=True):
        piece, length = int(piece), int(end - begin)
        rows.append((ran[piece].slot, int(head), int(begin), int(end), int(ran[piece].start) + done[piece]))
        done[piece] += length
    return rows


def draw_line(ax: Axes, blocks: Sequence[int], cuts: Sequence[int], names: Sequence[str], workers: int) -> Axes:
    """All tiles in one row, each in the colour of its worker; heads have (short) names and end at dark lines."""
    ends = np.cumsum(blocks)
    for worker, head, begin, end, _ in shares(blocks, cuts, workers):
        for tile in range(begin, end):
            x = ends[head] - blocks[head] + tile
            ax.add_patch(Rectangle((x + 0.04, 0), 0.92, 1, facecolor=style.WORKERS[worker % len(style.WORKERS)]))
    for name, n, end in zip(names, blocks, ends, strict=True):
        ax.text(end - n / 2, 1.15, name, ha="center", va="bottom", fontsize=9, color=style.INK)
        ax.plot([end, end], [-0.12, 1.12], color=style.INK, linewidth=1.6)
    ax.set(xlim=(-0.1, ends[-1] + 0.1), ylim=(-0.15, 1.8))
    ax.axis("off")
    return ax


def draw_shares(ax: Axes, blocks: Sequence[int], cuts: Sequence[int], names: Sequence[str], workers: int) -> Axes:
    """One row a worker: its tiles over time in its colour, with the (short) names of the heads; grey is idle."""
    rows = shares(blocks, cuts, workers)
    last = max(start + end - begin for _, _, begin, end, start in rows)
    for worker in range(workers):
        ax.add_patch(Rectangle((0, worker + 0.08), last, 0.84, facecolor=style.IDLE))
    for worker, head, begin, end, start in rows:
        for i in range(end - begin):
            colour = style.WORKERS[worker % len(style.WORKERS)]
            ax.add_patch(Rectangle((start + i + 0.03, worker + 0.08), 0.94, 0.84, facecolor=colour))
            ax.text(start + i + 0.5, worker + 0.52, names[head], ha="center", va="center", fontsize=8.5,
                    color=style.letters_on(colour))  # fmt: skip
    ax.set(xlim=(0, last), ylim=(workers, 0), xlabel="time, tiles")
    ax.set_yticks([w + 0.5 for w in range(workers)], [f"SM {w}" for w in range(workers)])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return style.tidy(ax)


def draw_waves(ax: Axes, ctas: int, wave: float, slots: int) -> float:
    """Equally long CTAs fill the slots, wave after wave; white slots are empty. `wave` is the time of one over that of
    equal ranges, which fill all slots and end at the dashed line. Returns when the last wave ends."""
    waves = -(-ctas // slots)
    for i in range(waves):
        busy = min(slots, ctas - i * slots)
        ax.add_patch(Rectangle((i * wave, 0), wave, busy, facecolor=style.WORKERS[0], edgecolor="white"))
    ax.axvline(1, color=style.INK, linestyle="--", linewidth=1.5)
    ax.set(ylim=(0, slots), yticks=[0, slots // 2, slots], xlabel="time over that of equal ranges", ylabel="busy slots")
    style.tidy(ax)
    return waves * wave


def draw_rule(ax: Axes, units: int, tiles: int, sms: int, rule: str) -> Axes:
    """The waves of `units` heads of `tiles` tiles each, on two slots an SM, under one of FlashDecoding's two rules."""
    slots, parts = 2 * sms, flash_splits(units, tiles, sms, RULES.index(rule) + 1)
    end = draw_waves(ax, units * parts, -(-tiles // parts) / (units * tiles / slots), slots)
    cut = "uncut" if parts == 1 else f"in {parts} parts"
    ax.set_title(f"{rule} rule: {units} units {cut},\n{end:.2f}x the time of equal ranges", fontsize=10)
    return ax
