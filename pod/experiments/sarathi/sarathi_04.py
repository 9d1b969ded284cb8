"""SARATHI post, Figure 4: the mask moves with the chunk, and the chunks together compute the whole prompt."""

import numpy as np
import pandas as pd

from pod.batch import HybridBatch
from pod.lab.figure import Figure
from pod.lab.show import causal_cells, style, tiles
from pod.reference import attention

FIGURE = Figure(
    title="Attention masks of successive prefill chunks",
    says="A later chunk is the same work, beside more keys",
    chapter="03",
    method="Computed in float64, chunk by chunk and at once: one head, 1,024 tokens in 4 chunks of 256.",
)
PROMPT, CHUNK, HEAD_DIM, DRAWN = 1024, 256, 64, 64  # one drawn cell stands for 64 tokens


def chunks(prompt: int = PROMPT, chunk: int = CHUNK) -> list[slice]:
    return [slice(start, min(start + chunk, prompt)) for start in range(0, prompt, chunk)]


def chunked(q, k, v, chunk: int) -> np.ndarray:
    """Attention of a prompt [n, heads, D] in chunks: each sees the keys up to its own end, and no further."""
    return np.concatenate([attention(q[c], k[: c.stop], v[: c.stop])[0] for c in chunks(len(q), chunk)])


def prompt_tensors():
    rng = np.random.default_rng(4)
    return (rng.normal(size=(PROMPT, 1, HEAD_DIM)) for _ in "qkv")


def sdpa(q, k, v, **mask) -> np.ndarray:
    """torch's attention of [tokens, heads, D]; it wants the heads first."""
    import torch

    q, k, v = (torch.from_numpy(x).transpose(0, 1) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **mask).transpose(0, 1).numpy()


def errors(compute) -> list[str]:
    """Of each chunk, the error of compute(its slice), over the size of the whole prompt's output there."""
    whole = attention(*prompt_tensors())[0]
    lost = [np.linalg.norm(compute(c) - whole[c]) / np.linalg.norm(whole[c]) for c in chunks()]
    return ["below 1e-12" if x < 1e-12 else f"{100 * x:.0f} %" for x in lost]


def difference(chunk: int = CHUNK) -> np.ndarray:
    """Relative difference of each query's output, chunked against all at once [n]."""
    q, k, v = prompt_tensors()
    whole = attention(q, k, v)[0]
    return np.abs(chunked(q, k, v, chunk) - whole).max(axis=(1, 2)) / np.abs(whole).max()


def table():
    """One row a chunk: the keys it reads, the pairs it computes, and whether its output is that of the whole prompt."""
    relative, rows = difference(), []
    for i, c in enumerate(chunks()):
        pairs = HybridBatch([c.stop - c.start], [c.stop], 1, 1, HEAD_DIM).visible_pairs
        rows.append((i, c.start, c.stop, c.stop, pairs, bool(relative[c].max() < 1e-12)))
    return pd.DataFrame(rows, columns=["chunk", "first_query", "end", "keys_read", "pairs", "equal_to_1e-12"])


def draw(df):
    """One grid: the chunks' masks one under the other are the mask of the whole prompt."""
    size = PROMPT // DRAWN
    cells = np.full((size, size), "not there yet", dtype=object)
    ax = style.axes(7.2, 4.6)
    for row in df.itertuples():
        first, end = row.first_query // DRAWN, row.end // DRAWN
        cells[first:end, :end] = causal_cells(end - first, end)
        ax.axhline(first, color=style.INK, linewidth=1.4)
        ax.text(size + 0.4, (first + end) / 2, f"chunk {row.chunk}: {end * DRAWN:,} keys read", fontsize=9, va="center")
    tiles(cells, legend=False, ax=ax)
    style.legend(ax, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    ax.set(xlabel=f"keys, {DRAWN} a cell", ylabel=f"queries, {DRAWN} a cell")
    words = "Four masks, one under the other, are the triangle of the whole prompt"
    ax.set_title(words, fontsize=10, loc="left", pad=42)
    return ax.figure


def largest_difference() -> float:
    """Largest relative difference between four chunks of 256 and 1,024 tokens at once."""
    return float(difference().max())
