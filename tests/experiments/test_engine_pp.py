"""The pipeline's page on two processes here: a tiny model, and what the picture makes of its times."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pod.experiments.engine import engine_pp as page
from pod.experiments.engine import engine_pp_foretold
from pod.lab.measure import ranks
from pod.serving.shapes import Shape
from pod.simulate.run import simulate
from pod.simulate.windows import digest
from pod.simulate.workload import Workload

pytest.importorskip("torch")
TINY = Shape("tiny", "Tiny", layers=3, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=96, context=128)
LOAD = page.Load(replace(page.LOAD.base, chunk=16, max_batch=2, max_tokens=64, block_size=4),
                 Workload("uniform", 8, low=30, high=64, pd=4))  # fmt: skip


@pytest.fixture(scope="module")
def measured() -> pd.DataFrame:
    found = ranks.run(page.runs, page.GPUS, "cpu", LOAD, TINY, "sdpa")
    rows = [{"system": system, "iteration": i} | row for system, each in found.items() for i, row in enumerate(each)]
    return pd.DataFrame(rows)


@pytest.fixture
def shown(measured, monkeypatch):
    monkeypatch.setattr(page, "LOAD", LOAD)
    told = [case | row for case in engine_pp_foretold.cases() for row in engine_pp_foretold.measure(case)]
    tables = {page.RECORDING: measured, page.FORETOLD: pd.DataFrame(told)}
    monkeypatch.setattr(page, "read", tables.get)
    page.log.cache_clear()
    yield tables
    page.log.cache_clear()


def test_the_batches_are_those_that_were_asked_for(measured):
    assert (measured.same_percent == 100).all() and list(measured.system.unique()) == list(page.SYSTEMS)
    for system, rows in measured.groupby("system"):
        assert rows.digest.tolist() == [digest(event) for event in LOAD.batches(system).iterations]
        stages = page.SYSTEMS[system][1]
        columns = [f"{what}_{i}_ms" for i in range(stages) for what in ("begin", "end")]
        times = rows[["scheduled_ms", *columns, "end_ms"]].to_numpy()
        assert (np.diff(times) >= 0).all() and rows.begin_1_ms.notna().all() == (stages == 2)


def test_the_table_and_the_picture_are_of_the_recorded_times(shown):
    df = page.table().set_index("system")
    assert df.requests.tolist() == [8, 8, 4]
    ends = shown[page.RECORDING].groupby("system").end_ms.max() / 1e3
    assert df.seconds.to_dict() == pytest.approx(ends.to_dict())
    assert df.idle_percent.between(0, 100).all() and df.bubble_p50.notna().tolist() == [True, True, False]
    drawn = page.draw(df.reset_index())
    assert [ax.get_title("right") for ax in drawn.axes[:2]] == [
        f"{page.NAMES[system]}: stages idle {df.idle_percent[system]:.0f} % of the run" for system in df.index[:2]
    ]


def test_a_log_has_the_batches_that_were_written_down(shown):
    for system in page.SYSTEMS:
        events, told = LOAD.batches(system).iterations, page.log(system).iterations
        assert list(map(digest, told)) == list(map(digest, events))
        assert [event.lane for event in told] == [event.lane for event in events]


def test_the_simulators_times_are_its_own(shown):
    for system in page.SYSTEMS:
        run = simulate(LOAD.setup(system), LOAD.requests(system))
        told = page.log(system, page.FORETOLD)
        assert page.seconds(told) == pytest.approx(page.seconds(run)) and told.requests == run.requests
        if page.SYSTEMS[system][1] > 1:
            assert page.waits(told) == pytest.approx(page.waits(run), abs=1e-8)


def test_times_of_other_batches_are_refused(shown, monkeypatch):
    mine = shown[page.RECORDING]
    other = mine.assign(digest=mine.digest.where(mine.iteration > 0, "00000000"))
    monkeypatch.setattr(page, "read", (shown | {page.RECORDING: other}).get)
    with pytest.raises(ValueError, match="^digest: got engine-pp with other batches than Orca forms, allowed are the"):
        page.log("Orca")


def test_claims_compare_the_systems(monkeypatch):
    rows = [("Orca", 12.0, 3.0, 11.0), ("SARATHI", 10.0, 0.5, 10.0), ("replicas, Orca", 9.0, None, 9.0)]
    columns = ["system", "seconds", "bubble_p50", "simulated_seconds"]
    monkeypatch.setattr(page, "table", lambda: pd.DataFrame(rows, columns=columns))
    assert page.bubble_gain() == 6 and page.sooner() == 1.2 and page.sooner("replicas, Orca") == 0.9
    assert page.foretold() == pytest.approx(1.2 / 1.1)


def test_the_simulator_forms_the_batches_that_are_measured():
    """Its own executor too, so that its times may stand beside the measured ones."""
    for system in page.SYSTEMS:
        events = simulate(page.LOAD.setup(system), page.LOAD.requests(system)).iterations
        assert list(map(digest, events)) == list(map(digest, page.LOAD.batches(system).iterations))


def test_the_page_asks_for_every_iteration_once():
    cases = page.cases()
    assert len({tuple(case.values()) for case in cases}) == len(cases) > 3000
    assert {case["system"] for case in cases} == set(page.SYSTEMS)
