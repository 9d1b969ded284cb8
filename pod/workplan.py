"""What the plans of all kernel families share: the two sides of a batch, and work lists that lie on the device.

A plan keeps its own counters and workspace, so a run allocates nothing but its results, and runs of one plan follow
each other, whatever streams they are on.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from pod.batch import HybridBatch

LINE = 32  # int32s of a cache line
MOST = (1 << 31) - 1


@dataclass
class Lists:
    """One iteration's work, on the device; `shape` tells the operator where each list begins."""

    lists: object  # int32: the prefill work, the decode work, the decode pieces, and what else the family needs
    counters: object  # int32, zero between launches
    partials: object  # float32, the pieces' results until they are merged
    shape: list[int]
    stream: object = field(default=None, init=False, repr=False)  # of the latest run outside a graph
    turn: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def follow(self) -> None:
        """Let the current stream wait for the latest run: it uses the same counters and workspace. The allocator is
        told of the stream as well, so that a plan may be dropped while its kernel runs. A capture waits for nothing
        outside of it, and nothing outside for a stream that captures by now."""
        import torch

        stream = torch.cuda.current_stream(self.lists.device)
        if stream == self.stream or _is_capturing(stream):
            return
        if self.stream is not None and not _is_capturing(self.stream):
            stream.wait_stream(self.stream)
        for x in (self.lists, self.counters, self.partials):
            x.record_stream(stream)
        self.stream = stream


@dataclass
class WorkPlan:
    """One iteration's work for `sms` SMs of a device. A family says in `make` what the lists are."""

    batch: HybridBatch
    device: object
    sms: int
    _lists: dict[bool, Lists] = field(default_factory=dict, init=False, repr=False)
    _making: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def lists(self, causal: bool) -> Lists:
        """The work lists; those of the other mask are made when they are first asked for."""
        if causal not in self._lists:
            with self._making:
                if causal not in self._lists:
                    self._lists[causal] = self.make(causal)
        return self._lists[causal]

    def make(self, causal: bool) -> Lists:
        raise NotImplementedError

    def check_layout(self, q, k_cache, table) -> None:
        """Refuse strides that the kernels cannot follow, beyond what no method could. The sm_80 family keeps them in 32
        bits, and multiplies them by as much: a register is dear there. Pages and tokens of q are counted in 64."""
        heads = max(16, q.shape[1]), k_cache.shape[2]
        for name, x, dim, times in (("q", q, 0, 16), ("q", q, 1, heads[0]), ("k_cache", k_cache, 1, 16),
                                    ("k_cache", k_cache, 2, heads[1]), ("block_table", table, 0, 1)):  # fmt: skip
            if x is not None and x.shape[dim] > 1 and x.stride(dim) * times > MOST:
                raise ValueError(f"{name}: got a stride of {x.stride(dim)} elements, allowed are up to {MOST // times}")

    @property
    def heads(self) -> tuple[int, int]:
        return self.batch.num_q_heads, self.batch.num_kv_heads

    @property
    def prefill(self) -> tuple:
        """Of the chunks: first token, q_len, kv_len, sequence; then the query and KV heads."""
        starts, q_lens, kv_lens = self._tokens
        chunks = np.flatnonzero(q_lens > 1)
        return starts[chunks], q_lens[chunks], kv_lens[chunks], chunks, *self.heads

    @property
    def decode(self) -> tuple:
        """Of the single tokens: token, kv_len, sequence; then the query and KV heads."""
        starts, q_lens, kv_lens = self._tokens
        singles = np.flatnonzero(q_lens == 1)
        return starts[singles], kv_lens[singles], singles, *self.heads

    @property
    def _tokens(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q_lens, kv_lens = np.array(self.batch.q_lens), np.array(self.batch.kv_lens)
        return np.cumsum(q_lens) - q_lens, q_lens, kv_lens

    def place(self, *lists, counters: int, floats: int) -> tuple:
        """`lists` one after the other, zeroed counters and room for partial results, on the device.

        They are there when this returns, so any stream may use them, a captured one as well. The copy has a stream of
        its own: it waits for no kernel, and the host waits for it alone, some 40 microseconds on an H200.
        """
        import torch

        ends = np.cumsum([np.size(x) for x in lists])
        sizes = (-(-ends[-1] // LINE) * LINE, counters)  # whoever counts owns the line: counters have their own
        flat = np.zeros(sum(sizes), np.int32)
        for end, part in zip(ends, lists, strict=True):
            flat[end - np.size(part) : end] = np.ravel(part)
        flat = torch.from_numpy(flat)
        if self.device.type == "cpu":
            return *flat.split(sizes), torch.empty(max(1, floats))
        if _is_capturing(torch.cuda.current_stream(self.device)):
            raise RuntimeError("plan: got a stream that captures a CUDA graph, allowed are a plan made before the "
                               "capture and a mask (causal) that it has run with before")  # fmt: skip
        uploads = _uploads(self.device)
        with torch.cuda.stream(uploads):
            flat = flat.pin_memory().to(self.device, non_blocking=True)
            partials = torch.empty(max(1, floats), device=self.device)
        uploads.synchronize()
        return *flat.split(sizes), partials

    def scale(self, softmax_scale: float | None) -> float:
        return self.batch.head_dim**-0.5 if softmax_scale is None else softmax_scale

    def launch(self, operator, q, k_cache, v_cache, block_table, softmax_scale: float | None, causal: bool, *options):
        """Launch a family's operator on the current stream, and return what it returns."""
        work = self.lists(causal)
        tensors = (q, k_cache, v_cache, block_table, work.lists, work.counters, work.partials)
        with work.turn:
            if self.device.type == "cuda":
                work.follow()
            try:
                return operator(*tensors, work.shape, self.scale(softmax_scale), *options)
            except RuntimeError:
                if self.device.type == "cpu":
                    work.counters.zero_()  # an emulated kernel may stop half-way
                raise


def _uploads(device):
    with _first:  # a cache is no lock: of two that come first, each would get a stream of its own
        return _stream(device)


_first = threading.Lock()


@cache
def _stream(device):
    """Of high priority: streams come from a pool, and one of the usual kind is more likely somebody else's as well."""
    import torch

    return torch.cuda.Stream(device, priority=-1)


def _is_capturing(stream) -> bool:
    import torch

    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


def results(out, *extras):
    """`out`, or a tuple of it and the extras that were asked for, each given as (tensor, whether it was)."""
    chosen = [x for x, wanted in extras if wanted]
    return (out, *chosen) if chosen else out
