"""SARATHI's batches and runs as they are measured: what is asked for, and rows of a tiny model on the CPU."""

import pandas as pd
import pytest
import torch

from pod.experiments.engine import operators, running
from pod.experiments.sarathi import sarathi_03, sarathi_05, sarathi_07, sarathi_08, sarathi_batches, sarathi_runs
from pod.experiments.sarathi.sarathi_batches import Mix
from pod.experiments.sarathi.sarathi_runs import ORCA, SARATHI, Setting
from pod.lab.measure import timing
from pod.serving.engine import Engine
from pod.serving.model import Llama, random_weights
from pod.serving.shapes import Shape

TINY = Shape("tiny", "Tiny", 2, 64, 4, 2, 16, 96, 96, context=4096)


@pytest.fixture
def tiny():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for calls this small others only wait
    yield Llama(TINY, random_weights(0, 2), dtype=torch.float64)
    torch.set_num_threads(threads)


# ---------------------------------------------------------------- batches


def test_the_batches_are_those_of_the_figures():
    mixes = sarathi_batches.mixes()
    assert len(mixes) == len(set(mixes)) and sarathi_batches.TOKENS == sarathi_03.TOKENS
    assert sarathi_batches.BATCHES == sarathi_05.BATCHES and sarathi_batches.CHUNKS == sarathi_05.CHUNKS
    for chunk in sarathi_05.CHUNKS:
        assert sum(m.tokens for m in mixes if m in {Mix(1, chunk, at) for at in range(0, 1024, chunk)}) == 1024
    assert {tuple(case.values())[1:] for case in sarathi_batches.cases()} == {*mixes, *sarathi_batches.TABLE}


def test_a_step_holds_its_prompts_and_its_decodes(tiny):
    place = sarathi_batches.Place(tiny, 40, "sdpa")
    step = place.step(Mix(2, 256, 512, 3))
    assert step.q_lens.tolist() == [256, 256, 1, 1, 1] and step.kv_lens.tolist() == [768, 768, 1024, 1024, 1024]
    assert len(set(step.slots.tolist())) == len(step.slots) == 515 and step.rows.tolist() == [255, 511, 512, 513, 514]
    assert place.step(Mix(1, 1021, decodes=3)).q_lens.sum() == 1024


def test_parts_are_a_layer_and_layers_an_iteration(tiny):
    one = Llama(Shape("tiny", "Tiny", 1, 64, 4, 2, 16, 96, 96), random_weights(0, 1), dtype=torch.float64)
    place, mix = sarathi_batches.Place(one, 16, "sdpa"), Mix(1, 40, decodes=2)
    made = {name: call() for name, call in sarathi_batches.parts(place, mix).items()}
    assert made["layer"].shape == made["linear"].shape == (42, 64) and made["attention"].shape == (42, 4, 16)
    assert made["head"].shape == sarathi_batches.iteration(sarathi_batches.Place(tiny, 16, "sdpa"), mix)().shape


def test_every_batch_has_its_row(tiny, monkeypatch):
    monkeypatch.setattr(sarathi_batches, "_place", lambda layers: sarathi_batches.Place(tiny, 80, "sdpa"))
    monkeypatch.setattr(operators, "_captured", lambda call: call)
    called = lambda calls, rounds: {name: call() is None or timing.Time(2.0, 1.0, 3.0) for name, call in calls.items()}  # noqa: E731
    monkeypatch.setattr(timing, "shuffled", called)
    sarathi_batches._parts.cache_clear()
    for case in (sarathi_batches.cases()[0], sarathi_batches.cases()[-1]):
        assert sarathi_batches.measure(case) == {"ms": 2.0, "ms_p10": 1.0, "ms_p90": 3.0}
    sarathi_batches._parts.cache_clear()
    sarathi_batches._iterations.cache_clear()


# ---------------------------------------------------------------- runs


