"""How long an iteration takes on a GPU that may not be here.

    iteration = host + layers * (linear + element-wise + attention + all-reduces) + output head

With measured tables the operators are interpolated (`MeasuredCost`); without, they follow a roofline with a few
efficiencies (`AnalyticalCost`). Attention by pod has published and measured tables; streams, hfuse and cta have the GPU
model's share of serial time (`modelled`). Every cost says which it is in `label`, and every figure prints that label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from math import ceil, hypot
from pathlib import Path

import numpy as np

from pod.hardware import GPU
from pod.serving import modelled
from pod.serving.grid import GridTable
from pod.serving.schedulers import Batch
from pod.serving.shapes import Shape

ATTENTION = ("serial", *modelled.METHODS, "pod", "oracle")
HOSTS = ("python", "none")
PREFILL_TILE = 128  # query rows of one CTA
OPERATORS = Path(__file__).parents[2] / "data" / "recorded" / "h200" / "operators.csv"
KERNELS = {"serial": "fa3", "pod": "hopper", "oracle": "fa3"}  # whose attention a method means where it was measured
STEADY = ("head", "decode_hopper")  # more work is more time; elsewhere a library or a plan chooses anew


@dataclass(frozen=True)
class Efficiency:
    """What fraction of the data sheet the operators reach. All are read off published measurements, none is tuned to
    an end-to-end number.

    gemm, stream   Vidur's public profile of Llama-3-8B's layers on an A100 (TP 2): 1,024 rows reach 0.69 of the
                   tensor cores' peak, one row 0.67 of DRAM's; between them hypot(compute, memory) of rows rounded up to
                   64 stays within 8 % of its rows. Element-wise operators: 0.67 of DRAM and 20 us of launches a layer.
    prefill,       POD-Attention, Table 7, column FA_Serial: time grows by 0.02 ms a chunk, which is the prefill part
    split, decode  (0.34 of the peak), and the rest is decode. Its 64 tiles would leave 44 of 108 SMs idle: a full wave
                   reaches 0.574, and 0.34 is the least, because kernels split the keys when tiles are too few.
    overlap        the same table, column "limited split": how much of the shorter part disappears behind the longer.
                   The paper's mean gain of 28 % speaks for 0.6 to 0.7, its best (75 %) for 0.86: vary it.
    reduce_*       Vidur's profile of all-reduce over an NVLink pair (A100); rings of n move 2 (n - 1) / n of the data.
    send_*         Vidur's profile of send/receive between A100 servers.
    host_*         Vidur's profile of a Python engine with Ray workers: schedule, prepare, sample, process, communicate,
                   as a straight line over the batch size, for one GPU and for two or more.
    """

    gemm: float = 0.69
    stream: float = 0.67
    gemm_rows: int = 64
    layer_launches: float = 20e-6
    prefill: float = 0.574
    split: float = 0.34
    decode: float = 0.775
    overlap: float = 0.84
    reduce_seconds: float = 30e-6
    reduce_bytes_per_s: float = 215e9
    send_seconds: float = 35e-6
    send_bytes_per_s: float = 8e9
    swap_bytes_per_s: float = 25e9  # PCIe 4.0 x16, in one direction
    host_single: tuple[float, float] = (1.3e-3, 0.106e-3)
    host_parallel: tuple[float, float] = (4.1e-3, 0.173e-3)


@dataclass(frozen=True)
class Work:
    """What a batch costs depends on this much of it. `chunks` are (new tokens, tokens before); `context` is the sum
    over the decodes of the tokens they attend to."""

    chunks: tuple[tuple[int, int], ...]
    decodes: int
    context: int

    @property
    def tokens(self) -> int:
        return sum(n for n, _ in self.chunks) + self.decodes

    @property
    def requests(self) -> int:
        return len(self.chunks) + self.decodes

    @classmethod
    def of(cls, batch: Batch, decode_context: int) -> Work:
        """`decode_context` is the event's; idle slots are computed too, in vain."""
        idle = len(batch.idle) + sum(r.computed for r in batch.idle)
        return cls(tuple([(n, before) for _, n, before in batch.prefills]), len(batch.decodes) + len(batch.idle),
                   decode_context + idle)  # fmt: skip


