"""The shapes of the models that the sources serve: what there is to compute, to read and to keep."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer. `gated` feed-forward layers have three matrices, the others two."""

    key: str
    name: str
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    tied: bool = False  # one matrix embeds and predicts
    dtype_bytes: int = 2
    context: int = 4096  # tokens that the model was trained for
    rope_base: float = 10000.0  # the slowest rotation of the positional embedding turns once in about so many tokens
    norm_eps: float = 1e-5
    rope_factors: tuple[float, ...] = ()  # by so much slower does each rotation turn, slowest last (Llama 3.1 on)

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the weight matrices of one layer: QKV, attention output, up (and gate), down."""
        q, kv = self.q_heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            (self.hidden, q + 2 * kv),
            (q, self.hidden),
            (self.hidden, self.ffn * (2 if self.gated else 1)),
            (self.ffn, self.hidden),
        )

    @property
    def layer_weights(self) -> int:
        return sum(rows * columns for rows, columns in self.matrices)

    @property
    def parameters(self) -> int:
        """Weights of the matrices and embeddings; norms and biases are too few to count."""
        return self.layers * self.layer_weights + (1 if self.tied else 2) * self.vocab * self.hidden

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    def check_parallel(self, tp: int, pp: int) -> None:
        if tp < 1 or self.kv_heads % tp:
            raise ValueError(f"tp: got {tp}, {self.name} allows divisors of its {self.kv_heads} KV heads")
        if pp < 1 or self.layers % pp:
            raise ValueError(f"pp: got {pp}, {self.name} allows divisors of its {self.layers} layers")


SHAPES: dict[str, Shape] = {
    s.key: s
    for s in (
        Shape("yi-6b", "Yi-6B", 32, 4096, 32, 4, 128, 11008, 64000, rope_base=5e6),
        Shape("llama-2-7b", "Llama-2-7B", 32, 4096, 32, 32, 128, 11008, 32000),
        Shape("llama-3-8b", "Llama-3-8B", 32, 4096, 32, 8, 128, 14336, 128256, context=8192, rope_base=5e5),
        Shape("llama-2-70b", "Llama-2-70B", 80, 8192, 64, 8, 128, 28672, 32000),
        Shape("llama-3-70b", "Llama-3-70B", 80, 8192, 64, 8, 128, 28672, 128256, context=8192, rope_base=5e5),
        Shape("llama-13b", "LLaMA-13B", 40, 5120, 40, 40, 128, 13824, 32000),
        Shape("phi-3-medium", "Phi-3-Medium", 40, 5120, 40, 10, 128, 17920, 32064),
        Shape("gpt-3-175b", "GPT-3-175B", 96, 12288, 96, 96, 128, 49152, 50257, gated=False, tied=True),
    )
}


def shape(key: str) -> Shape:
    if key not in SHAPES:
        raise ValueError(f"model: got {key!r}, allowed are {', '.join(SHAPES)}")
    return SHAPES[key]