@pytest.fixture
def no_gpu(tiny, unwatched, monkeypatch):
    """A tiny model on the CPU for short requests."""
    monkeypatch.setattr(running, "model", lambda name, context: tiny)
    monkeypatch.setattr(sarathi_runs, "ATTENTION", "sdpa")
    monkeypatch.setattr(sarathi_runs, "PAGE", 16)
    monkeypatch.setattr(sarathi_runs, "BATCHES", {64: 3})
    monkeypatch.setattr(sarathi_runs, "RATIOS", {16: (7,), 32: (7,)})
    monkeypatch.setattr(sarathi_runs, "ROUNDS", 2)
    for kept in (sarathi_runs._engine, sarathi_runs._run):
        kept.cache_clear()
    yield
    for kept in (sarathi_runs._engine, sarathi_runs._run):
        kept.cache_clear()


def test_the_runs_are_those_of_the_figures():
    runs = sarathi_runs.settings()
    assert len(runs) == len(set(runs)) and {*sarathi_runs.RATIOS} == {*sarathi_08.CHUNKS}
    assert {r.pd for r in runs if r.length == 1024} <= {*sarathi_08.RATIOS}
    assert runs[0] == Setting(ORCA, 1024, 256, 14) and runs[0].batch == 18
    assert {(r.length, r.batch, r.pd) for r in runs if r.length > 1024} == {(2048, 10, 27), (3072, 6, 50)}
    for run in (r for r in runs if r.system == SARATHI):
        assert run._replace(system=ORCA, chunk=sarathi_runs.CHUNK) in runs


def test_orcas_rounds_are_alike():
    events = sarathi_runs.batches(Setting(ORCA, 1024, 256, 14))
    assert len(events) % sarathi_runs.ROUNDS == 0
    each = len(events) // sarathi_runs.ROUNDS
    sizes = [(e.tokens, len(e.prefills)) for e in events]
    assert sizes == sizes[:each] * sarathi_runs.ROUNDS and sizes[0] == (18 * 955, 18)


def test_a_row_of_each_iteration_of_a_whole_run(no_gpu):
    cases = sarathi_runs.cases()
    names = list(dict.fromkeys(tuple(case[key] for key in sarathi_runs.WHOLE) for case in cases))
    assert [name[0] for name in names] == [ORCA, SARATHI, SARATHI]
    rows = [case | sarathi_runs.measure(case) for case in cases]
    for name in names:
        mine = [row for row in rows if tuple(row[key] for key in sarathi_runs.WHOLE) == name]
        assert sum(row["finished"] for row in mine) == 6
        assert sum(row["prompt"] for row in mine) == 6 * 56
        assert all(a["scheduled_ms"] < a["end_ms"] <= b["scheduled_ms"] for a, b in zip(mine, mine[1:], strict=False))


def test_each_run_finds_the_memory_of_the_one_before_free(no_gpu, tiny):
    engine = sarathi_runs.warmed(Engine(tiny, sarathi_runs.pool(64), "sdpa"), 64)
    for _ in range(2):
        sarathi_runs.timed(engine, Setting(SARATHI, 64, 16, 15))
        assert len(engine.pool.free) == engine.pool.num_blocks


# ---------------------------------------------------------------- what is made of them


def batches_recorded(recorded) -> None:
    """Of the parts only attention depends on what is in a batch: a decode's beside a chunk is that of one alone."""
    more = lambda mix: 2 * mix.decodes * (1 if mix.prompts else 10)  # noqa: E731
    cost = {"layer": lambda mix: 3.0 + mix.rows / 256, "linear": lambda mix: 2.0, "attention": lambda mix: 1.0,
            "head": lambda mix: 4.0, "iteration": lambda mix: 40.0 + more(mix)}  # fmt: skip
    mixes = [(case, Mix(*(case[key] for key in Mix._fields))) for case in sarathi_batches.cases()]
    recorded("sarathi-batches", [case | {"ms": cost[case["part"]](mix)} for case, mix in mixes])


