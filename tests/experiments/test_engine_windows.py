"""Windows of real runs: what is asked for, rows of a tiny model on the CPU, and what the table makes of rows."""

import numpy as np
import pandas as pd
import pytest
import torch

from pod.experiments.engine import engine_windows as page
from pod.experiments.engine import running
from pod.serving.engine import Engine
from pod.serving.loop import Ticks
from pod.serving.model import Llama, random_weights
from pod.serving.schedulers import VLLM, Sarathi
from pod.serving.shapes import Shape
from pod.simulate.windows import Load, window

TINY = Shape("tiny", "Tiny", 2, 64, 4, 2, 16, 96, 96, context=1024)
SMALL = Load("tiny", 3, 32, 600, 60)  # 8 chats beside chunks of 24


@pytest.mark.parametrize("model", page.OFFLINE)
def test_a_window_is_steady_and_long_enough(model):
    load, count = page.loaded(model), page.ITERATIONS[model]
    ends = {}
    for kind in (Sarathi, VLLM):
        scheduler = load.scheduler(kind=kind)
        events = window(load, Ticks(), scheduler, most=count)
        assert len(events) == count and scheduler.waiting, "nobody is left to come: not the middle of a long run"
        ends[kind] = sum(len(e.finished) for e in events)
        sizes = page.sizes(load, kind, count)
        assert {(e.tokens, len(e.prefills)) for e in events} == {(tokens, chunks) for tokens, _, chunks in sizes}
    assert ends[Sarathi] >= 14 and abs(ends[VLLM] - ends[Sarathi]) <= 0.25 * ends[Sarathi]
    assert all(e.prefills and e.decodes for e in window(load, Ticks(), load.scheduler(), most=count)[1:])


def test_every_run_is_asked_for_once():
    rows = [tuple(case.values()) for case in page.cases()]
    assert len(rows) == len(set(rows)) == len(page.SYSTEMS) * sum(page.ITERATIONS.values())
    assert set(page.NAMES) == {*page.SYSTEMS, page.FASTER}


@pytest.mark.parametrize("kind", [Sarathi, VLLM])
def test_the_same_rows_come_out_of_a_real_engine(kind, unwatched):
    model = Llama(TINY, random_weights(0, 2), dtype=torch.float32)
    rows = page.timed(SMALL, kind, 40, Engine(model, SMALL.pool(), "sdpa"))
    planned = window(SMALL, Ticks(), SMALL.scheduler(kind=kind), most=40)
    assert [row["digest"] for row in rows] == [running.digest(e) for e in planned]
    assert [row["finished"] for row in rows] == [len(e.finished) for e in planned] and sum(r["finished"] for r in rows)
    assert all(a["scheduled_ms"] < a["end_ms"] <= b["scheduled_ms"] for a, b in zip(rows, rows[1:], strict=False))


def made(ms, finished=None, digests=None, gpu=0.9) -> pd.DataFrame:
    """A run of iterations of these milliseconds."""
    starts = np.concatenate([[0.0], np.cumsum(ms)])
    count = len(starts)
    done = finished or [int(i % 3 == 2) for i in range(count)]
    return pd.DataFrame({"iteration": range(count), "scheduled_ms": starts, "end_ms": starts + [*ms, 0],
                         "gpu_ms": [gpu * m for m in (*ms, 1)], "digest": digests or [f"{i}" for i in range(count)],
                         "prompt": 5, "decodes": 3, "finished": done, "preempted": 0})  # fmt: skip


def test_the_baseline_is_the_faster_call_of_each_batch(recorded):
    page.table()  # of the real recording: nothing of it may stay, although the page keeps what it made of a file
    took = {"Sarathi, fa3": [10.0, 20.0], "Sarathi, fa3-one": [20.0, 10.0], "Sarathi, hopper": [8.0, 8.0],
            "vLLM, fa3": [12.0, 12.0]}  # fmt: skip
    recorded("engine-windows", pd.concat([made(9 * ms).assign(run=f"llama-3-8b, {way}") for way, ms in took.items()]))
    df = page.table().set_index("system")
    rate = df.requests_per_minute
    assert rate[page.NAMES[page.FASTER]] == pytest.approx(60_000 / 30)
    assert rate[page.NAMES["Sarathi, fa3"]] == pytest.approx(60_000 / 45, rel=0.05)
    assert df.pod_gain[page.NAMES[page.FASTER]] == pytest.approx(25) and df.pod_gain["vLLM"] == pytest.approx(50)
    assert df.host_percent.tolist() == pytest.approx([10] * 5)
    assert df.pod_gain_paper["vLLM"] == 12 and df.pod_gain_paper[page.NAMES[page.FASTER]] == 19
    assert page.gain() == page.gain_max() == page.gain_least() == pytest.approx(25)
    page.draw(page.table())


def test_runs_with_other_batches_are_not_compared():
    with pytest.raises(ValueError, match="^digest: got two runs with other batches"):
        page.faster(made([1.0, 2.0]), made([1.0, 2.0], digests=["0", "x", "2"]))


def test_answers_that_end_together_share_their_time():
    run = made([5.0] * 6, finished=[1, 0, 2, 0, 0, 1, 0])
    run["ms"] = 5.0
    assert page.per_request(run).tolist() == [5.0, 5.0, 15.0]
