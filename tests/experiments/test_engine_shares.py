"""Shares of an iteration by events: one iteration of a tiny model on the CPU, and what the table makes of rows."""

import time

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from pod.experiments.engine import engine_shares as page
from pod.lab import paper
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine
from pod.serving.model import Llama, random_weights
from pod.serving.shapes import Shape

torch = pytest.importorskip("torch")
TINY = Shape("tiny", "Tiny", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=96, context=512)


class Event:
    """A mark in time on a machine without a GPU."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, end) -> float:
        return 1e3 * (end.at - self.at)


@pytest.fixture
def small(monkeypatch):
    values = {"pod.f04.batch": 3, "pod.f04.chunk": 16}
    monkeypatch.setattr(paper, "value", lambda name: values[name])
    monkeypatch.setattr(torch.cuda, "Event", Event)


@pytest.mark.parametrize("context", [16, 60])
def test_one_iteration_has_the_last_chunk_and_all_chats(small, context):
    engine = Engine(Llama(TINY, random_weights(3, 2)), PagedPool(200, 4), "sdpa")
    seen, submit = [], engine.submit
    engine.submit = lambda batch, event: seen.append(event) or submit(batch, event)
    pieces = page.once(engine, context)
    assert [name for name, _ in pieces] == ["before", "attention", "after"] * 2 + ["head"]
    assert all(ms > 0 for _, ms in pieces)
    (event,) = seen
    assert [(new, before) for _, new, before, *_ in event.prefills] == [(16, context - 16)] and len(event.decodes) == 3
    assert not engine.pool.tables and "run" not in vars(engine.attention), "the next iteration starts afresh"


def test_eight_layers_stand_for_all(small):
    iterations = [[("before", 1.0), ("attention", 2.0 * n), ("after", 1.0)] * 8 + [("head", 5.0)] for n in (1, 3, 2)]
    assert page.parts(iterations) == {"rest_ms": 64.0, "attention_ms": 128.0, "head_ms": 5.0}


def test_the_share_of_attention(monkeypatch):
    rows = [case | {"rest_ms": 30.0, "attention_ms": 65.0, "head_ms": 5.0} for case in page.cases()]
    monkeypatch.setattr(page, "read", lambda name: pd.DataFrame(rows))
    assert page.share() == page.share("hopper") == pytest.approx(65)
    plt.close(page.draw(page.table()))
