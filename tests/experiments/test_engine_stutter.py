"""The stutter's page on a tiny model: chats go on, and the prompt comes whole or in chunks."""

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from pod.experiments.engine import engine_stutter as page
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine
from pod.serving.model import Llama, random_weights
from pod.serving.schedulers import VLLM, Sarathi
from pod.serving.shapes import Shape

torch = pytest.importorskip("torch")
TINY = Shape("tiny", "Tiny", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=96, context=512)


@pytest.fixture
def small(monkeypatch):
    for name, value in {"CHATS": 3, "CONTEXT": 20, "PROMPT": 60, "CHUNK": 16, "ARRIVES": 0.0, "ITERATIONS": 9}.items():
        monkeypatch.setattr(page, name, value)


@pytest.mark.parametrize("kind, prompts", [(VLLM, [60]), (Sarathi, [13, 13, 13, 13, 8])])
def test_chats_wait_for_a_whole_prompt_and_go_on_beside_chunks(small, kind, prompts):
    engine = Engine(Llama(TINY, random_weights(3, 2)), PagedPool(200, 4), "sdpa")
    rows = page.timed(engine, kind)
    assert [row["prompt"] for row in rows if row["prompt"]] == prompts and len(rows) == 9
    beside = [row["decodes"] for row in rows if row["prompt"]]
    assert beside == [0] if kind is VLLM else beside == [3] * 5
    assert rows[-1]["decodes"] == 4 and not engine.pool.tables, "the prompt is answered too, and all is given back"
    assert all(row["start_ms"] < row["end_ms"] for row in rows)


def test_silence_is_the_longest_wait_between_two_tokens(monkeypatch):
    lengths = {"vLLM, fa3": [10, 200, 10], "Sarathi, fa3": [10, 40, 40], "Sarathi, fa3-one": [10, 30, 30],
               "Sarathi, hopper": [10, 20, 20]}  # fmt: skip
    rows = []
    for system, taken in lengths.items():
        for i in range(len(taken)):
            whole = system.startswith("vLLM") and i == 1
            begin, end = (float(sum(taken[:n])) for n in (i, i + 1))
            rows.append((system, i, begin, end, 12 * (i > 0), 0 if whole else 80))
    columns = ["system", "iteration", "start_ms", "end_ms", "prompt", "decodes"]
    monkeypatch.setattr(page, "read", lambda name: pd.DataFrame(rows, columns=columns))
    assert page.silence("vLLM, fa3") == pytest.approx(210) and page.silence("Sarathi, hopper") == pytest.approx(20)
    assert page.chunks() == pytest.approx(210 / 40) and page.overlap() == pytest.approx(30 / 20)
    plt.close(page.draw(page.table()))
