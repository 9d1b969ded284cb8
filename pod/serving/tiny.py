"""A tiny model with random weights in a GGUF file: a server, its clients and the reader of files can be tried without
any download. It has learnt nothing, so it babbles, in the words of this house."""

from pathlib import Path

import numpy as np

from pod.serving.model_file import BYTES, CONTROL, LAYER, TOP
from pod.serving.shapes import Shape

WORDS = (" page tile warp wave token batch chunk query key value head cache block thread kernel prompt answer softmax "
         "ring barrier lane queue clock budget").replace(" ", " Ġ").split()  # fmt: skip
MERGES = list(dict.fromkeys(f"{word[:i]} {word[i]}" for word in WORDS for i in range(1, len(word))))  # from the left
PARTS = [part for part in (merge.replace(" ", "") for merge in MERGES) if part not in WORDS]
ENDS = ["<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPE = Shape("tiny", "Tiny", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96,
              vocab=len(ENDS + PARTS + WORDS) + len(BYTES), context=512)  # fmt: skip
FIELDS = {
    "llama.block_count": SHAPE.layers, "llama.embedding_length": SHAPE.hidden,
    "llama.feed_forward_length": SHAPE.ffn, "llama.context_length": SHAPE.context, "llama.vocab_size": SHAPE.vocab,
    "llama.attention.head_count": SHAPE.q_heads, "llama.attention.head_count_kv": SHAPE.kv_heads,
    "llama.attention.layer_norm_rms_epsilon": SHAPE.norm_eps, "llama.rope.freq_base": SHAPE.rope_base,
    "llama.rope.dimension_count": SHAPE.head_dim,
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*ENDS, *BYTES, *PARTS, *WORDS],
    "tokenizer.ggml.token_type": [CONTROL] * len(ENDS) + [1] * (SHAPE.vocab - len(ENDS)),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1, "tokenizer.chat_template": CHAT,
}  # fmt: skip


def tensors(seed: int) -> dict[str, np.ndarray]:
    """Normal weights by the names of the format. Only whole words are ever likely."""
    random, s = np.random.default_rng(seed), SHAPE
    q, kv = s.q_heads * s.head_dim, s.kv_heads * s.head_dim
    sizes = {"q": (q, s.hidden), "k": (kv, s.hidden), "v": (kv, s.hidden), "o": (s.hidden, q),
             "gate": (s.ffn, s.hidden), "up": (s.ffn, s.hidden), "down": (s.hidden, s.ffn),
             "attention_norm": (s.hidden,), "ffn_norm": (s.hidden,)}  # fmt: skip
    names = {TOP["embed"]: (s.vocab, s.hidden), TOP["head"]: (s.vocab, s.hidden), TOP["norm"]: (s.hidden,)}
    names |= {f"blk.{i}.{LAYER[kind]}": size for i in range(s.layers) for kind, size in sizes.items()}
    made = {f"{name}.weight": _draw(random, size) for name, size in names.items()}
    made["output.weight"] *= 4  # it is sure of what it says
    made["output.weight"][: -len(WORDS)] = 0
    return made


def _draw(random: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    if len(size) == 1:
        return np.ones(size, np.float32)
    return (random.standard_normal(size) * size[-1] ** -0.5 * 1.5).astype(np.float32)


def write(path: Path | str, seed: int = 0, fields: dict | None = None, more: dict | None = None,
          architecture: str = "llama") -> Path:  # fmt: skip
    """`fields` replace or add to those of the file; None takes one away. `more` are tensors beside the model's."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    for name, value in (FIELDS | (fields or {})).items():
        _add(writer, name, value)
    for name, tensor in (tensors(seed) | (more or {})).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def _add(writer, name: str, value) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
             list: writer.add_array}  # fmt: skip
    if value is not None:
        kinds[type(value)](name, value)
