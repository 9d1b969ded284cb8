"""A plan on the device: a header of named numbers and one buffer, the same for every family, and the launch.

`place` puts a schedule there once; every layer then launches with it. A plan keeps its own counters and workspace, so a
run allocates nothing but its results, and runs of one plan follow each other, whatever streams they are on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from pod.batch import HybridBatch
from pod.kernels import build
from pod.kernels.allowed import Allowed, scale_of, scales_of
from pod.schedule.work import Schedule

LINE = 32  # int32s of a cache line
# One emulated machine, so one user at a time. A fork waits for it: in the child it would be busy for ever.
EMULATING = threading.Lock()
os.register_at_fork(before=EMULATING.acquire, after_in_parent=EMULATING.release, after_in_child=EMULATING.release)


# ---------------------------------------------------------------- what an operator is told
class Header(NamedTuple):
    """The numbers of a plan, by name and in this order: `Header` of csrc/include/inputs.h."""

    method: int = 0  # of those that share a family's operator
    sms: int = 0
    ctas_per_sm: int = 1
    causal: int = 1
    prefill_works: int = 0  # work records of each side
    decode_works: int = 0
    pieces: int = 0  # of decode
    deals: int = 0
    prefill_groups: int = 0  # arrival counters of tiles that are merged from parts
    decode_groups: int = 0
    prefill_slots: int = 0  # partial results
    decode_slots: int = 0
    prefill_rows: int = 0  # of a tile
    pack_tokens: int = 1  # of a prefill tile, by query heads
    pack_heads: int = 1
    decode_rows: int = 0  # tokens x query heads of a piece of decode
    window: int = 0  # keys that a query sees; 0: all
    trace_rows: int = 0


class Layout(NamedTuple):
    """What a schedule becomes on the device."""

    header: Header
    lists: Sequence  # of int32, one after the other: arrays, and work records as tuples of twelve columns
    counters: int  # int32, zero between launches
    floats: int  # of the partial results, until they are merged


@dataclass(frozen=True, eq=False)
class Kernel:
    """What a family says of itself."""

    family: build.Family
    kind: Callable[[Schedule, bool], str]  # which of its kernels computes it, with a trace or without
    lay_out: Callable[[Schedule], Layout]
    trace: Callable = lambda rows: rows  # makes of the operator's rows what the caller gets
    check_layout: Callable = lambda batch, q, k_cache: None  # refuses strides that no method of the family can follow
    leaves_padding: bool = False  # as it is: the plan writes zeros


def fake(trace_fields: int) -> Callable:
    """For tracing and compiling models: the results of an operator, empty."""

    def results(kind, q, k, v, table, lists, counters, partials, header, scale, softcap, sinks, lse, trace, into=None,
                *kv_scales):  # fmt: skip
        import torch

        out = q.new_empty(0) if into is not None else q.new_empty(q.shape)
        sums = q.new_empty((q.shape[0] if lse else 0, q.shape[1]), dtype=torch.float32)
        rows = (Header(*header).trace_rows if trace else 0, trace_fields)
        return out, sums, q.new_empty(rows, dtype=torch.int64)

    return results


# ---------------------------------------------------------------- on the device
@dataclass(eq=False)
class Placed:
    """A schedule, and what of it lies on the device."""

    schedule: Schedule
    header: list[int]
    lists: object  # int32
    counters: object  # int32, zero between launches
    partials: object  # float32
    turn: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    stream: object = field(default=None, init=False, repr=False)  # of the latest run outside a graph

    def follow(self, *others) -> None:
        """Let the current stream wait for the latest run: it uses the same counters and workspace. The allocator is
        told of the stream as well, so that a plan may be dropped while its kernel runs; `others`: what else a run
        reads. A capture waits for nothing outside of it, and nothing outside for a stream that captures by now."""
        import torch

        stream = torch.cuda.current_stream(self.lists.device)
        if stream == self.stream or is_capturing(stream):
            return
        if self.stream is not None and not is_capturing(self.stream):
            stream.wait_stream(self.stream)
        for x in (self.lists, self.counters, self.partials, *others):
            x.record_stream(stream)
        self.stream = stream


def place(schedule: Schedule, lay_out: Callable[[Schedule], Layout], device) -> Placed:
    """The lists, zeroed counters and room for partial results. They are there when this returns, so any stream may use
    them, a captured one as well."""
    import torch

    if device.type == "cuda" and is_capturing(torch.cuda.current_stream(device)):
        raise RuntimeError("plan: got a stream that captures a CUDA graph, allowed are a plan made before the capture "
                           "and a mask (causal) that it has run with before")  # fmt: skip
    header, lists, counters, floats = lay_out(schedule)
    sizes = (-(-ints_of(lists) // LINE) * LINE, counters)  # whoever counts owns the line: counters have their own
    if device.type == "cpu":
        ints = torch.from_numpy(write(lists, np.empty(sum(sizes), np.int32)))
        partials = torch.empty(max(1, floats), dtype=torch.float32, device=device)
    else:
        ints, partials = _staging(device).upload(lists, sum(sizes), floats)
    placed = Placed(schedule, list(header), *ints.split(sizes), partials)
    if device.type == "cpu":
        placed.turn = EMULATING
    return placed


def ints_of(lists: Sequence) -> int:
    return sum(12 * len(x[0]) if isinstance(x, tuple) else len(x) for x in lists)


def write(lists: Sequence, into: np.ndarray) -> np.ndarray:
    """The lists one after the other, then zeros."""
    at = 0
    for x in lists:
        end = at + ints_of([x])
        if isinstance(x, tuple):
            for i, column in enumerate(x):
                into[at + i : end : 12] = column
        else:
            into[at:end] = x
        at = end
    into[at:] = 0
    return into


def flat(lists: Sequence) -> np.ndarray:
    return write(lists, np.empty(ints_of(lists), np.int32))


class Staging:
    """Pinned memory through which all plans of a device go up, one at a time, and a stream that carries them.

    The copy waits for no kernel, and the host for it alone: then the memory is free for the next. The stream has high
    priority: streams come from a pool, and one of the usual kind is more likely somebody else's as well.
    """

    def __init__(self, device):
        import torch

        self.device, self.turn = device, threading.Lock()
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.memory = torch.empty(0, dtype=torch.int32, device="cpu")

    def upload(self, lists: Sequence, size: int, floats: int) -> tuple:
        import torch

        with self.turn:
            if size > len(self.memory):
                room = 1 << (size - 1).bit_length()
                self.memory = torch.empty(room, dtype=torch.int32, device="cpu", pin_memory=True)
            write(lists, self.memory[:size].numpy())
            with torch.cuda.stream(self.stream):
                ints = self.memory[:size].to(self.device, non_blocking=True)
                partials = torch.empty(max(1, floats), dtype=torch.float32, device=self.device)
            self.stream.synchronize()
        return ints, partials


def _staging(device) -> Staging:
    with _first:  # a cache is no lock: of two that come first, each would get one of its own
        return _staging_of(device)


_first = threading.Lock()
_staging_of = cache(Staging)


def is_capturing(stream) -> bool:
    import torch

    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


# ---------------------------------------------------------------- the plan
@dataclass(eq=False)
class Plan:
    """One iteration's work, ready on the device: any number of layers may use it.

    It knows no stream: plan on one, run on any other. Runs follow each other, on whatever streams they are, since they
    share counters and workspace; two that should overlap need a plan each. It may be dropped while its kernel runs. A
    CUDA graph keeps no plan alive: keep the plan as long as the graph, capture it on one stream, and let no replay
    overlap another run of it. A plan is made for its lengths, so a graph serves no others.
    """

    batch: HybridBatch
    method: str
    device: object
    kernel: Kernel
    decide: Callable[..., Schedule]  # of a mask: decide(causal=True)
    allowed: Allowed = field(init=False)
    number: int = field(init=False)
    padding: object = field(init=False)  # rows of q that see no key and that the kernel leaves alone, if any
    _placed: dict[bool, Placed] = field(default_factory=dict, init=False)
    _operators: dict[tuple, Callable] = field(default_factory=dict, init=False)
    _placing: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self):
        self.masks = bool(self.batch.lens[0].max() > 1)  # a single query sees all keys under either mask
        self.allowed = Allowed(self.batch, self.device, self.kernel.check_layout)
        self.number = _enrol(self)
        self.placed()
        self.padding = _padding(self.batch, self.device) if self.kernel.leaves_padding else None

    def __repr__(self) -> str:
        b = self.batch
        heads = f"{b.num_q_heads}/{b.num_kv_heads} heads"
        return f"Plan({self.method!r}, {len(b.q_lens)} sequences, {heads}, {self.device})"

    def __reduce_ex__(self, protocol):
        raise TypeError("plan: got a copy, allowed is one of its own: pod.plan makes it anew")

    def schedule(self, causal: bool | None = None) -> Schedule:
        """Who computes what, in plain arrays."""
        return self.placed(causal).schedule

    def placed(self, causal: bool | None = None) -> Placed:
        """The same on the device. What belongs to the other mask is made when it is first asked for."""
        causal = (self.batch.causal if causal is None else causal) or not self.masks
        if causal not in self._placed:
            with self._placing if self.device.type == "cuda" else EMULATING:
                if causal not in self._placed:
                    self._placed[causal] = place(self.decide(causal=causal), self.kernel.lay_out, self.device)
        return self._placed[causal]

    def operator(self, trace: bool = False, causal: bool | None = None) -> Callable:
        causal = self.placed(causal).schedule.causal
        if (trace, causal) not in self._operators:
            kind = self.kernel.kind(self.schedule(causal), trace)
            self._operators[trace, causal] = build.operator(self.kernel.family, kind, self.device)
        return self._operators[trace, causal]

    def run(self, q, k_cache, v_cache, block_table=None, softmax_scale: float | None = None, causal: bool | None = None,
            return_lse: bool = False, trace: bool = False, out=None, sinks=None, kv_scales: tuple = ()):  # fmt: skip
        """Launch on the current stream, without any check. Returns out, then the log-sum-exp and the trace where asked
        for: see pod.hybrid_attention. kv_scales: of K and V, where they have 8 bits."""
        work, operator = self.placed(causal), self.operator(trace, causal)
        scale = self.batch.head_dim**-0.5 if softmax_scale is None else float(softmax_scale)
        tensors = (q, k_cache, v_cache, block_table, work.lists, work.counters, work.partials)
        softcap = float(self.batch.softcap or 0)
        with work.turn:
            if self.device.type == "cuda":
                work.follow(*([] if self.padding is None else [self.padding]))
            try:
                made, lse, rows = operator(*tensors, work.header, scale, softcap, sinks, return_lse, trace, out,
                                           *kv_scales)  # fmt: skip
            except RuntimeError:
                if self.device.type == "cpu":
                    work.counters.zero_()  # an emulated kernel may stop half-way
                raise
        out = made if out is None else out
        if self.padding is not None:
            out.index_fill_(0, self.padding, 0.0)
            if return_lse:
                lse.index_fill_(0, self.padding, -np.inf)
        if not (return_lse or trace):
            return out
        return out, *([lse] if return_lse else []), *([self.kernel.trace(rows)] if trace else [])


def _padding(batch: HybridBatch, device):
    if 0 not in batch.kv_lens:
        return None
    import torch

    q_lens, kv_lens = np.array(batch.q_lens), np.array(batch.kv_lens)
    rows = (np.cumsum(q_lens) - 1)[(kv_lens == 0) & (q_lens > 0)]
    if not len(rows) or device.type == "cpu":
        return torch.from_numpy(rows) if len(rows) else None
    return _staging(device).upload([rows.view(np.int32)], 2 * len(rows), 0)[0].view(torch.int64)


# ---------------------------------------------------------------- inside torch.compile
# The public call is one opaque operator there, torch.ops.pod.attention, told the plan by its number. A compiled model
# outlives the lengths of an iteration, so nothing about them may reach it: it sees tensors and a number.
SCHEMA = ("(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? block_table, SymInt plan, float? softmax_scale, "
          "bool? causal, bool return_lse, Tensor(a!)? out, Tensor? sinks=None, Tensor? k_scale=None, "
          "Tensor? v_scale=None) -> (Tensor, Tensor)")  # fmt: skip
_numbers, _plans = count(), WeakValueDictionary()


def is_compiling() -> bool:
    """Torch's own, from the first plan on: every layer asks, so it is looked up once."""
    return False


