"""What the table of models says is what the library does, and its numbers are those used elsewhere."""

from dataclasses import dataclass, fields

import pytest

from pod.batch import MODELS, HybridBatch
from pod.lab import models
from pod.simulate import mixes

TABLE = models.table().set_index("model")
KNOWN = {field.name for field in fields(HybridBatch)}


def test_every_model_is_there_once_with_its_source():
    df = models.load()
    assert len(df) == df.model.nunique() == len(TABLE) >= 50
    assert df.config.str.fullmatch(r"[\w-]+/[\w.-]+").all() and (df.q_heads % df.kv_heads == 0).all()
    assert set(df.layers) <= {"", "all", "1 of 2", "3 of 4", "5 of 6"}


def test_plain_attention_of_64_and_128_runs_everywhere():
    for name in ("Llama-3-8B", "Qwen2.5-0.5B", "Mixtral-8x22B", "Falcon-7B", "Command-R"):
        assert TABLE.loc[name, "asks for"] == "" and (TABLE.loc[name, list(models.WAYS)] == models.RUNS).all()


@pytest.mark.parametrize("name, head_dim", [("Phi-3-mini", 96), ("DeepSeek-V3, absorbed", 576), ("Gemma-2-9B", 256)])
def test_other_head_dimensions_are_refused_by_the_batch(name, head_dim):
    assert all(f"head_dim: got {head_dim}, allowed" in TABLE.loc[name, way] for way in models.WAYS)


@pytest.mark.parametrize("rule, name", [("window", "Mistral-7B-v0.1"), ("softcap", "Gemma-2-27B"),
                                        ("sinks", "gpt-oss-20b"), ("chunk", "Llama-4-Scout")])  # fmt: skip
def test_a_rule_runs_once_batches_know_it(rule, name):
    wanted = models.asked(models.load().set_index("model").loc[name].to_dict())
    assert rule in wanted and (TABLE.loc[name, "Hopper"] == models.RUNS) == (set(wanted) <= KNOWN)
    if rule not in KNOWN:
        assert f"{rule}: got" in TABLE.loc[name, "other GPUs"]


def test_what_a_batch_learns_is_asked_of_it(monkeypatch):
    """Batches that know all rules, and a kernel without a kind for chunks."""

    @dataclass(frozen=True)
    class Knows(HybridBatch):
        window: int | None = None
        softcap: float | None = None
        sinks: bool = False
        chunk: int | None = None

    def kind_of(schedule):
        return next(iter(models.sm90.HOPPER.kinds)) if schedule.batch.chunk is None else "chunks"

    monkeypatch.setattr(models, "HybridBatch", Knows)
    monkeypatch.setattr(models.sm90, "kind_of", kind_of)
    verdicts = models.table().set_index("model").Hopper
    assert (verdicts[["gpt-oss-20b", "Gemma-2-27B", "Mistral-7B-v0.1"]] == models.RUNS).all()
    assert verdicts["Llama-4-Scout"] == "kind: got chunks, allowed are those of the Hopper kernel"
    assert "256" in verdicts["Gemma-3-12B"] and "96" in verdicts["Phi-3-mini"]


def test_words_say_what_is_asked_for():
    words = TABLE["asks for"]
    assert words["Gemma-2-27B"] == "window 4,096 in 1 of 2 layers, softcap 50"
    assert words["gpt-oss-20b"] == "window 128 in 1 of 2 layers, sinks" and words["Mistral-7B-v0.1"] == "window 4,096"


def test_layers_that_differ_are_each_asked_for():
    gemma, mistral = ({"layers": layers, "window": 4096, "softcap": cap, "sinks": False, "chunk": None}
                      for layers, cap in (("1 of 2", 50), ("all", None)))  # fmt: skip
    assert models.kinds(gemma) == [{"softcap": 50}, {"window": 4096, "softcap": 50}]
    assert models.kinds(mistral) == [{"window": 4096}]


def test_heads_are_those_of_the_drawn_batches_and_of_the_paper():
    df = models.load().set_index("model")
    known = {m.name: m for m in (*mixes.MODELS, *MODELS.values())}
    both = sorted(set(known) & set(df.index))
    assert len(both) >= 12
    for name in both:
        shape = (known[name].num_q_heads, known[name].num_kv_heads, known[name].head_dim)
        assert tuple(df.loc[name, ["q_heads", "kv_heads", "head_dim"]]) == shape, name
