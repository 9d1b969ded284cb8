"""A decoder of the Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Everything but attention treats each token alone, so a batch is one list of tokens, whoever they belong to. Attention is
handed in: it reads the paged cache, into which `before` has written the new keys and values.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from pod.serving.shapes import Shape

# A source of weights: full tensors by name, [outputs, inputs] as torch keeps them.
Weights = Callable[[str, tuple[int, ...]], object]
SPLIT = {"q": 0, "k": 0, "v": 0, "o": 1, "gate": 0, "up": 0, "down": 1, "head": 0}  # the dimension that GPUs share


@dataclass(frozen=True)
class Group:
    """The processes that share every layer, one GPU each. Alone unless torch.distributed says otherwise."""

    rank: int = 0
    size: int = 1

    def part(self, tensor, dim: int):
        """This process's share of a full tensor."""
        return tensor.chunk(self.size, dim)[self.rank]

    def sum(self, x):
        """All-reduce: each process computed a part of every sum."""
        if self.size > 1:
            import torch.distributed as dist

            dist.all_reduce(x)
        return x

    def join(self, x):
        """All-gather along the last dimension."""
        if self.size == 1:
            return x
        import torch
        import torch.distributed as dist

        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)


def random_weights(seed: int, layers: int, device="cpu") -> Weights:
    """Normal weights that keep activations of order one. A tensor depends on seed and name alone, so every process
    draws the same full tensor before it takes its share."""
    import torch

    def draw(name: str, size: tuple[int, ...]):
        kind = name.rpartition(".")[2]
        if kind.endswith("norm"):
            return torch.ones(size, device=device)
        random = torch.Generator(device).manual_seed(seed + zlib.crc32(name.encode()))
        scale = 1.0 if kind == "embed" else size[-1] ** -0.5
        if kind in ("o", "down"):
            scale *= (2 * layers) ** -0.5  # 2 L of them add up in the residual
        return torch.randn(size, generator=random, device=device) * scale

    return draw


@dataclass(frozen=True)
class Layer:
    """Matrices that meet the same input are one: QKV, and gate with up."""

    attention_norm: object  # [hidden]
    qkv: object  # [(q_heads + 2 kv_heads) * head_dim, hidden]
    o: object  # [hidden, q_heads * head_dim]
    ffn_norm: object  # [hidden]
    gate_up: object  # [2 * ffn, hidden]
    down: object  # [hidden, ffn]