def _enrol(plan: Plan) -> int:
    """The number of a plan, for as long as it lives."""
    _operator()
    number = next(_numbers)
    _plans[number] = plan
    return number


def compiled(q, k_cache, v_cache, plan, block_table, softmax_scale, causal, return_lse, trace, out, sinks=None,
             k_scale=None, v_scale=None):  # fmt: skip
    """What a compiler sees of pod.hybrid_attention. Scales that are numbers become tensors, as the operator wants."""
    import torch

    if trace:
        raise ValueError("trace: got True inside torch.compile, allowed is False")
    numbers = (("k_scale", k_scale), ("v_scale", v_scale))
    scales = (x if x is None or isinstance(x, torch.Tensor) else scale_of(name, x, plan) for name, x in numbers)
    made, lse = torch.ops.pod.attention(q, k_cache, v_cache, block_table, plan.number, softmax_scale, causal,
                                        return_lse, out, sinks, *scales)  # fmt: skip
    made = made if out is None else out
    return (made, lse) if return_lse else made


@cache
def _operator():
    """Defined before any compiler looks: it could not follow that."""
    import torch

    global is_compiling
    is_compiling = torch.compiler.is_dynamo_compiling
    made = torch.library.custom_op("pod::attention", _run, mutates_args=("out",), schema=SCHEMA)
    made.register_fake(_fake)
    return made


def _run(q, k_cache, v_cache, block_table, plan, softmax_scale, causal, return_lse, out, sinks=None, k_scale=None,
         v_scale=None):  # fmt: skip
    if (found := _plans.get(plan)) is None:
        raise RuntimeError("plan: got one that is gone, allowed is one that is kept as long as what was compiled")
    found.allowed.check(q, k_cache, v_cache, block_table, softmax_scale, causal, out, sinks)
    scales = scales_of(k_scale, v_scale, found)
    made = found.run(q, k_cache, v_cache, block_table, softmax_scale, causal, return_lse, False, out, sinks, scales)
    made, lse = made if return_lse else (made, _no_lse(q))
    return made if out is None else q.new_empty(0), lse


def _fake(q, k_cache, v_cache, block_table, plan, softmax_scale, causal, return_lse, out, *rest):
    lse = _no_lse(q) if not return_lse else q.new_empty(q.shape[:2], dtype=_no_lse(q).dtype)
    return q.new_empty(q.shape) if out is None else q.new_empty(0), lse


def _no_lse(q):
    import torch

    return q.new_empty((0, q.shape[1]), dtype=torch.float32)
