"""What the plans of all kernel families share: the two sides of a batch, and work lists that lie on the device.

A plan keeps its own counters and workspace, so a run allocates nothing but its results, and two streams that run at
once need two plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pod.batch import HybridBatch


@dataclass
class Lists:
    """One iteration's work, on the device; `shape` tells the operator where each list begins."""

    lists: object  # int32: the prefill work, the decode work, the decode pieces, and what else the family needs
    counters: object  # int32, zero between launches
    partials: object  # float32, the pieces' results until they are merged
    shape: list[int]


@dataclass
class WorkPlan:
    """One iteration's work for `sms` SMs of a device. A family says in `make` what the lists are."""

    batch: HybridBatch
    device: object
    sms: int
    _lists: dict[bool, Lists] = field(default_factory=dict, init=False, repr=False)

    def lists(self, causal: bool) -> Lists:
        """The work lists; those of the other mask are made when they are first asked for."""
        if causal not in self._lists:
            self._lists[causal] = self.make(causal)
        return self._lists[causal]

    def make(self, causal: bool) -> Lists:
        raise NotImplementedError

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
        """`lists` one after the other, zeroed counters and room for partial results, on the device, without waiting."""
        import torch

        flat = torch.from_numpy(np.concatenate([np.ravel(x) for x in lists]).astype(np.int32))
        if self.device.type == "cuda":
            flat = flat.pin_memory().to(self.device, non_blocking=True)
        zeros = torch.zeros(counters, dtype=torch.int32, device=self.device)
        return flat, zeros, torch.empty(max(1, floats), dtype=torch.float32, device=self.device)

    def scale(self, softmax_scale: float | None) -> float:
        return self.batch.head_dim**-0.5 if softmax_scale is None else softmax_scale

    def launch(self, operator, q, k_cache, v_cache, block_table, softmax_scale: float | None, causal: bool, *options):
        """Launch a family's operator on the current stream, and return what it returns."""
        work = self.lists(causal)
        tensors = (q, k_cache, v_cache, block_table, work.lists, work.counters, work.partials)
        try:
            return operator(*tensors, work.shape, self.scale(softmax_scale), *options)
        except RuntimeError:
            if self.device.type == "cpu":
                work.counters.zero_()  # an emulated kernel may stop half-way
            raise


def results(out, *extras):
    """`out`, or a tuple of it and the extras that were asked for, each given as (tensor, whether it was)."""
    chosen = [x for x, wanted in extras if wanted]
    return (out, *chosen) if chosen else out