class Llama:
    """The weights of one process and the four pieces of a forward pass. No state but the weights."""

    def __init__(self, shape: Shape, weights: Weights, device="cpu", dtype=None, group: Group | None = None,
                 context: int | None = None):  # fmt: skip
        import torch

        self.shape, self.group, self.device = shape, group or Group(), torch.device(device)
        self.dtype, self.context = dtype or torch.float32, context or shape.context
        shape.check_parallel(self.group.size, 1)
        if not shape.gated:
            raise ValueError(f"shape: got {shape.name}, allowed are models of the Llama family (gated feed-forward)")
        if shape.vocab % self.group.size or shape.ffn % self.group.size:
            raise ValueError(f"tp: got {self.group.size}, allowed are divisors of the vocabulary, {shape.vocab}, and "
                             f"of the feed-forward size, {shape.ffn}")  # fmt: skip
        self.q_heads, self.kv_heads = shape.q_heads // self.group.size, shape.kv_heads // self.group.size
        self.embedding = self._load(weights, "embed", (shape.vocab, shape.hidden))
        self.layers = [self._layer(weights, i) for i in range(shape.layers)]
        self.norm = self._load(weights, "norm", (shape.hidden,))
        head = "embed" if shape.tied else "head"
        self.head = self._share(self._load(weights, head, (shape.vocab, shape.hidden)), "head")
        self.cos, self.sin = self._rotations()

    def _load(self, weights: Weights, name: str, size: tuple[int, ...]):
        tensor = weights(name, size)
        if tuple(tensor.shape) != size:
            raise ValueError(f"weights: got {name} of shape {tuple(tensor.shape)}, {self.shape.name} has {size}")
        return tensor.to(self.device, self.dtype)

    def _share(self, tensor, kind: str):
        return self.group.part(tensor, SPLIT[kind]).contiguous()

    def _layer(self, weights: Weights, i: int) -> Layer:
        import torch

        s = self.shape
        q, kv = s.q_heads * s.head_dim, s.kv_heads * s.head_dim
        sizes = {"q": (q, s.hidden), "k": (kv, s.hidden), "v": (kv, s.hidden), "o": (s.hidden, q),
                 "gate": (s.ffn, s.hidden), "up": (s.ffn, s.hidden), "down": (s.hidden, s.ffn)}  # fmt: skip
        w = {kind: self._share(self._load(weights, f"layers.{i}.{kind}", size), kind) for kind, size in sizes.items()}
        norms = [self._load(weights, f"layers.{i}.{kind}_norm", (s.hidden,)) for kind in ("attention", "ffn")]
        qkv, gate_up = torch.cat([w["q"], w["k"], w["v"]]), torch.cat([w["gate"], w["up"]])
        return Layer(norms[0], qkv, w["o"], norms[1], gate_up, w["down"])

    def _rotations(self):
        """cos and sin [context, 1, head_dim] of the angle by which each pair (d, d + head_dim / 2) turns."""
        import torch

        half = torch.arange(0, self.shape.head_dim, 2, device=self.device).float() / self.shape.head_dim
        turns = self.shape.rope_base**-half / torch.tensor(self.shape.rope_factors or 1.0, device=self.device)
        angles = torch.outer(torch.arange(self.context, device=self.device).float(), turns)
        angles = torch.cat([angles, angles], -1)[:, None]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def embed(self, tokens):
        """tokens [n] -> x [n, hidden]"""
        return self.embedding[tokens]

    def project(self, i: int, x, positions):
        """x [n, hidden] -> q [n, q_heads, head_dim], k and v [n, kv_heads, head_dim], rotated; views of wider rows."""
        layer, s = self.layers[i], self.shape
        qkv = _linear(self._normed(x, layer.attention_norm), layer.qkv).view(len(x), -1, s.head_dim)
        qk, v = qkv.split((self.q_heads + self.kv_heads, self.kv_heads), 1)
        q, k = self._rotated(qk, positions).split((self.q_heads, self.kv_heads), 1)
        return q, k, v

    def before(self, i: int, x, positions, slots, k_cache, v_cache):
        """Up to attention: x [n, hidden] -> q [n, q_heads, head_dim]. Keys and values go to their slots."""
        q, k, v = self.project(i, x, positions)
        for cache, new in ((k_cache, k), (v_cache, v)):
            cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, new)
        return q.contiguous()

    def after(self, i: int, x, attended):
        """From attention on: attended [n, q_heads, head_dim] and the residual x [n, hidden] -> x [n, hidden]"""
        import torch

        layer = self.layers[i]
        x = x + self.group.sum(_linear(attended.flatten(1), layer.o))
        gate, up = _linear(self._normed(x, layer.ffn_norm), layer.gate_up).chunk(2, -1)
        return x + self.group.sum(_linear(torch.nn.functional.silu(gate) * up, layer.down))

    def logits(self, x):
        """x [n, hidden] -> [n, vocab]. Only for the rows after which a token comes out: the matrix is wide."""
        return self.group.join(_linear(self._normed(x, self.norm), self.head))

    def forward(self, step, cache, attend):
        """Logits of the rows that predict. `attend(q, k_cache, v_cache)` computes the attention of one layer."""
        x, slots = self.embed(step.tokens), step.slots.long()
        for i, (k_cache, v_cache) in enumerate(cache):
            q = self.before(i, x, step.positions, slots, k_cache, v_cache)
            x = self.after(i, x, attend(q, k_cache, v_cache))
        return self.logits(x[step.rows])

    def _normed(self, x, weight):
        import torch

        return torch.nn.functional.rms_norm(x, (self.shape.hidden,), weight, self.shape.norm_eps)

    def _rotated(self, x, positions):
        import torch

        first, second = x.chunk(2, -1)
        return x * self.cos[positions] + torch.cat([-second, first], -1) * self.sin[positions]


def _linear(x, weight):
    import torch

    return torch.nn.functional.linear(x, weight)