class Cost:
    """Seconds of the parts of an iteration on one GPU of `tp`, for one of `pp` stages."""

    label: str

    def __init__(self, shape: Shape, gpu: GPU, tp: int = 1, pp: int = 1, attention: str = "serial",
                 host: str = "python", efficiency: Efficiency | None = None):  # fmt: skip
        shape.check_parallel(tp, pp)
        if attention not in ATTENTION:
            raise ValueError(f"attention: got {attention!r}, allowed are {', '.join(ATTENTION)}")
        if attention in modelled.METHODS and gpu.key not in modelled.GPUS:
            raise ValueError(f"gpu: got {gpu.key!r}, allowed with attention {attention} are {', '.join(modelled.GPUS)}")
        if host not in HOSTS:
            raise ValueError(f"host: got {host!r}, allowed are {', '.join(HOSTS)}")
        self.shape, self.gpu, self.tp, self.pp, self.attention_method = shape, gpu, tp, pp, attention
        self.host_kind, self.efficiency = host, efficiency or Efficiency()
        self.linear = lru_cache(maxsize=None)(self.linear)  # the same few row counts come back all the time

    def linear(self, rows: int) -> float:
        """Weight matrices and element-wise operators of one layer."""
        raise NotImplementedError

    def prefill(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Attention of the chunks in one layer, alone on the GPU."""
        raise NotImplementedError

    def decode(self, requests: int, context: int) -> float:
        """Attention of the decodes in one layer, alone on the GPU."""
        raise NotImplementedError

    def attention(self, work: Work) -> float:
        """Attention of one layer by the chosen method: the sum of its two parts, the larger, or in between."""
        prefill = self.prefill(work.chunks) if work.chunks else 0.0
        decode = self.decode(work.decodes, work.context) if work.decodes else 0.0
        if not (prefill and decode):
            return prefill + decode
        if self.attention_method in modelled.METHODS:
            return (prefill + decode) * self.modelled(work)
        return prefill + decode - self.hidden(work) * min(prefill, decode)

    @property
    def _by_model(self) -> str:
        return f", {self.attention_method} by the GPU model" if self.attention_method in modelled.METHODS else ""

    def modelled(self, work: Work) -> float:
        """Time over that of serial execution, for a method that only the GPU model knows."""
        new = sum(n for n, _ in work.chunks)
        before = sum(n * seen for n, seen in work.chunks) / new
        tiles = sum(ceil(n / PREFILL_TILE) for n, _ in work.chunks) * self.shape.q_heads / self.tp
        lanes = work.decodes * self.shape.kv_heads / self.tp
        return modelled.ratio(self.gpu.key, self.attention_method, tiles, before, lanes, work.context / work.decodes)

    def hidden(self, work: Work) -> float:
        """Share of the shorter part of attention that costs nothing beside the longer."""
        return {"serial": 0.0, "pod": self.efficiency.overlap, "oracle": 1.0}[self.attention_method]

    def reduce(self, rows: int) -> float:
        """One all-reduce of the activations over the tensor-parallel GPUs."""
        if self.tp == 1:
            return 0.0
        e, share = self.efficiency, 2 * (self.tp - 1) / self.tp
        return e.reduce_seconds + share * self._activation_bytes(rows) / e.reduce_bytes_per_s

    def head(self, requests: int) -> float:
        """Logits of the newest token of each request."""
        return self._gemm(requests, self.shape.hidden * self.shape.vocab / self.tp)

    def host(self, requests: int) -> float:
        """Time in which the GPU waits for Python."""
        if self.host_kind == "none":
            return 0.0
        fixed, each = self.efficiency.host_single if self.tp == 1 else self.efficiency.host_parallel
        return fixed + each * requests

    def stage(self, work: Work) -> float:
        """One stage of the pipeline, without host and output head."""
        rows, layers = work.tokens, self.shape.layers // self.pp
        return layers * (self.linear(rows) + self.attention(work) + 2 * self.reduce(rows))

    def send(self, rows: int) -> float:
        """Activations to the next stage; each tensor-parallel GPU sends its share."""
        e = self.efficiency
        return e.send_seconds + self._activation_bytes(rows) / self.tp / e.send_bytes_per_s

    def swap(self, blocks: int, block_size: int) -> float:
        """Blocks copied between GPU and host; the GPUs copy their shares at once."""
        kv = self.shape.kv_bytes_per_token / self.tp / self.pp
        return blocks * block_size * kv / self.efficiency.swap_bytes_per_s

    def parts(self, work: Work) -> dict[str, float]:
        """An unpiped iteration, by part. Their sum is its time."""
        layers, rows = self.shape.layers, work.tokens
        return {
            "host": self.host(work.requests),
            "linear": layers * self.linear(rows),
            "attention": layers * self.attention(work),
            "all-reduce": layers * 2 * self.reduce(rows),
            "head": self.head(work.requests),
        }

    def _activation_bytes(self, rows: int) -> float:
        return rows * self.shape.hidden * self.shape.dtype_bytes

    def _gemm(self, rows: int, weights: float) -> float:
        raise NotImplementedError


class AnalyticalCost(Cost):
    """Roofline with efficiencies. Good for ratios and orderings; milliseconds within some 10 to 20 %."""

    @property
    def label(self) -> str:
        return f"analytical {self.gpu.name}{self._by_model}"

    def linear(self, rows: int) -> float:
        gemms = self._gemm(rows, self.shape.layer_weights / self.tp)
        return gemms + self._element_wise(rows)

    def _gemm(self, rows: int, weights: float) -> float:
        e, size = self.efficiency, self.shape.dtype_bytes
        padded = ceil(rows / e.gemm_rows) * e.gemm_rows
        compute = self.gpu.compute_time(2 * padded * weights) / e.gemm
        memory = self.gpu.memory_time(weights * size) / e.stream
        return hypot(compute, memory)

    def _element_wise(self, rows: int) -> float:
        s, tp = self.shape, self.tp
        # two norms and two residual additions; rotary embedding of Q and K; activation, all read and written once
        values = 10 * s.hidden + 2 * (s.q_heads + s.kv_heads) * s.head_dim / tp + (3 if s.gated else 2) * s.ffn / tp
        moved = rows * values * s.dtype_bytes
        return self.efficiency.layer_launches + self.gpu.memory_time(moved) / self.efficiency.stream

    def prefill(self, chunks: Sequence[tuple[int, int]]) -> float:
        s, gpu, heads = self.shape, self.gpu, self.shape.q_heads // self.tp
        pairs, tiles, tokens = 0, 0, 0
        for new, before in chunks:
            pairs += new * before + new * (new + 1) // 2
            tiles += ceil(new / PREFILL_TILE) * heads
            tokens += before + new
        wave_fill = tiles / (gpu.sms * ceil(tiles / gpu.sms))
        rate = max(self.efficiency.prefill * wave_fill, self.efficiency.split)
        compute = gpu.compute_time(4 * s.head_dim * heads * pairs) / rate
        return max(compute, self._kv_time(tokens))

    def decode(self, requests: int, context: int) -> float:
        s = self.shape
        flops = 4 * s.head_dim * (s.q_heads // self.tp) * context
        return max(self._kv_time(context), self.gpu.compute_time(flops) / self.efficiency.prefill)

    def _kv_time(self, tokens: int) -> float:
        kv = self.shape.kv_bytes_per_token / self.shape.layers / self.tp
        return self.gpu.memory_time(tokens * kv) / self.efficiency.decode


class MeasuredCost(AnalyticalCost):
    """Operators as they were measured on the GPU: linear layers and head, prefill and decode attention alone, and how
    much of the shorter part hides when one kernel computes both. One GPU; `kernels` names whose attention it is. What
    was not measured (the host) stays as it was. Between points of the grid times are interpolated.
    """

    def __init__(self, shape: Shape, gpu: GPU, tp: int = 1, pp: int = 1, attention: str = "serial",
                 host: str = "python", efficiency: Efficiency | None = None, kernels: str | None = None,
                 path: Path = OPERATORS):  # fmt: skip
        if tp > 1 or pp > 1:
            raise ValueError(f"tp: got {tp} x {pp}, allowed with measured operators is 1")
        if gpu.key != path.parent.name:
            raise ValueError(f"gpu: got {gpu.key}, allowed with measured operators is {path.parent.name}")
        kernels = kernels or KERNELS.get(attention, "fa3")
        super().__init__(shape, gpu, tp, pp, attention, host, efficiency)
        self.kernels = kernels
        self._tables = tables(path, shape, kernels)

    @property
    def label(self) -> str:
        return f"operators measured on {self.gpu.name}{self._by_model}"

    def linear(self, rows: int) -> float:
        return self._tables["linear"](rows)

    def prefill(self, chunks: Sequence[tuple[int, int]]) -> float:
        return sum(self._tables["prefill"](new, before) for new, before in chunks)

    def decode(self, requests: int, context: int) -> float:
        return self._tables["decode"](requests, context / requests)

    def hidden(self, work: Work) -> float:
        """Share of the shorter part of attention that costs nothing beside the longer."""
        if self.attention_method != "pod":
            return super().hidden(work)
        new = sum(n for n, _ in work.chunks)
        before = sum(n * p for n, p in work.chunks) / new
        return self._tables["hidden"](new, before, work.decodes, work.context / work.decodes)

    def head(self, requests: int) -> float:
        return self._tables["head"](requests)


@cache
def tables(path: Path, shape: Shape, kernels: str) -> dict[str, GridTable]:
    """What is interpolated: seconds of one layer, and the hidden share where a fused kernel was measured."""
    axes = {"linear": ("rows",), "head": ("rows",), f"prefill_{kernels}": ("chunk", "context"),
            f"decode_{kernels}": ("requests", "decode_context")}  # fmt: skip
    load = partial(GridTable.load, path, value="us", unit=1e-6, model=shape.key, split="grid")
    made = {name.partition("_")[0]: load(of, operator=name, monotone=name in STEADY) for name, of in axes.items()}
    if kernels == "hopper":
        fused = ("chunk", "context", "requests", "decode_context")
        fused = load(fused, operator=f"attention_{kernels}", monotone=False)
        made["hidden"] = _hidden(fused, made["prefill"], made["decode"])
    return made


def _hidden(fused: GridTable, prefill: GridTable, decode: GridTable) -> GridTable:
    """1 where both together take as long as the longer alone, 0 where they take the sum."""
    shares = []
    for point in fused.points:
        parts = prefill(*point[:2]), decode(*point[2:])
        shares.append((sum(parts) - fused(*point)) / min(parts))
    return GridTable(fused.axes, np.reshape(shares, fused.shape), times=False)
