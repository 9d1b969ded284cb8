"""A model that nobody listed: its shape from the config.json beside its weights, or one line that says why not."""

import json

import pytest

from pod.__main__ import main
from pod.serving.shapes import SHAPES
from pod.simulate.models import shape_of
from pod.simulate.run import Setup

LLAMA = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
QWEN = {**LLAMA, "sliding_window": 131072, "use_sliding_window": False, "layer_types": ["full_attention"] * 32}


def written(tmp_path, config) -> str:
    path = tmp_path / "Meta-Llama" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("config", [LLAMA, QWEN, {**LLAMA, "head_dim": 128}, "\ufeff" + json.dumps(LLAMA)])
def test_a_config_is_costed_as_the_listed_model(config, tmp_path):
    ours, listed = (Setup(model=key) for key in (written(tmp_path, config), "llama-3-8b"))
    assert ours.cost().shape.name == "Meta-Llama" and ours.num_blocks() == listed.num_blocks()
    assert ours.cost().linear(512) == listed.cost().linear(512)
    assert ours.cost().decode(64, 64 * 4096) == listed.cost().decode(64, 64 * 4096)


def test_what_a_config_leaves_out_follows_from_the_rest(tmp_path):
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    shape = shape_of(written(tmp_path, {**config, "tie_word_embeddings": True}))
    assert (shape.kv_heads, shape.head_dim, shape.tied) == (32, 128, True)


def test_a_config_that_was_written_anew_is_read_anew(tmp_path):
    """In one session of Python it stayed the model that it had been."""
    # each file of another size, for a clock may stand
    layers = [shape_of(written(tmp_path, {**LLAMA, "num_hidden_layers": n})).layers for n in (8, 32, 100)]
    assert layers == [8, 32, 100]


def test_the_folder_of_a_config_and_the_half_that_writes_of_one_that_sees_will_do(tmp_path):
    path = written(tmp_path, {"text_config": LLAMA, "vision_config": {"hidden_size": 1024}})
    listed = SHAPES["llama-3-8b"]
    found = shape_of(path.removesuffix("config.json"))
    assert found == shape_of(path) and found.layer_weights == listed.layer_weights
    assert found.parameters == listed.parameters and found.kv_bytes_per_token == listed.kv_bytes_per_token


def test_a_model_so_small_that_memory_holds_too_many_blocks_is_told_with_its_options(tmp_path, refused):
    tiny = {**LLAMA, "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1}
    model = ["simulate", "--requests", "3", "--model", written(tmp_path, {**tiny, "vocab_size": 10})]
    assert "block_size: got 16, of which the memory holds 1" in refused(*model)
    assert main([*model, "--blocks", "9000"]) == 0


def test_attention_with_heads_that_nobody_timed_is_called_a_guess(tmp_path):
    """All profiles have heads of 128, and models of one's own may have others."""
    label = Setup(model=written(tmp_path, {**LLAMA, "head_dim": 64})).cost().label
    assert label == "analytical A100-80GB SXM, attention guessed from fa2-2024 on A100 with heads of 128"
    assert "guess" not in Setup().cost().label, "it has 128"


@pytest.mark.parametrize("kind", ["gpt_neox", "arcee", "apertus"])
def test_feed_forward_layers_of_two_matrices_are_not_costed_as_three(kind, tmp_path):
    """A config does not say it in a field of its own; its model_type does."""
    neox = shape_of(written(tmp_path, {**LLAMA, "model_type": kind, "num_key_value_heads": None}))
    assert not neox.gated and neox.layer_weights == 4 * 4096**2 + 2 * 4096 * 14336


@pytest.mark.parametrize(("config", "words"), [
    ("no", "config.json: got no JSON, but Expecting value"),
    ("[1]", "config.json: got no JSON object, allowed is the config.json of a model"),
    ({}, "config.json, num_hidden_layers: got None, allowed are integers from 1 to"),
    ({**LLAMA, "vocab_size": 10**400}, "allowed are integers from 1 to 1000000000"),
    ({**LLAMA, "hidden_size": "4096"}, "config.json, hidden_size: got '4096', allowed are integers from 1 to"),
    ({**LLAMA, "vocab_size": 0}, "config.json, vocab_size: got 0, allowed are integers from 1 to"),
    ({**LLAMA, "num_hidden_layers": True}, "config.json, num_hidden_layers: got True, allowed are integers"),
    ({**LLAMA, "num_key_value_heads": 5}, "config.json, num_key_value_heads: got 5, allowed are divisors of 32"),
    ({**LLAMA, "num_local_experts": 8}, "config.json: got num_local_experts, allowed are dense models"),
    ({**LLAMA, "sliding_window": 4096}, "config.json: got sliding_window, allowed are dense models"),
    ({**LLAMA, "layer_types": ["sliding_attention"]}, "config.json: got layer_types, allowed are dense models"),
    ({**LLAMA, "layer_types": 32}, "config.json: got layer_types, allowed are dense models"),
    ({**LLAMA, "layer_types": [{}]}, "config.json: got layer_types, allowed are dense models"),
    ({**LLAMA, "mamba_d_state": 16}, "config.json: got mamba_d_state, allowed are dense models"),
    ({**LLAMA, "hybrid_override_pattern": "M-M*"}, "config.json: got hybrid_override_pattern, allowed are dense"),
    ({"text_config": {**LLAMA, "cross_attention_layers": [3]}}, "config.json: got cross_attention_layers, allowed"),
    ("[" * 100_000, "config.json: got no JSON, but "),
    ({**LLAMA, "num_attention_heads": 40},
     "config.json, hidden_size: got 4096, allowed are multiples of num_attention_heads = 40, or any beside a"),
    (
        {**LLAMA, "quantization_config": {"quant_method": "fp8"}},
        "config.json: got quantization_config, allowed are dense models with full attention in all layers and "
        "weights of two bytes",
    ),
    ({"text_config": {**LLAMA, "sliding_window": 1024}}, "config.json: got sliding_window, allowed are dense"),
])  # fmt: skip
def test_what_would_be_costed_wrongly_is_one_line(config, words, tmp_path, refused):
    assert words in refused("simulate", "--model", written(tmp_path, config), "--requests", "3")


def test_an_unknown_model_is_named_with_all_that_are_known(refused):
    said = refused("simulate", "--model", "gpt-9", "--requests", "3")
    assert f"model: got 'gpt-9', allowed are {', '.join(SHAPES)}, or the config.json of a Llama-shaped one" in said
