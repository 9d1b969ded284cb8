"""LeanAttention, Figure 4: one head's keys cut into two unequal pieces, computed apart, merged by rescaling."""

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

from pod.lab.figure import Figure
from pod.lab.show.style import DPI, INK, LIT, WORKERS, letters_on
from pod.reference import State, attention

FIGURE = Figure(
    title="One head cut into two unequal pieces and merged",
    says="Unequal pieces of a row merge to the same attention",
    chapter="01",
    method="computed in float64: one decode query, 5 LeanTiles of 256 keys, head_dim 64, cut 3 + 2",
)
TILE, HEAD_DIM, PIECES = 256, 64, {"x (3 tiles, CTA 0)": (0, 3), "y (2 tiles, CTA 1)": (3, 5)}


def table():
    """State of each piece, of the two merged, and of all keys at once."""
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(n, 1, HEAD_DIM)) for n in (1, 5 * TILE, 5 * TILE))
    scores = q[:, 0] @ k[:, 0].T / np.sqrt(HEAD_DIM)
    parts = {name: slice(a * TILE, b * TILE) for name, (a, b) in PIECES.items()}
    states = {name: State.of(scores[:, part], v[part, 0]) for name, part in parts.items()}
    x, y = states.values()
    states |= {"merged": x.merge(y), "all keys at once": State.of(scores, v[:, 0])}
    outs, truth = {name: s.finish()[0][0] for name, s in states.items()}, attention(q, k, v)[0][0, 0]
    rows = [(name, s.m[0], s.l[0], s.o[0, 0], outs[name][0], np.abs(outs[name] - truth).max())
            for name, s in states.items()]  # fmt: skip
    return pd.DataFrame(rows, columns=["state", "m", "l", "O[0]", "out[0]", "error"])


def draw(df):
    figure, ax = plt.subplots(figsize=(8.5, 3.6), dpi=DPI)
    rows = {row["state"]: row for _, row in df.iterrows()}
    centres = {}
    for (name, (a, b)), colour in zip(PIECES.items(), WORKERS, strict=False):
        for tile in range(a, b):
            ax.add_patch(Rectangle((2 * tile, 4.2), 1.92, 0.7, facecolor=colour))
            ax.text(2 * tile + 0.96, 4.55, f"LeanTile {tile}", ha="center", va="center", fontsize=8.5,
                    color=letters_on(colour))  # fmt: skip
        centres[name] = a + b
        _box(ax, a + b, 2.6, name, rows[name], colour)
        ax.annotate("", (a + b, 3.2), (a + b, 4.15), arrowprops={"arrowstyle": "->", "color": INK})
    for x in centres.values():
        ax.annotate("", (5 + 0.3 * np.sign(x - 5), 1.2), (x, 2.0), arrowprops={"arrowstyle": "->", "color": INK})
    _box(ax, 5, 0.6, "merged: rescale both to the larger m, add", rows["merged"], LIT)
    error = rows["merged"]["error"]
    same = "the same as all keys at once" if error < 1e-12 else f"off by {error:.1e} from all keys at once"
    ax.text(5, -0.5, f"O / l = the output: {same}", ha="center", fontsize=9, color=INK)
    ax.text(0, 5.1, "keys and values of one head", fontsize=9, color=INK)
    ax.set(xlim=(-0.1, 10.5), ylim=(-0.7, 5.4))
    ax.axis("off")
    return figure


def _box(ax, x: float, y: float, title: str, row, colour: str) -> None:
    ax.add_patch(Rectangle((x - 2.3, y - 0.6), 4.6, 1.2, facecolor="white", edgecolor=colour, linewidth=2))
    ax.text(x, y + 0.25, title, ha="center", va="center", fontsize=9)
    numbers = f"m {row['m']:.3f}   l {row['l']:.1f}   O[0] {row['O[0]']:+.2f}"
    ax.text(x, y - 0.25, numbers, ha="center", va="center", fontsize=9, family="DejaVu Sans Mono")


def merge_error() -> float:
    """Largest relative error of merged states over 200 random cuts and merge orders, scores up to a few hundred."""
    rng = np.random.default_rng(4)
    worst = 0.0
    for _ in range(200):
        scores, values = rng.normal(0, rng.choice([1, 100]), (1, TILE)), rng.normal(size=(TILE, HEAD_DIM))
        cuts = np.sort(rng.choice(np.arange(1, TILE), rng.integers(1, 9), replace=False))
        parts = zip(np.split(scores, cuts, axis=1), np.split(values, cuts), strict=True)
        states = [State.of(s, v) for s, v in parts]
        while len(states) > 1:
            a, b = (states.pop(rng.integers(len(states))) for _ in "ab")
            states.append(a.merge(b))
        whole = State.of(scores, values).finish()[0]
        worst = max(worst, np.abs(states[0].finish()[0] - whole).max() / np.abs(whole).max())
    return float(worst)
