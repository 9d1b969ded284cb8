"""The shape of a model, by its key or by the config.json that Hugging Face keeps beside its weights."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from pod.files import state
from pod.serving.shapes import SHAPES, Shape

FIELDS = {"layers": "num_hidden_layers", "hidden": "hidden_size", "q_heads": "num_attention_heads",
          "ffn": "intermediate_size", "vocab": "vocab_size"}  # fmt: skip
# What would be costed wrongly: experts, compressed keys and values, layers that see a part of the tokens, no keys at
# all or those of a picture, weights of fewer bytes
UNLIKE = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size", "kv_lora_rank",
          "attention_chunk_size", "full_attention_interval", "attn_layer_period", "mamba_d_state", "ssm_state_size",
          "hybrid_override_pattern", "layers_block_type", "block_types", "cross_attention_layers",
          "quantization_config")  # fmt: skip
LARGEST = 10**9  # of these sizes
# model_type: feed-forward of two matrices
UNGATED = ("apertus", "arcee", "gpt_neox", "nemotron", "persimmon", "phi", "starcoder2")


def shape_of(key: str) -> Shape:
    if key in SHAPES:
        return SHAPES[key]
    path = Path(key) / "config.json" if Path(key).is_dir() else Path(key)
    if path.is_file():
        return of_config(state(path))
    raise ValueError(f"model: got {key!r}, allowed are {', '.join(SHAPES)}, or the config.json of a Llama-shaped one")


@cache  # it hangs on the file as it is, see pod.files.state
def of_config(file: tuple[Path, int, int]) -> Shape:
    """Dense, with full attention in all layers, of two bytes a weight. Of a model that also sees pictures, the part
    that writes."""
    path = str(file[0])
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except (ValueError, RecursionError) as wrong:  # the latter: a thousand brackets
        raise ValueError(f"{path}: got no JSON, but {wrong}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: got no JSON object, allowed is the config.json of a model")
    if isinstance(written := config.get("text_config"), dict) and FIELDS["layers"] not in config:
        config = config | written
    _refuse_others(path, config)
    sizes = {name: _count(path, config, field) for name, field in FIELDS.items()}
    kv_heads = _count(path, config, "num_key_value_heads", sizes["q_heads"])
    if sizes["q_heads"] % kv_heads:
        raise ValueError(f"{path}, num_key_value_heads: got {kv_heads}, allowed are divisors of {sizes['q_heads']}")
    if config.get("head_dim") is None and sizes["hidden"] % sizes["q_heads"]:
        raise ValueError(f"{path}, hidden_size: got {sizes['hidden']}, allowed are multiples of num_attention_heads = "
                         f"{sizes['q_heads']}, or any beside a head_dim")  # fmt: skip
    head_dim = _count(path, config, "head_dim", sizes["hidden"] // sizes["q_heads"])
    return Shape(path, Path(path).resolve().parent.name, kv_heads=kv_heads, head_dim=head_dim,
                 gated=config.get("model_type") not in UNGATED, tied=bool(config.get("tie_word_embeddings")),
                 **sizes)  # fmt: skip


def _refuse_others(path: str, config: dict) -> None:
    unlike = [field for field in UNLIKE if config.get(field)]
    kinds = config.get("layer_types") or []
    unlike += ["layer_types"] if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds) else []
    unlike += ["sliding_window"] if config.get("sliding_window") and config.get("use_sliding_window", True) else []
    if unlike:
        raise ValueError(f"{path}: got {unlike[0]}, allowed are dense models with full attention in all layers "
                         "and weights of two bytes")  # fmt: skip


def _count(path: str, config: dict, field: str, default: int | None = None) -> int:
    value = default if config.get(field) is None else config[field]
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise ValueError(f"{path}, {field}: got {repr(value)[:40]}, allowed are integers from 1 to {LARGEST}")
    return value
