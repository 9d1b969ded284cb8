"""Chapter 16's figures compute what they say: the run from its sample, idle time from a profile, parts of a program."""

import pytest

from pod.experiments.plus34 import plus34_03, plus34_05, plus34_t1, shared, vllm_ladder, vllm_timeline
from pod.serving.vllm2023 import LADDER

MODEL = {"registers": 12.0, "shared": 10.0, "hopper": 9.0}
LOOP = 0.5
SAMPLER = {"loop": 20.0, "loop, packed": 15.0, "batched": 5.0, "packed": 1.0}


def length(i: int) -> float:
    """An iteration takes a known time: prompts by their tokens, decodes longer later in the run."""
    every = shared.iterations()
    return 2 + every.tokens[i] / 1000 if every.prompts[i] else 1 + i / 1000


def row(case: dict) -> dict:
    model, sampler = (length(case["iteration"]) * x for x in (MODEL[case["kernel"]], SAMPLER[case["sampler"]]))
    parts = {"model_ms": model, "sampler_ms": sampler, "loop_ms": LOOP * length(case["iteration"])}
    return case | {"ms": model + sampler} | parts


def stretched(case: dict) -> dict:
    found = row(case)
    return case | {"ms": 1.02 * (found["ms"] + found["loop_ms"])}


def run(rung: str, seconds: float) -> dict:
    return {"rung": rung, "seconds": seconds, "iterations": 2148, "requests": 1000, "requests_s": 1000 / seconds}


RUN = dict(zip(LADDER, (100.0, 98.0, 71.0, 66.0), strict=True))  # whole, in seconds


def test_the_run_is_estimated_from_its_sample(recorded):
    recorded("vllm-ladder", [row(case) for case in vllm_ladder.cases()])
    recorded("vllm-run", [run(*each) for each in RUN.items()])
    recorded("vllm-stretch", [stretched(case) for case in plus34_t1.cases()])
    weight = sum(length(i) for i in shared.iterations().index) / 1e3
    df = plus34_t1.table().set_index(["kernel", "sampler"])
    for (kernel, sampler), found in df.iterrows():
        assert found.s == pytest.approx(weight * (MODEL[kernel] + SAMPLER[sampler] + LOOP))
        assert found.model_s + found.sampler_s + found.loop_s == pytest.approx(found.s)
    clean = MODEL["registers"] + SAMPLER["loop"] + LOOP
    assert plus34_t1.total_gain() == pytest.approx(100 / 66)
    assert plus34_t1.query_gain() == pytest.approx(100 / 98)
    assert plus34_t1.multinomial_gain() == pytest.approx(100 / 71)
    ratios = [RUN[rung] / df.s[variant] for rung, variant in LADDER.items()]
    assert plus34_t1.run_over_estimated() == pytest.approx(max(ratios, key=lambda ratio: abs(ratio - 1)))
    assert plus34_t1.today() == pytest.approx(11.5 / 10.5)
    assert plus34_t1.sampler_share() == pytest.approx(100 * 20 / clean)
    assert plus34_t1.savings_add() == pytest.approx(1)
    assert plus34_t1.python_over_kernel() == pytest.approx(clean / 13.5 / (clean / 30.5))
    assert plus34_t1.executed_over_estimated() == pytest.approx(1.02)
    query, draw, read = plus34_t1.CHANGES
    each = {query: -2, draw: -14.5, read: -4.5, f"{draw} x {read}": 0.5}
    every = plus34_t1.effects()
    assert every.to_dict() == pytest.approx({name: weight * each.get(name, 0) for name in every.index}, abs=1e-9)


def test_the_ladder_stands_beside_the_posts(recorded):
    recorded("vllm-ladder", [row(case) for case in vllm_ladder.cases()])
    recorded("vllm-run", [run(*each) for each in RUN.items()])
    df = plus34_t1.table()
    rungs = df[df.rung != ""].set_index("rung").loc[list(LADDER)]
    assert rungs.post_requests_s.tolist() == [4.02, 4.43, 5.18, 5.41]
    assert rungs.gain.is_monotonic_increasing and rungs.gain.iloc[0] == rungs.post_gain.iloc[0] == 1
    assert (df.rung == "").sum() == 5 and df.post_requests_s.isna().sum() == 5


def test_idle_time_is_what_the_gpu_does_not_use_of_an_iteration(recorded):
    bins = [{"start_us": 100.0 * i, "width_us": 100.0, "model": 1.0 if i < 80 else 0.0, "model_begun": 1,
             "sampler": 0.1 if i >= 80 else 0.0, "sampler_begun": 2, "waits": 0.0, "copies_begun": 1,
             "unprofiled_ms": 25.0} for i in range(vllm_timeline.BINS)]  # fmt: skip
    rows = [{"rung": rung, "view": "iteration", "bin": i} | b for rung in LADDER for i, b in enumerate(bins)]
    recorded("vllm-timeline", rows)
    recorded("vllm-ladder", [row(case) for case in vllm_ladder.cases()])
    ms = (MODEL["shared"] + SAMPLER["loop"]) * length(vllm_timeline.middle())
    assert plus34_05.idle() == pytest.approx(100 * (1 - (8.0 + 32 * 0.1) / ms))
    found = shared.summary(plus34_05.table())
    assert list(found.index) == list(plus34_05.SHOWN)
    assert (found.profiled_ms == 40).all() and (found.copies == vllm_timeline.BINS).all()


def test_barriers_tell_the_parts_of_the_program(recorded):
    rows = [{"kernel": kernel, "rank": i, "place": 10 * i, "instructions": 100, "share": 1.0, "loads": 0,
             "barriers": i + (kernel == "shared"), "sass": "LDG.E"} for kernel in ("registers", "shared")
            for i in range(8)]  # fmt: skip
    recorded("single-query-stalls", rows)
    want = ["scores", *["softmax"] * 4, "values", "last sums", "last sums"]
    assert plus34_03.table().part.tolist() == want * 2


def test_where_loads_wait_for_each_other_the_first_rung_is_there():
    """The seconds that a slower kernel adds are the same to every sampler, so only rungs that move the query gain."""
    gains = plus34_t1.with_loads_in_turn()
    slow, built, whole = (gains[way] for way in gains)
    assert list(gains.index) == list(LADDER) and (gains.loc["clean"] == 1).all()
    assert slow["query in shared memory"] > 1.05 > built["query in shared memory"]
    assert built.to_numpy() == pytest.approx(whole.to_numpy(), rel=0.02)
