"""One iteration of a host, and who computes its attention: planned once, then called in every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

import pod
from pod.kernels import sm90
from pod.serving.backends import Sdpa


@dataclass(frozen=True)
class Step:
    """The same for all layers: lengths on the host, and the block table on the device."""

    q_lens: np.ndarray
    kv_lens: np.ndarray
    table: object = None  # without one, each sequence is a row of the cache


class Kernel:
    """pod.hybrid_attention by one method. Bound to a step it is a call of each layer: (q, k, v, scale) -> out; with
    rules of scores (window, softcap, sinks) of each that has the same, and it takes the layer's sinks."""

    def __init__(self, method: str = "auto"):
        self.method = method

    def build(self, *shape) -> None:
        pod.build(*shape, self.method)

    def bind(self, step: Step, *shape, **rules) -> Callable:
        plan = pod.plan(step.q_lens, step.kv_lens, *shape, self.method, **rules)
        return lambda q, k, v, scale, **more: pod.hybrid_attention(q, k, v, plan, step.table, scale, **more)

    def can_fix(self, device) -> bool:
        return self.method in ("auto", "hopper") and sm90.available(device)

    def fix(self, tokens: int, table, *shape) -> Fixed:
        return Fixed(tokens, table, *shape)


class Fixed:
    """The same for steps whose lengths the GPU knows, at addresses that stay, as CUDA graphs need them. All layers get
    the same memory back; rows of padding keep zeros or what an earlier step left there, and so are finite."""

    def __init__(self, tokens: int, table, *shape):
        heads, _, head_dim, page_size, dtype, _ = shape
        sequences, pages = table.shape
        self.work, self.table = pod.workspace(tokens, sequences, pages * page_size, *shape), table
        self.out = torch.zeros(tokens, heads, head_dim, dtype=dtype, device=table.device)

    def update(self, q_lens, kv_lens) -> None:
        self.work.update(q_lens, kv_lens)

    def __call__(self, q, k, v, scale):
        return pod.hybrid_attention(q, k, v, self.work, self.table, scale, out=self.out)


class Reference:
    """torch's own attention from the same pages, sequence by sequence, in any dtype."""

    def build(self, *shape) -> None:
        """There is nothing to build."""

    def bind(self, step: Step, *shape) -> Callable:
        sdpa = Sdpa()
        sdpa.plan(step, step)
        return lambda q, k, v, scale: sdpa.run(q * (scale * q.shape[-1] ** 0.5), k, v)


BEST, REFERENCE = Kernel(), Reference()


def best(device):
    """Who computes on this device unless a name is given."""
    return REFERENCE if device.type == "cpu" else BEST


def shape_of(q, k, page_size: int | None = None) -> tuple:
    """As pod.plan and pod.build take it."""
    return q.shape[-2], k.shape[-2], q.shape[-1], page_size, q.dtype, q.device
