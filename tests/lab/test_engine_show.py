"""The engine's pictures show the run: pages that hold its tokens, places of a step, bars where the time went."""

import pandas as pd
import pytest

from pod import data
from pod.experiments.engine import engine_timeline
from pod.files import ROOT
from pod.lab import registry
from pod.lab.show import engine
from pod.serving.events import Log
from pod.serving.request import Request
from pod.serving.schedulers import Batch, Chunk
from pod.serving.step import pack

REAL = Log.load(ROOT / "data" / "model" / "four-prompts.jsonl")


def test_pages_of_the_recorded_run_are_those_of_its_log():
    states = engine.page_tables(REAL)
    assert len(states) == len(REAL.iterations)
    for state, event in zip(states, REAL.iterations, strict=True):
        held = [page for table in state.values() for page in table]
        assert len(held) == len(set(held)) == REAL.run["blocks"] - event.free
    longest = max(states, key=lambda state: len(state.get(1, ())))
    assert len(longest[1]) == 5, "34 + 44 - 1 tokens in pages of 16"


def test_growth_is_drawn_within_its_pages():
    for ax, (i, _, prompt, _) in zip(engine.pages_grow(REAL).axes, REAL.requests, strict=True):
        tokens = [y for y in ax.lines[0].get_ydata() if y == y]
        made = sum(i in event.decodes for event in REAL.iterations)
        assert max(tokens) == prompt + made and tokens == sorted(tokens)


def test_the_arrays_of_a_step_are_listed_as_they_lie_in_it():
    batch = Batch(prefills=[Chunk(Request(0, prompt=6, output=4), tokens=4, context=0)])
    step = pack(batch, {0: range(6)}, {0: [2, 0]}, 4)
    values = engine.step_arrays(step)["values"]
    listed = [int(each) for each in "".join(values).replace("[", " ").replace("]", " ").replace(",", " ").split()]
    assert listed == step.flat.tolist() and values["slots"] == "[8, 9, 10, 11]"


def test_step_table_names_owner_and_place():
    a, b = Request(0, 6, 4), Request(1, 3, 4)
    b.advance(3)
    batch = Batch(prefills=[Chunk(a, 4, 0)], decodes=[b])
    table = engine.step_table(pack(batch, {0: range(6), 1: [7, 8, 9, 5]}, {0: [2, 0], 1: [1]}, 4), [0, 1], 4)
    assert "".join(table.request) == "AAAAB" and table.predicts.tolist() == [False] * 4 + [True]
    assert table.iloc[-1].tolist() == ["B", 5, 3, 1, 3, True]


@pytest.fixture
def timeline():
    """Two layers' worth of rows as the suite writes them: the host runs ahead of the GPU, then waits."""
    rows = [("fa3", -1, "plan", 0.0, 1.0, 0.0, 0.0)]
    for i, piece in enumerate(engine_timeline.RUNS["fa3"].pieces * 2):
        rows.append(("fa3", i // 3, piece, 1 + 0.1 * i, 1.1 + 0.1 * i, 1.0 + i, 2.0 + i))
    rows += [("fa3", -1, "head", 1.6, 1.7, 7.0, 7.5), ("fa3", -1, "wait", 1.7, 7.6, 0.0, 0.0)]
    rows += [("fa3", -1, "finish", 7.6, 7.7, 0.0, 0.0)]
    names = ("run", "layer", "piece", "host_start_ms", "host_end_ms", "gpu_start_ms", "gpu_end_ms")
    df = pd.DataFrame(rows, columns=names)
    return pd.concat([df, df.assign(run="hopper")]).assign(run=lambda d: d.run.map(engine_timeline.NAMES))


def test_a_timeline_has_a_bar_for_every_piece(timeline):
    axes = engine.timeline(timeline).axes
    assert [len(ax.patches) for ax in axes] == [1 + 7 + 2 + 7] * 2


def test_suite_names_every_row_once():
    rows = [tuple(case.values()) for case in engine_timeline.cases()]
    assert len(rows) == len(set(rows)) == 2 * (3 * 32 + 4) + 2 * 32 + 5 + 5


def test_to_show_a_figure_is_to_draw_its_table(tmp_path, monkeypatch):
    assert len(registry.show("engine-timeline")) == len(engine_timeline.table())
    monkeypatch.setattr(data, "RECORDED", tmp_path)
    with pytest.raises(ValueError, match="lacks engine-timeline of an H200"):
        registry.show("engine-timeline")


def test_rows_go_to_their_requests_in_one_order_only():
    done, *rest = (Request(i, 3, 4) for i in (2, 0, 1))
    for request in rest:
        request.advance(3)
    batch, texts = Batch(prefills=[Chunk(done, 3, 0)], decodes=rest), {i: range(4) for i in range(3)}
    step = pack(batch, texts, {i: [i] for i in range(3)}, 4)
    choices = {"right": step.rows, "wrong": engine.wrong_rows(step)}
    assert [rows.tolist() for rows in choices.values()] == [[2, 3, 4], [4, 0, 1]]
    right, wrong = engine.rows_and_requests(step, [2, 0, 1], choices).axes
    arrows = [[(a.xyann[1], a.xy[1]) for a in ax.texts if not a.get_text()] for ax in (right, wrong)]
    assert arrows[0] == [(2.5, 2.5), (3.5, 3.5), (4.5, 4.5)] and arrows[1] == [(4.5, 2.5), (0.5, 3.5), (1.5, 4.5)]
    words = [text.get_text() for text in wrong.texts if text.get_text()]
    assert words == ["row of C's token 1", "row of C's token 2", "row of C's token 3", "next token of C", "row of A",
                     "next token of A", "row of B", "next token of B"]  # fmt: skip


def test_a_chunk_gives_its_rows_away_before_its_prompt_is_complete():
    part, other = Request(0, 8, 4), Request(1, 3, 4)
    other.advance(3)
    step = pack(Batch(prefills=[Chunk(part, 4, 0)], decodes=[other]), {0: range(8), 1: range(4)}, {0: [0], 1: [1]}, 4)
    assert (step.rows.tolist(), engine.wrong_rows(step).tolist()) == ([4], [0])