def test_what_a_batch_costs(recorded):
    batches_recorded(recorded)
    df = sarathi_batches.table()
    assert sarathi_batches.of_peak(256) == pytest.approx((256 / 4) / (2048 / 11))
    assert sarathi_batches.saturates("decode", 0.5) == sarathi_batches.saturates("prefill", 0.5) == 512
    each = sarathi_batches.per_token(df).set_index(["phase", "batch_or_chunk"])
    assert each.loc[("decode", 4)].tolist() == [20, 10, 1]
    assert each.loc[("chunked", 256)].tolist() == [40 * 8 / 1024, 40 * 4 / 1024, 4 / 1024]
    assert sarathi_batches.overhead() == pytest.approx((2 + 4) / (2 + 1))
    assert sarathi_batches.decode_gain() == pytest.approx((40 + 80) / 4 / 2) and sarathi_batches.rows_too_many() == 1
    assert sarathi_batches.from_parts(256, [1, 17]) == pytest.approx(40 * (2 + 1 + 1) + 4)  # attention: 1 ms for all
    sarathi_batches.draw(df)


def a_run(setting, ms: float) -> list[dict]:
    """A run whose iterations take equally long."""
    rows = []
    for i, event in enumerate(sarathi_runs.batches(setting)):
        event.scheduled, event.end = i * ms / 1000, (i + 1) * ms / 1000
        rows.append(dict(zip(sarathi_runs.KEYS, (*setting, i), strict=True)) | sarathi_runs.row(event))
    return rows


def test_what_sarathi_gains_over_orca(recorded):
    """With iterations as long as each other, Orca, which has the fewest, is ahead wherever they are."""
    runs = sarathi_runs.settings()
    batches_recorded(recorded)
    recorded("sarathi-runs", [row for run in runs for row in a_run(run, 10.0)])
    df, count = sarathi_runs.table(), {run: len(sarathi_runs.batches(run)) for run in runs}
    assert len(df) == sum(run.system == SARATHI for run in runs)
    both = Setting(ORCA, 1024, 256, 14), Setting(SARATHI, 1024, 256, 14)
    assert sarathi_runs.gain() == pytest.approx(count[both[0]] / count[both[1]])
    orca = df.set_index(["length", "chunk", "pd"]).orca_requests_per_minute[1024, 256, 14]
    assert orca == pytest.approx(60_000 * 90 / (10 * count[both[0]]))
    assert sarathi_runs.least_gain() == sarathi_runs.figure_8(df).gain.min() and sarathi_runs.loses_from(256) == 4
    assert sarathi_runs.best_over_formula() == pytest.approx(4 / (256 / 17))
    assert sarathi_runs.lengths(df)["whole run"][1024, 14] == sarathi_runs.gain()
    assert len(sarathi_runs.ratios(df)) == len(sarathi_runs.figure_8(df))
    sarathi_runs.draw(df)


def test_the_model_gains_less_in_a_run_as_short_as_the_measured():
    assert sarathi_08.ROUNDS == sarathi_runs.ROUNDS
    for page in (sarathi_07, sarathi_08):
        assert (page.table(short=True).gain < page.table().gain).mean() > 0.5
    assert (sarathi_07.table(short=True).gain < sarathi_07.table().gain).all()


def test_a_run_with_chunks_that_take_what_their_parts_take(recorded):
    """All 428 iterations take 200 ms; 358 of them are of 193 to 256 tokens and of parts that take 124 or 164."""
    batches_recorded(recorded)
    setting = Setting(SARATHI, 1024, 256, 14)
    run = pd.DataFrame([row | {"gpu_ms": 200.0} for row in a_run(setting, 200.0)])
    mine = sarathi_runs.chunks(run, 256)
    assert (len(run), len(mine)) == (428, 358) and (mine.prompt + mine.decodes).between(193, 256).all()
    parts = 124 + 40 * (mine.decodes > 0)
    assert sarathi_runs.sooner(run, setting) == pytest.approx(428 * 200 / (428 * 200 - (200 - parts).sum()))
    recorded("sarathi-runs", run.to_dict("records"))
    assert sarathi_runs.over_parts() == pytest.approx(200 / 164)


def test_the_middle_of_a_run_is_whole_rounds_of_orca():
    rows = pd.DataFrame(a_run(Setting(ORCA, 1024, 256, 14), 10.0))
    assert sarathi_runs.middle(rows) == pytest.approx(sarathi_runs.rate(rows))
    rows = pd.DataFrame(a_run(Setting(SARATHI, 1024, 256, 14), 10.0))
    assert sarathi_runs.middle(rows) > sarathi_runs.rate(rows)
