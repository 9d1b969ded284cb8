"""Selective batching on a tiny model: each way gives the tokens of the others."""

import pytest

from pod.experiments.orca import selective
from pod.serving.model import Llama, random_weights
from pod.serving.shapes import Shape

torch = pytest.importorskip("torch")
TINY = Shape("tiny", "Tiny", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=96, context=4096)


@pytest.fixture
def engine():
    return selective.engine_of(Llama(TINY, random_weights(3, 2), dtype=torch.float64), "sdpa")


def test_each_request_by_itself_computes_what_all_do_together(engine):
    alone = torch.cat([engine.run(step) for step in selective.steps(selective.APART, 3)])
    (together,) = selective.steps(selective.SELECTIVE, 3)
    assert torch.allclose(alone, engine.run(together)) and alone.shape == (4, TINY.vocab)
    assert together.q_lens.tolist() == [512, 1, 1, 1] and together.kv_lens.tolist() == [512, 2049, 2049, 2049]
    assert len(set(together.slots.tolist())) == 515, "two tokens would lie in one place"


def test_a_row_counts_launches_and_tokens(engine, monkeypatch):
    monkeypatch.setattr(selective, "_engine", lambda attention: engine)
    monkeypatch.setattr(selective, "REPEATS", 1)
    rows = [selective.measure({"decodes": 2, "way": way}) for way in (selective.APART, selective.SELECTIVE)]
    assert [row["launches"] for row in rows] == [3, 1] and {row["tokens"] for row in rows} == {514}
    assert all(0 < row["least_ms"] <= row["ms"] <= row["most_ms"] for row in rows)
    assert len(selective.cases()) == 15
