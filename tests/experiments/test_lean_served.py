"""Whole answers under several cuts of the decode: a tiny model on the emulator, and FlashAttention-3 by a stand-in."""

import sys
from types import SimpleNamespace

import pytest

from pod import attention, kernels
from pod.batch import HybridBatch
from pod.experiments.lean import lean, phi3
from pod.experiments.lean import lean_served as page
from pod.serving.model import Llama, random_weights
from pod.serving.shapes import SHAPES, Shape

torch = pytest.importorskip("torch")
emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
TINY = Shape("tiny", "Tiny", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=64, ffn=96, vocab=96, context=256)
PROMPT = 40


def engine(ways):
    return page.ready(Llama(TINY, random_weights(3, 2), dtype=torch.bfloat16), ways, 64)


@pytest.fixture
def planned(monkeypatch):
    """What was asked of pod.plan, call by call: (tokens of each sequence, keys, method, splits)."""
    asked, plan = [], attention.plan

    def noted(q_lens, kv_lens, *rest, decode_splits="auto"):
        asked.append((q_lens, kv_lens, rest[-1], decode_splits))
        return plan(q_lens, kv_lens, *rest, decode_splits=decode_splits)

    monkeypatch.setattr(attention, "plan", noted)
    return asked


@emulated
def test_a_reading_is_a_whole_answer_of_each_way():
    ways = page.CUTS[:2]
    rows = page.served(engine(ways), PROMPT, ways, 2)
    assert set(rows) == {(way, i) for way in ways for i in (0, 1)}
    for row in rows.values():
        assert (row["outputs"], row["steps"]) == (PROMPT // phi3.RATIO, PROMPT // phi3.RATIO - 1)
        assert row["step_ms_p10"] <= row["step_ms"] <= row["step_ms_p90"]
        assert row["prefill_ms"] + row["steps"] * row["step_ms_p10"] * 0.5 < 1e3 * row["seconds"]


@emulated
@pytest.mark.parametrize("way", page.CUTS)
def test_only_decodes_are_cut_and_by_the_rule_of_each_context(planned, monkeypatch, way):
    rules = lambda batch: {"rule_256": 1 + batch.kv_lens[0] % 3, "single": 1}  # noqa: E731
    monkeypatch.setattr(lean, "chosen_splits", rules)
    page.answered(engine(page.CUTS), way, PROMPT, 4)
    assert planned[0] == ([PROMPT], [PROMPT], "auto", "auto"), "the prompt is nobody's turn"
    contexts = [kv_lens[0] for _, kv_lens, *_ in planned[1:]]
    assert contexts == [PROMPT + 1 + i for i in range(4)], "one plan a step, and the next one in advance"
    for _, (context,), method, splits in planned[1:]:
        cuts = {"lean": "stream-k"} | rules(HybridBatch((1,), (context,), 4, 2, 64))
        assert (method, splits) == ("lean", cuts[way])


@emulated
def test_flash_attention_has_the_decodes_and_no_prompt(planned, monkeypatch):
    calls = []

    def stand_in(q, k_cache, v_cache, cache_seqlens, page_table, causal):
        assert causal and tuple(q.shape[:2]) == (1, 1)
        calls.append(int(cache_seqlens[0]))
        return q

    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_with_kvcache=stand_in))
    page.answered(engine(page.WAYS), "fa3", PROMPT, 4)
    assert planned == [([PROMPT], [PROMPT], "auto", "auto")]
    assert calls == [PROMPT + 1 + i for i in range(3) for _ in range(TINY.layers)]


def test_cases_are_those_that_are_measured(monkeypatch):
    def served(engine, prompt, ways, readings):
        return {(way, i): {"seconds": prompt} for way in ways for i in range(readings)}

    monkeypatch.setattr(page, "_engine", lambda: None)
    monkeypatch.setattr(page, "served", served)
    cases = page.cases()
    assert len({tuple(case.values()) for case in cases}) == len(cases)
    assert all(page.measure(case) == {"seconds": case["prompt"]} for case in cases)
    assert [case["prompt"] for case in cases] == sorted(case["prompt"] for case in cases)


def test_the_model_is_the_one_of_the_composed_figure():
    from pod.experiments.lean import lean_12

    shape = SHAPES[page.MODEL]
    assert (shape.layers, shape.q_heads, shape.kv_heads) == (phi3.LAYERS, lean_12.Q_HEADS, lean_12.KV_HEADS)
    assert (shape.head_dim, shape.hidden, shape.ffn) == (lean_12.HEAD_DIM, lean_12.MODEL, lean_12.HIDDEN)
