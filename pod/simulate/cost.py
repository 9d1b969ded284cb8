"""How long an iteration takes on a GPU that may not be here.

    iteration = host + layers * (linear + element-wise + attention + all-reduces) + output head

With measured tables the operators are interpolated (`MeasuredCost`); without, they follow a roofline with a few
efficiencies (`AnalyticalCost`), fitted to public measurements of some models and judged on others: data/judged.csv
says, part by part, how far off they are. Attention by pod has published and measured tables; streams, hfuse and cta
have the GPU model's share of serial time (`modelled`). Every cost says which it is in `label`, every figure prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from math import ceil, hypot
from pathlib import Path

import numpy as np

from pod.data import Missing
from pod.files import ROOT
from pod.hardware import GPU
from pod.serving.schedulers import Batch
from pod.serving.shapes import Shape
from pod.simulate import attention_model, host_time, machines
from pod.simulate.attention_time import FITTED_ON
from pod.simulate.attention_time import KERNELS as PUBLIC
from pod.simulate.host_time import HOSTS
from pod.simulate.interpolate import GridTable, rows_with

ATTENTION = ("serial", *attention_model.METHODS, "pod", "oracle")
PREFILL_TILE = 128  # query rows of one CTA
HEAD_DIM = 128  # of all attention that was measured
OPERATORS = ROOT / "data" / "recorded" / "h200" / "operators.csv"
KERNELS = {"serial": "fa3", "pod": "hopper", "oracle": "fa3"}  # whose attention a method means where it was measured
BEST = "fa3-best"  # FlashAttention-3 in two calls or in one, whichever is faster for the batch
ONE_CALL = "operators-one"
OVERLAPPED = "h200"  # where pod's overlap was recorded
STEADY = ("head", "decode_hopper")  # more work is more time; elsewhere a library or a plan chooses anew


@dataclass(frozen=True)
class Linear:
    """What the weight matrices and element-wise operators of a layer reach: shares of the data sheet's rates, between
    them hypot(compute, memory) of rows rounded up to `rows`, and the seconds of a layer's launches.

    Fitted to Vidur's public profile of two or three models' layers (microsoft/vidur 7d47513, MIT) on 1 to 8 GPUs.
    """

    gemm: float
    stream: float
    launches: float
    elements: float
    rows: int = 64


HOPPER = ("h100", "h200")
LINEAR = {
    # Llama-3-8B, CodeLlama-34B and Llama-2-7B on A100s; the latter two on H100s
    "ampere": Linear(gemm=0.711, stream=0.854, launches=41.5e-6, elements=0.692),
    "hopper": Linear(gemm=0.704, stream=0.886, launches=37.6e-6, elements=0.594),
}
MATRICES = 4  # whose launches are most of a layer's


@dataclass(frozen=True)
class Efficiency:
    """What a study varies, or what was measured for no GPU in particular.

    overlap        How much of the shorter part of attention disappears behind the longer: what our own POD hid on an
                   H200, over the recorded sweep (pod_11.hidden). POD's Table 7 has 0.84.
    send_*         Vidur's profile of send/receive between A100 servers.
    """

    overlap: float = 0.63
    send_seconds: float = 35e-6
    send_bytes_per_s: float = 8e9
    swap_bytes_per_s: float = 25e9  # PCIe 4.0 x16, in one direction

    def __post_init__(self) -> None:
        if not 1e6 <= self.send_bytes_per_s <= 1e15:
            raise ValueError(f"link: got {self.send_bytes_per_s / 1e9:g} GB/s, allowed are numbers from 0.001 to 1e6")
        for name, least, most in (("overlap", 0, 1), ("send_seconds", 0, 1e3), ("swap_bytes_per_s", 1e6, 1e15)):
            if not least <= (value := getattr(self, name)) <= most:
                raise ValueError(f"{name}: got {value!r}, allowed are numbers from {least:g} to {most:g}")


@dataclass(slots=True)
class Work:
    """What a batch costs depends on this much of it. `chunks` are (new tokens, tokens before); `context` is the sum
    over the decodes of the tokens they attend to."""

    chunks: tuple[tuple[int, int], ...]
    decodes: int
    context: int
    new: int = field(init=False)  # prompt tokens
    tokens: int = field(init=False)
    requests: int = field(init=False)

    def __post_init__(self) -> None:
        self.new = sum([n for n, _ in self.chunks]) if self.chunks else 0
        self.tokens, self.requests = self.new + self.decodes, len(self.chunks) + self.decodes

    @classmethod
    def of(cls, batch: Batch, decode_context: int) -> Work:
        """`decode_context` is the event's; idle slots are computed too, in vain."""
        chunks = tuple([(n, before) for _, n, before in batch.prefills]) if batch.prefills else ()
        decodes = len(batch.decodes)
        if batch.idle:
            decodes += len(batch.idle)
            decode_context += len(batch.idle) + sum(r.computed for r in batch.idle)
        return cls(chunks, decodes, decode_context)


