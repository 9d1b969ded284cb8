"""Attention of one head in tiles, written in PyTorch the way the kernels work, with a meter on every byte.

Run it on real tensors to check the result, or on tensors of device "meta" (shapes without numbers) to count only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pod.batch import DTYPE_BYTES, HybridBatch
from pod.hardware import GPU, KIB

if TYPE_CHECKING:
    from torch import Tensor

USABLE_REGISTERS = 0.75  # for scores and output; the rest holds addresses, fragments of Q and K, loop counters


@dataclass
class Memory:
    """The GPU's memory as one SM sees it: whatever crosses the edge of the SM is counted, in bytes."""

    loaded: int = 0
    stored: int = 0

    def load(self, x: Tensor) -> Tensor:
        self.loaded += x.numel() * x.element_size()
        return x

    def store(self, x: Tensor) -> Tensor:
        self.stored += x.numel() * x.element_size()
        return x

    @property
    def moved(self) -> int:
        return self.loaded + self.stored


@dataclass(frozen=True)
class Tile:
    """How much one CTA works on at a time: `rows` queries against `cols` keys, `stages` blocks of K and V in flight."""

    rows: int
    cols: int
    head_dim: int = 128
    stages: int = 1
    dtype: str = "bfloat16"

    def __post_init__(self):
        for name in ("rows", "cols", "head_dim", "stages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed are integers from 1 on")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype: got {self.dtype!r}, allowed are {', '.join(DTYPE_BYTES)}")

    @property
    def smem(self) -> dict[str, int]:
        """Bytes of shared memory by what they hold."""
        row = self.head_dim * DTYPE_BYTES[self.dtype]
        return {"Q": self.rows * row, "K": self.stages * self.cols * row, "V": self.stages * self.cols * row}

    @property
    def smem_bytes(self) -> int:
        return sum(self.smem.values())

    @property
    def registers(self) -> int:
        """32-bit registers for what stays in them, as fp32: the scores of one step and the output so far."""
        return self.rows * (self.cols + self.head_dim)

    def ctas_per_sm(self, gpu: GPU) -> int:
        """CTAs of this tile that fit on an SM, by shared memory and by registers."""
        if self.smem_bytes > gpu.smem_per_cta:
            return 0
        by_smem = gpu.smem_per_sm // (self.smem_bytes + KIB)  # CUDA keeps 1 KiB of each CTA for itself
        by_registers = int(USABLE_REGISTERS * gpu.registers_per_sm) // self.registers
        return min(by_smem, by_registers, gpu.ctas_per_sm)

    def row_blocks(self, n: int) -> Iterator[slice]:
        return (slice(r, min(r + self.rows, n)) for r in range(0, n, self.rows))

    def col_blocks(self, rows: slice, n: int, s: int, causal: bool = True) -> Iterator[slice]:
        """The blocks of keys that some query of `rows` sees. The n queries are the last n of the s tokens."""
        seen = s - n + rows.stop if causal else s
        return (slice(c, min(c + self.cols, s)) for c in range(0, seen, self.cols))

    def steps(self, n: int, s: int, causal: bool = True) -> Iterator[tuple[slice, slice]]:
        """Every (queries, keys) that a kernel works on, in order."""
        return ((rows, cols) for rows in self.row_blocks(n) for cols in self.col_blocks(rows, n, s, causal))


def standard_attention(q: Tensor, k: Tensor, v: Tensor, memory: Memory, causal: bool = True) -> Tensor:
    """Three kernels, one after the other; the full matrices of scores and probabilities go through memory.

    q [n, D], k and v [s, D] -> [n, D]
    """
    _check(q, k, v, causal)
    scores = memory.load(q) @ memory.load(k).T * q.shape[1] ** -0.5
    if causal:
        scores = _hide(scores, slice(0, len(q)), slice(0, len(k)), len(k) - len(q))
    scores = memory.store(scores)
    p = memory.store(memory.load(scores).softmax(dim=1))
    return memory.store(memory.load(p) @ memory.load(v))


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, tile: Tile, memory: Memory, causal: bool = True) -> Tensor:
    """One kernel; a tile of queries stays on the chip while blocks of keys and values stream past it.

    q [n, D], k and v [s, D] -> [n, D]
    """
    import torch

    _check(q, k, v, causal)
    n, s, out = len(q), len(k), torch.empty_like(q)
    for rows in tile.row_blocks(n):
        q_tile = memory.load(q[rows]) * q.shape[1] ** -0.5
        m = torch.full_like(q_tile[:, :1], -torch.inf)
        l, o = torch.zeros_like(m), torch.zeros_like(q_tile)
        for cols in tile.col_blocks(rows, n, s, causal):
            scores = q_tile @ memory.load(k[cols]).T
            if causal and crosses_diagonal(rows, cols, s - n):
                scores = _hide(scores, rows, cols, s - n)
            m_new = m.maximum(scores.amax(dim=1, keepdim=True))  # finite: every query sees key 0, in the first block
            p, rescale = (scores - m_new).exp(), (m - m_new).exp()
            l = rescale * l + p.sum(dim=1, keepdim=True)
            o = rescale * o + p @ memory.load(v[cols])
            m = m_new
        out[rows] = memory.store(o / l)
    return out


def _check(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
    for name, x in (("q", q), ("k", k)):
        if x.dim() != 2 or 0 in x.shape or x.shape[1] != q.shape[1]:
            raise ValueError(f"{name}: got shape {tuple(x.shape)}, allowed is [tokens, D], no 0, the same D for all")
    if v.shape != k.shape:
        raise ValueError(f"v: got shape {tuple(v.shape)}, allowed is that of k, {tuple(k.shape)}")
    if causal and len(k) < len(q):
        raise ValueError(f"k: got {len(k)} tokens, allowed with causal=True are at least the {len(q)} of q")


def crosses_diagonal(rows: slice, cols: slice, offset: int) -> bool:
    """Whether the first query of the block misses a key of it; only such blocks need the mask. `offset` is s - n."""
    return cols.stop - 1 > offset + rows.start


def _hide(scores: Tensor, rows: slice, cols: slice, offset: int) -> Tensor:
    """Scores with -inf where the key comes after the query; query i is token offset + i."""
    import torch

    query = torch.arange(rows.start, rows.stop, device=scores.device)[:, None] + offset
    key = torch.arange(cols.start, cols.stop, device=scores.device)
    return scores.masked_fill(key > query, -torch.inf)


def computed_flops(batch: HybridBatch, tile: Tile) -> int:
    """FLOPs that the tensor cores do for `batch`, padding and masked corners included; batch.flops is what it needs.

    A decode packs the query heads that share a KV head into the rows of one tile, a prefill head has its own tiles.
    """
    if batch.window is not None:
        raise ValueError(f"window: got {batch.window}, allowed is None: these tiles have none")
    total = 0
    for q_len, kv_len in zip(batch.q_lens, batch.kv_lens, strict=True):
        if q_len == 1:
            heads, steps = batch.num_kv_heads, tile.steps(batch.group, kv_len, causal=False)
        else:
            heads, steps = batch.num_q_heads, tile.steps(q_len, kv_len, batch.causal)
        total += heads * sum(1 for _ in steps)
    return total * 4 * tile.rows * tile.cols * tile.head_dim
