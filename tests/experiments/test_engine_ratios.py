"""The windows over P:D and those of the sm_80 kernels: what is asked for, and what the tables make of rows."""

import pandas as pd
import pytest
import torch

from pod.experiments.engine import engine_ratios, engine_sm80, engine_windows
from pod.serving.engine import Engine
from pod.serving.loop import Ticks
from pod.serving.model import Llama, random_weights
from pod.serving.schedulers import Sarathi
from pod.serving.shapes import Shape
from pod.simulate.windows import OFFLINE, Load, window

TINY = Shape("tiny", "Tiny", 2, 64, 4, 2, 16, 96, 96, context=1024)
SCARCE = Load("tiny", 3, 32, 600, 60, room=6)  # memory for fewer requests than would decode


def hybrid(events) -> float:
    return sum(bool(e.prefills and e.decodes) for e in events) / len(events)


@pytest.mark.parametrize("ratio", engine_ratios.RATIOS)
def test_a_window_is_out_of_the_middle_of_a_long_run(ratio):
    load = engine_ratios.load(ratio)
    scheduler = load.scheduler()
    events = window(load, Ticks(), scheduler)
    assert len(events) == engine_ratios.ITERATIONS and scheduler.waiting and sum(len(e.finished) for e in events) >= 2
    assert not any(e.preempted for e in events), "memory is full, and nobody has to go"
    counts = [len(e.decodes) for e in events]
    assert max(counts) - min(counts) <= 2, "as many decode at the end as at the start"


def test_long_answers_leave_most_iterations_without_a_prompt():
    share = {ratio: hybrid(window(load := engine_ratios.load(ratio), Ticks(), load.scheduler()))
             for ratio in engine_ratios.RATIOS}  # fmt: skip
    assert list(share.values()) == sorted(share.values()) and share[4] < 0.25 and share[24] > 0.95


def test_memory_bounds_who_decodes():
    free = Load("tiny", 3, 32, 600, 60)
    assert free.running == 8 and SCARCE.running == 1 and SCARCE.blocks == 6
    assert Load("tiny", 3, 32, 600, 60, room=10_000).running == 8, "what does not bind changes nothing"


def rows_of(run: str, ms: list[float], prompts: list[int], digests=None) -> pd.DataFrame:
    starts = [sum(ms[:i]) for i in range(len(ms) + 1)]
    count = len(starts)
    columns = {"scheduled_ms": starts, "end_ms": starts, "gpu_ms": [*ms, 1], "prompt": [*prompts, 0]}
    digests = digests or [*map(str, range(count))]
    return pd.DataFrame({"run": run, "iteration": range(count), **columns, "decodes": 10, "digest": digests})


def test_the_gain_of_a_ratio_is_over_the_faster_call_of_each_batch(monkeypatch):
    prompts = [7, 7, 0, 7, 0]  # the first iteration warms up
    times = {"hopper": [99, 8, 10, 8, 10], "hopper-serial": [1, 9, 18, 9, 18],
             "fa3": [1, 12, 20, 12, 20], "fa3-one": [1, 20, 15, 20, 15]}  # fmt: skip
    made = [rows_of(f"{name}, {pd}", ms, prompts) for name, ms in times.items() for pd in engine_ratios.RATIOS]
    monkeypatch.setattr(engine_ratios, "read", lambda name: pd.concat(made))
    df = engine_ratios.table()
    assert df.gain_percent.tolist() == pytest.approx([50] * len(df))
    assert engine_ratios.decodes_gain(8) == pytest.approx(50)
    assert df.fused_gain_percent.tolist() == pytest.approx([50] * len(df))
    assert df.hybrid_percent.tolist() == pytest.approx([100 * 24 / 54] * len(df)) and set(df.decodes) == {10}
    engine_ratios.draw(df)


def test_twins_are_compared_and_others_refused(monkeypatch):
    made = {f"{model}, {system}": rows_of(f"{model}, {system}", ms, [1] * 5) for model in OFFLINE
            for system, ms in {"in turn": [50, 12, 12, 12, 12], "POD": [1, 10, 10, 10, 10]}.items()}  # fmt: skip
    monkeypatch.setattr(engine_sm80, "read", lambda name: pd.concat(made.values()))
    assert engine_sm80.gain("yi-6b") == pytest.approx(20) and engine_sm80.table().error.tolist() == [0, 0, 0]
    engine_sm80.draw(engine_sm80.table())
    made["yi-6b, POD"] = rows_of("yi-6b, POD", [1.0] * 5, [1] * 5, ["other"] * 6)
    with pytest.raises(ValueError, match="^digest: got two runs with other batches"):
        engine_sm80.table()


def test_two_engines_get_the_same_batches(unwatched):
    model = Llama(TINY, random_weights(0, 2), dtype=torch.float32)
    runs = [engine_windows.timed(SCARCE, Sarathi, 20, Engine(model, SCARCE.pool(), "sdpa")) for _ in range(2)]
    first, again = ([row["digest"] for row in run] for run in runs)
    assert first == again and len(set(first)) == 20