class Cost:
    """Seconds of the parts of an iteration on one GPU of `tp`, for one of `pp` stages."""

    label: str

    def __init__(self, shape: Shape, gpu: GPU, tp: int = 1, pp: int = 1, attention: str = "serial",
                 host: str = HOSTS[0], efficiency: Efficiency | None = None, machine: str | None = None):  # fmt: skip
        shape.check_parallel(tp, pp)
        if attention not in ATTENTION:
            raise ValueError(f"attention: got {attention!r}, allowed are {', '.join(ATTENTION)}")
        if attention in attention_model.METHODS and gpu.key not in attention_model.GPUS:
            raise ValueError(
                f"gpu: got {gpu.key!r}, allowed with attention {attention} are {', '.join(attention_model.GPUS)}"
            )
        if host not in HOSTS:
            raise ValueError(f"host: got {host!r}, allowed are {', '.join(HOSTS)}")
        self.shape, self.gpu, self.tp, self.pp, self.attention_method = shape, gpu, tp, pp, attention
        self.host_kind, self.efficiency = host, efficiency or Efficiency()
        self._layers = shape.layers // pp  # of a stage
        self._hidden = {"serial": 0.0, "pod": self.efficiency.overlap, "oracle": 1.0}.get(attention)
        self.machine = machines.machine(machine, gpu, tp) if tp > 1 else None
        for name in ("linear", "write", "reduce", "head", "host"):  # the same few counts come back all the time
            setattr(self, name, lru_cache(maxsize=None)(getattr(self, name)))

    def linear(self, rows: int) -> float:
        """Weight matrices and element-wise operators of one layer."""
        raise NotImplementedError

    def prefill(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Attention of the chunks in one layer, alone on the GPU."""
        raise NotImplementedError

    def decode(self, requests: int, context: int) -> float:
        """Attention of the decodes in one layer, alone on the GPU."""
        raise NotImplementedError

    def write(self, tokens: int) -> float:
        """K and V of so many prompt tokens into the cache, in one layer. Measured linear layers include it."""
        return 0.0

    def attention(self, work: Work) -> float:
        """Of one layer: the new K and V are written, then attention is computed by the chosen method."""
        if work.decodes and not work.chunks:  # most iterations, and a simulation has millions
            return self.decode(work.decodes, work.context)
        return self.write(work.new) + self._computed(work)

    def _computed(self, work: Work) -> float:
        """The sum of attention's two parts, the larger, or in between."""
        prefill = self.prefill(work.chunks) if work.chunks else 0.0
        decode = self.decode(work.decodes, work.context) if work.decodes else 0.0
        if not (prefill and decode):
            return prefill + decode
        if self.attention_method in attention_model.METHODS:
            return (prefill + decode) * self.modelled(work)
        return prefill + decode - self.hidden(work) * min(prefill, decode)

    @property
    def _by_model(self) -> str:
        return f", {self.attention_method} by the GPU model" if self.attention_method in attention_model.METHODS else ""

    def modelled(self, work: Work) -> float:
        """Time over that of serial execution, for a method that only the GPU model knows."""
        new = work.new
        before = sum(n * seen for n, seen in work.chunks) / new
        tiles = sum(ceil(n / PREFILL_TILE) for n, _ in work.chunks) * self.shape.q_heads / self.tp
        lanes = work.decodes * self.shape.kv_heads / self.tp
        return attention_model.ratio(
            self.gpu.key, self.attention_method, tiles, before, lanes, work.context / work.decodes
        )

    def hidden(self, work: Work) -> float:
        """Share of the shorter part of attention that costs nothing beside the longer."""
        return self._hidden

    def reduce(self, rows: int) -> float:
        """One all-reduce of the activations over the tensor-parallel GPUs."""
        if self.tp == 1:
            return 0.0
        return self.machine.all_reduce(self.tp, self._activation_bytes(rows))

    def head(self, requests: int) -> float:
        """Logits of the newest token of each request."""
        return self._gemm(requests, self.shape.hidden * self.shape.vocab / self.tp)

    def host(self, requests: int) -> float:
        """Time in which the GPU waits for Python."""
        return host_time.seconds(self.host_kind, self.tp, requests, self.shape.key)

    def stage(self, work: Work) -> float:
        """One stage of the pipeline, without host and output head."""
        rows = work.tokens
        return self._layers * (self.linear(rows) + self.attention(work) + 2 * self.reduce(rows))

    def send(self, rows: int) -> float:
        """Activations to the next stage; each tensor-parallel GPU sends its share."""
        e = self.efficiency
        return e.send_seconds + self._activation_bytes(rows) / self.tp / e.send_bytes_per_s

    def move(self, tokens: int) -> float:
        """Keys and values of a prompt to another server; each GPU sends its share to one like it."""
        e = self.efficiency
        return e.send_seconds + tokens * self.shape.kv_bytes_per_token / self.tp / self.pp / e.send_bytes_per_s

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
    """Roofline with efficiencies. `kernels` names the attention kernels, of attention_time.py."""

    def __init__(self, shape: Shape, gpu: GPU, tp: int = 1, pp: int = 1, attention: str = "serial",
                 host: str = HOSTS[0], efficiency: Efficiency | None = None, machine: str | None = None,
                 kernels: str | None = None):  # fmt: skip
        super().__init__(shape, gpu, tp, pp, attention, host, efficiency, machine)
        hopper = gpu.key in HOPPER
        self.kernels = kernels or {"h200": "fa3-h200", "h100": "fa3"}.get(gpu.key, "fa2-2024")
        if self.kernels not in PUBLIC:
            raise ValueError(f"kernels: got {kernels!r}, allowed are {', '.join(PUBLIC)}")
        self.kernel, self.efficiencies = PUBLIC[self.kernels], LINEAR["hopper" if hopper else "ampere"]
        self._heads = shape.q_heads // tp, shape.kv_heads // tp, shape.head_dim
        self._decodes = lru_cache(maxsize=None)(partial(self.kernel.decodes, gpu, *self._heads))

    @property
    def label(self) -> str:
        guesses = [f", {part} guessed from {whose}" for part, whose in self._guesses()]
        return f"analytical {self.gpu.name}{self._by_model}{''.join(guesses)}"

    def _guesses(self) -> Iterator[tuple[str, str]]:
        """What nobody held against a measurement on this GPU, and whose it is."""
        if self.gpu.key not in ("a100", *HOPPER):
            yield "linear layers", "A100"
        fitted_on, others = FITTED_ON[self.kernels], self.shape.head_dim != HEAD_DIM
        if self.gpu.key != fitted_on or others:
            yield "attention", f"{self.kernels} on {fitted_on.upper()}" + f" with heads of {HEAD_DIM}" * others
        if self.machine and self.gpu.key not in self.machine.gpus:
            yield "all-reduce", self.machine.name
        if self.attention_method == "pod" and self.gpu.key != OVERLAPPED and self._hidden == Efficiency.overlap:
            yield f"pod's overlap of {self._hidden:g}", OVERLAPPED.upper()

    def linear(self, rows: int) -> float:
        gemms = self._gemm(rows, self.shape.layer_weights / self.tp)
        return gemms + self._element_wise(rows) + self.efficiencies.launches

    def head(self, requests: int) -> float:
        return super().head(requests) + self.efficiencies.launches / MATRICES

    def _gemm(self, rows: int, weights: float) -> float:
        e = self.efficiencies
        padded = ceil(rows / e.rows) * e.rows
        compute = self.gpu.compute_time(2 * padded * weights) / e.gemm
        memory = self.gpu.memory_time(weights * self.shape.dtype_bytes) / e.stream
        return hypot(compute, memory)

    def _element_wise(self, rows: int) -> float:
        s, tp = self.shape, self.tp
        # two norms and two residual additions; rotary embedding of Q and K; activation, all read and written once
        values = 10 * s.hidden + 2 * (s.q_heads + s.kv_heads) * s.head_dim / tp + (3 if s.gated else 2) * s.ffn / tp
        return self.gpu.memory_time(rows * values * s.dtype_bytes) / self.efficiencies.elements

    def write(self, tokens: int) -> float:
        return self.kernel.write(self.gpu, *self._heads[1:], tokens)

    def prefill(self, chunks: Sequence[tuple[int, int]]) -> float:
        return self.kernel.prefill(self.gpu, *self._heads, chunks)

    def decode(self, requests: int, context: int) -> float:
        return self._decodes(requests)(context)


class MeasuredCost(Cost):
    """Operators as they were measured on the GPU: linear layers and head, prefill and decode attention alone, and how
    much of the shorter part hides when one kernel computes both. One GPU; `kernels` names whose attention it is. What
    was not measured (the host) stays as it was. Between points of the grid times are interpolated.
    """

    def __init__(self, shape: Shape, gpu: GPU, tp: int = 1, pp: int = 1, attention: str = "serial",
                 host: str = HOSTS[0], efficiency: Efficiency | None = None, machine: str | None = None,
                 kernels: str | None = None, path: Path = OPERATORS):  # fmt: skip
        if tp > 1 or pp > 1:
            raise ValueError(f"tp: got {tp} x {pp}, allowed with measured operators is 1")
        if gpu.key != path.parent.name:
            raise ValueError(f"gpu: got {gpu.key}, allowed with measured operators is {path.parent.name}")
        kernels = kernels or KERNELS.get(attention, "fa3")
        for name, got, allowed in (("model", shape.key, _models(path)), ("kernels", kernels, _whose(path, attention))):
            if got not in allowed:
                raise ValueError(f"{name}: got {got}, allowed with measured operators and attention {attention} are "
                                 f"{', '.join(allowed)}")  # fmt: skip
        super().__init__(shape, gpu, tp, pp, attention, host, efficiency, machine)
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
        either = (self.attention_method, self.kernels) == ("serial", BEST)
        if self.attention_method != "pod" and not either:
            return super().hidden(work)
        new = sum(n for n, _ in work.chunks)
        before = sum(n * p for n, p in work.chunks) / new
        share = self._tables["hidden"](new, before, work.decodes, work.context / work.decodes)
        return max(0.0, share) if either else share

    def head(self, requests: int) -> float:
        return self._tables["head"](requests)


def in_turn(kernels: str) -> str:
    """Whose kernels compute the two parts one after the other."""
    return "fa3" if kernels == BEST else kernels


@cache
def _timed(path: Path) -> list[tuple[str, str]]:
    """Models and operators that have rows."""
    return sorted({(row["model"], row["operator"]) for row in rows_with(path, "model", "operator")})


def _models(path: Path) -> list[str]:
    return sorted({model for model, _ in _timed(path)})


def _whose(path: Path, attention: str) -> list[str]:
    """Whose kernels there are for it; both parts in one call are ours, or FlashAttention-3's where that is faster."""
    part = "attention_" if attention == "pod" else "prefill_"
    return [*sorted({name.removeprefix(part) for _, name in _timed(path) if name.startswith(part)}), BEST]


@cache
def tables(path: Path, shape: Shape, kernels: str) -> dict[str, GridTable]:
    """What is interpolated: seconds of one layer, and the hidden share where one call for both was measured."""
    once = (path.with_name(f"{ONE_CALL}.csv"), "fa3-one") if kernels == BEST else (path, "hopper")
    if not once[0].is_file():
        raise Missing(f"kernels: got {kernels}, which wants {once[0].name}: `python -m pod measure {ONE_CALL}`")
    kernels = in_turn(kernels)
    axes = {"linear": ("rows",), "head": ("rows",), f"prefill_{kernels}": ("chunk", "context"),
            f"decode_{kernels}": ("requests", "decode_context")}  # fmt: skip
    load = partial(GridTable.load, value="us", unit=1e-6, model=shape.key, split="grid")
    made = {name.partition("_")[0]: load(path, of, operator=name, monotone=name in STEADY) for name, of in axes.items()}
    if kernels == "hopper" or once[1] == "fa3-one":
        both = ("chunk", "context", "requests", "decode_context")
        both = load(once[0], both, operator=f"attention_{once[1]}", monotone=False)
        made["hidden"] = _hidden(both, made["prefill"], made["decode"])
    return made


def _hidden(fused: GridTable, prefill: GridTable, decode: GridTable) -> GridTable:
    """1 where both together take as long as the longer alone, 0 where they take the sum."""
    shares = []
    for point in fused.points:
        parts = prefill(*point[:2]), decode(*point[2:])
        shares.append((sum(parts) - fused(*point)) / min(parts))
    return GridTable(fused.axes, np.reshape(shares, fused.shape), times=False)
