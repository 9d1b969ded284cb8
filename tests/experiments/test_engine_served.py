"""Five minutes of real serving: what is asked for, what a run gives, and what the table makes of it."""

import pandas as pd
import pytest
import torch

from pod.experiments.engine import engine_chunks, engine_foretold
from pod.experiments.engine import engine_served as page
from pod.experiments.engine.engine_served import ARXIV, INTERNAL, POD, REQUESTS, Users
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine
from pod.serving.events import Iteration, Log
from pod.serving.model import Llama, random_weights
from pod.serving.schedulers import VLLM, Sarathi
from pod.serving.shapes import Shape
from pod.simulate.workload import Workload

TINY = Shape("tiny", "Tiny", 2, 64, 4, 2, 16, 96, 96, context=1024)
USERS = Users(Workload("uniform", 9, 60.0, low=40, high=200, pd=6.0), chunk=48)


def test_every_run_is_asked_for_once_and_none_waits_for_a_round_of_more_than_four():
    cases = page.cases()
    assert len({tuple(case.values()) for case in cases}) == len(cases) == 4 * 600 + 4 * 490
    assert list(dict.fromkeys(case["run"] for case in cases)) == list(page.RUNS)
    assert max(map(len, page.ROUNDS)) == 4


def test_a_load_brings_five_minutes_of_requests():
    for load in (INTERNAL, ARXIV):
        last = page.work(load).requests()[-1].arrival
        assert 290 < last < 310, "gaps cut at three means shorten what the rate says by 5 %"


@pytest.mark.parametrize("kind", [VLLM, Sarathi])
def test_a_run_answers_all_and_says_what_each_felt(kind):
    engine = Engine(Llama(TINY, random_weights(0, 2), dtype=torch.float32), PagedPool(60, 16), "sdpa")
    rows = page.timed(engine, USERS, kind)
    asked = USERS.requests()
    assert [(row["prompt"], row["output"]) for row in rows] == [(r.prompt, r.output) for r in asked]
    assert all(0 < row["ttft_s"] <= row["latency_s"] and row["worst_tbt_ms"] >= 0 for row in rows)
    assert [row["arrival_s"] for row in rows] == pytest.approx([r.arrival for r in asked], abs=1e-4)
    assert 0 < rows[0]["busy_percent"] <= 100 and rows[0]["tbt_p50_ms"] <= rows[0]["tbt_p99_ms"]


def log_of(*ends: float) -> Log:
    """One request whose tokens come out at these seconds, the first with its prompt."""
    events = [Iteration(0, 0.0, ends[0], [(0, 8, 0, True)], [], 0)]
    events += [Iteration(0, before, end, [], [0], 9) for before, end in zip(ends, ends[1:], strict=False)]
    events[-1].finished = [0]
    return Log(requests=[(0, 0.5, 8, len(ends))], iterations=events)


def test_the_users_feel_the_first_gap_that_the_artifact_drops():
    (row,) = page.felt(log_of(1.0, 4.0, 4.5))
    assert (row["ttft_s"], row["latency_s"], row["worst_tbt_ms"], row["worst_felt_ms"]) == (0.5, 4.0, 500, 3000)
    assert row["felt_p50_ms"] == 1750


def test_a_lost_request_is_no_answer():
    log = log_of(1.0, 2.0)
    log.requests.append((1, 0.7, 8, 2))
    with pytest.raises(ValueError, match="^requests: got 1 answers of 2"):
        page.felt(log)


def rows_of(run: str, ttft: float, gap: float) -> pd.DataFrame:
    each = {"ttft_s": [ttft] * 4, "latency_s": [9.0] * 4, "worst_tbt_ms": [gap, gap, 1, 1]}
    pooled = {"tbt_p50_ms": 20.0, "tbt_p99_ms": gap, "busy_percent": 99.0}
    return pd.DataFrame({"round": 0, "run": run, "request": range(4), **each, **pooled})


def test_the_table_puts_measured_beside_stated_and_foretold(monkeypatch):
    made = pd.concat([rows_of(run, 1.0 if POD in run else 2.0, 300.0) for run in page.RUNS])
    monkeypatch.setattr(page, "measured", lambda: {run: page.summed(rows) for run, rows in made.groupby("run")})
    df = page.table().set_index(["load", "system", "metric"]).sort_index()
    assert df.measured[INTERNAL, POD, "ttft_p50"] == 1.0 and df.paper[INTERNAL, POD, "ttft_p50"] == 7.49
    assert df.measured[ARXIV, "vLLM", "stalls_200ms"] == 50 and df.measured[ARXIV, "vLLM", "stalls_500ms"] == 0
    assert df.foretold[ARXIV, "vLLM", "tbt_p99"] > 0 and df.foretold[ARXIV, "Sarathi"].isna().all()
    assert page.times("ttft_p99", "Sarathi", POD) == page.most_times("ttft_p50", "vLLM", POD) == 2
    assert page.times("tbt_p99", "Sarathi", POD) == page.times("tbt_p99", "Sarathi", POD, ARXIV) == 1
    assert page.most("stalls_500ms", POD) == 0 and page.less("ttft_p99", POD, "Sarathi") == 50
    assert page.fused("ttft_p50") == page.least_less("ttft_p50", POD, "vLLM") == 50
    assert page.more("ttft_p99", "vLLM", POD) == 100 and page.lowest_ttft() == 2 and page.least("busy", POD) == 99
    assert page.foretold_off("tbt_p50") > 0
    page.draw(page.table())


def test_the_table_of_chunks_has_all_four_systems(monkeypatch):
    made = pd.concat([rows_of(run, i + 1.0, 300.0 - i) for i, run in enumerate(engine_chunks.RUNS)])
    monkeypatch.setattr(engine_chunks, "measured", lambda: {run: page.summed(r) for run, r in made.groupby("run")})
    df = engine_chunks.table().set_index(["system", "metric"])
    assert df.paper["chunk 2048", "tbt_p99"] == 0.18 and df.measured["chunk 1024", "ttft_p50"] == 2.0
    assert df.foretold.notna().all() and len(df) == 16
    assert engine_chunks.times("ttft_p50", "1024", 2048) == 0.5
    assert 0 < engine_chunks.chunks_off("ttft_p50") <= engine_chunks.foretold_off("ttft_p50")
    engine_chunks.draw(engine_chunks.table())


@pytest.mark.parametrize("cards, at_once", [(1, [1] * 4), (2, [2, 2]), (3, [3, 1]), (4, [4]), (8, [4])])
def test_as_many_chunks_are_served_at_once_as_there_are_gpus_and_each_run_once(monkeypatch, cards, at_once):
    asked = []

    def served(runs):
        asked.append(len(runs))
        return {run.name: [{"of": run.name, "at": i} for i in range(REQUESTS[run.load])] for run in runs}

    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(engine_chunks, "side_by_side", served)
    engine_chunks._round.cache_clear()
    for case in engine_chunks.cases():
        assert engine_chunks.measure(case) == {"of": case["run"], "at": case["request"]}
    engine_chunks._round.cache_clear()
    assert asked == at_once


def test_what_is_foretold_is_of_the_same_runs():
    assert {case["run"] for case in engine_foretold.cases()} < page.RUNS.keys() | engine_chunks.RUNS.keys()
