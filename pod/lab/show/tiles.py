"""A matrix of queries against keys as cells: what a query sees, what the mask hides, what is mere padding."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pod.lab.show import style

CELLS = {  # face colour and hatch
    "in this chunk": (style.PREFILL, None),
    "in the KV cache": ("#b9cde4", None),
    "one new token": (style.DECODE, None),
    "masked": ("white", None),
    "not there yet": (style.IDLE, None),
    "padding": (style.DIM, "xx"),
}


def causal_cells(q_len: int, kv_len: int, rows: int | None = None) -> np.ndarray:
    """Names of cells [rows, kv_len] for the last q_len of kv_len tokens, padded to `rows` query rows."""
    rows = q_len if rows is None else rows
    if not 1 <= q_len <= min(rows, kv_len):
        raise ValueError(f"q_len: got {q_len}, allowed is 1 to min(rows, kv_len) = {min(rows, kv_len)}")
    cells = np.full((rows, kv_len), "padding", dtype=object)
    query, key = np.arange(kv_len - q_len, kv_len)[:, None], np.arange(kv_len)
    seen = "one new token" if q_len == 1 else np.where(key < kv_len - q_len, "in the KV cache", "in this chunk")
    cells[:q_len] = np.where(key <= query, seen, "masked")
    return cells


def tiles(cells, first_row: int = 0, title: str = "", legend: bool = True, ax: Axes | None = None) -> Axes:
    """A grid of named cells (see CELLS), keys to the right and queries downwards, numbered from `first_row`."""
    cells = np.asarray(cells, dtype=object)
    if cells.ndim != 2 or (unknown := set(cells.flat) - set(CELLS)):
        raise ValueError(f"cells: got {unknown if cells.ndim == 2 else cells.shape}, allowed are 2-D of {list(CELLS)}")
    rows, cols = cells.shape
    if ax is None:
        ax = style.axes(min(9.5, 0.9 + 0.3 * cols), 0.9 + min(9.5, 0.9 + 0.3 * cols) * rows / cols)
    for (r, c), name in np.ndenumerate(cells):
        face, hatch = CELLS[name]
        look = {"facecolor": face, "hatch": hatch, "edgecolor": style.FRAME, "linewidth": 0.6}
        ax.add_patch(Rectangle((c, r), 1, 1, label=name, **look))
    ax.set(xlim=(0, cols), ylim=(rows, 0), aspect="equal", xlabel="keys", title=title)
    step = max(1, rows // 8), max(1, cols // 8)
    ax.set_xticks(np.arange(0, cols, step[1]) + 0.5, range(0, cols, step[1]))
    ax.set_yticks(np.arange(0, rows, step[0]) + 0.5, range(first_row, first_row + rows, step[0]))
    ax.tick_params(length=0, labelsize=9)
    ax.spines[:].set_visible(False)
    ax.set_ylabel("queries")
    if legend:
        style.legend(ax, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return ax
