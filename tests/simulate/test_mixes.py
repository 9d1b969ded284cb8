"""The batches that an engine could make are the same everywhere, of all kinds and heads, and could really be made."""

from collections import Counter

import pytest

from pod.batch import HybridBatch
from pod.simulate import mixes as m

ALL = m.mixes()


def new_tokens(mix):
    return Counter("one" if q == 1 else "draft" if q <= m.DRAFTS[1] else "prompt" for q in mix.batch.q_lens)


def test_the_same_seed_gives_the_same_batches_and_the_first_ones_whatever_the_count():
    assert m.mixes(7) == ALL[:7] != m.mixes(7, seed=1)
    assert [sum(mix.batch.kv_lens) for mix in ALL[:6]] == [2358, 749, 1746138, 4808, 42762, 54923]


@pytest.mark.parametrize("kind", m.KINDS)
def test_an_engine_could_make_it(kind):
    for mix in ALL:
        if mix.kind == kind:
            check(mix)


def check(mix):
    model = next(model for model in m.MODELS if model.name == mix.model)
    server, b = m.Server(mix.lengths, mix.budget, model.tokens(mix.tp)), mix.batch
    assert m.fits(list(zip(b.q_lens, b.kv_lens, strict=True)), server)
    assert mix.tp in model.tps and b.group == model.num_q_heads // model.num_kv_heads and b.page_size == m.PAGE
    assert list(b.q_lens) == sorted(b.q_lens, reverse=True) and max(b.kv_lens) <= m.LONGEST + m.DRAFTS[1]
    assert b.kv_bytes < 40e9


def test_what_no_engine_makes_is_refused():
    server = m.Server("chats", 512, 1024)
    assert m.fits([(1, 1008)], server)
    assert not m.fits([], server)
    assert not m.fits([(0, 5), (1, 5)], server), "somebody who brings no token"
    assert not m.fits([(513, 513)], server), "more than the budget"
    assert not m.fits([(1, 1025)], server), "more than the memory"
    assert not m.fits([(1, 1)] * 257, m.Server("chats", 512, 1 << 20)), "more sequences than run at once"
    assert not m.fits([(1, 17)] * 40, server), "pages are whole"


def test_kinds_take_turns_and_have_what_they_are_named_for():
    assert [mix.kind for mix in ALL[:12]] == [*m.KINDS, *m.KINDS] and len(ALL) == 300
    for mix in ALL:
        found, parts = new_tokens(mix), set(mix.kind.split("+"))
        assert (found["one"] > 0) == ("decode" in parts) or mix.kind in ("mixed", "spec+chunk", "fresh+chunk"), mix
        assert (found["draft"] > 0) == ("spec" in parts) or "chunk" in parts or mix.kind == "mixed", mix
        if parts & {"fresh", "chunk", "returning"}:
            assert sum(found.values()) > 1, mix
    assert {mix.kind for mix in ALL if any(20 <= q <= 300 for q in mix.batch.q_lens)} >= {"returning+decode", "mixed"}


def test_all_heads_budgets_and_lengths_occur():
    assert {mix.batch.group for mix in ALL} == {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 71}
    assert {mix.batch.head_dim for mix in ALL} == {64, 128} and {mix.tp for mix in ALL} == {1, 2, 4, 8}
    assert {mix.budget for mix in ALL} == set(m.BUDGETS) and {mix.lengths for mix in ALL} == set(m.LENGTHS)
    assert min(len(mix.batch.q_lens) for mix in ALL) == 1 and max(len(mix.batch.q_lens) for mix in ALL) > 200
    chunks = {q for mix in ALL if "chunk" in mix.kind for q in mix.batch.q_lens}
    assert chunks >= set(m.CHUNKS)


def test_a_model_whose_heads_no_kernel_takes_is_named_with_the_reason():
    assert list(m.LEFT_OUT) == ["Phi-3-mini"] and "96" in m.LEFT_OUT["Phi-3-mini"]
    with pytest.raises(ValueError, match="head_dim: got 96"):
        HybridBatch([1], [1], 32, 32, 96)
    assert {mix.model for mix in ALL} == {model.name for model in m.MODELS} - set(m.LEFT_OUT)


def test_words_say_who_takes_part():
    batch = HybridBatch([1024, 4, 2, 1, 1], [17408, 100, 50, 4096, 300], 32, 8, 128, 16)
    words = m.Mix("mixed", "Llama-3-8B", 1, "chats", 2048, batch).words
    assert words == "32/8 heads of 128: 1 x 1,024 @ 17,408; 2 x 2 to 4 @ 50 to 100; 2 x 1 @ 300 to 4,096"
