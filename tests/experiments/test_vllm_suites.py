"""The suites of the ladder on a tiny model: what they execute, and how a profile becomes bins."""

from statistics import median

import pytest

from pod import kernels
from pod.experiments.plus34 import plus34_t1, sampler_share, vllm_ladder, vllm_run, vllm_timeline
from pod.serving import vllm2023
from pod.serving.shapes import Shape

torch = pytest.importorskip("torch")
emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
TINY = Shape("tiny", "Tiny", layers=2, hidden=256, q_heads=2, kv_heads=2, head_dim=128, ffn=128, vocab=64, context=128)
CHATS = vllm2023.chats


@pytest.fixture
def tiny(monkeypatch):
    """Five short chats on two layers and a CPU, instead of a thousand on 13B."""
    for cached in (vllm_ladder._run, vllm_ladder.chosen, plus34_t1._run):
        cached.cache_clear()
    monkeypatch.setattr(vllm2023, "chats", lambda: CHATS(5, mean_prompt=14, mean_output=6))
    monkeypatch.setattr(vllm_ladder, "EVERY", {"prompts": 3, "decodes": 3})
    place = vllm_ladder.Lab(TINY, 40, "cpu", torch.float16, today="sdpa")
    place.warm()
    monkeypatch.setattr(vllm_ladder, "lab", lambda: place)
    yield place
    for cached in (vllm_ladder._run, vllm_ladder.chosen, plus34_t1._run):
        cached.cache_clear()


def test_the_run_is_the_posts():
    log = vllm_ladder.plan()
    assert len(log.requests) == 1000 and not log.refused
    assert all(bool(i.prefills) != bool(i.decodes) for i in log.iterations)
    assert max(len(i.decodes) for i in log.iterations) == vllm2023.MAX_BATCH
    assert max(i.tokens for i in log.iterations) <= vllm2023.MAX_TOKENS
    assert not any(i.preempted for i in log.iterations)
    kinds = ["prompts" if i.prefills else "decodes" for i in log.iterations]
    for kind, every in vllm_ladder.EVERY.items():  # spread over all of them, from the first to the last
        picked = [i for i in vllm_ladder.chosen() if kinds[i] == kind]
        assert len(picked) == pytest.approx(kinds.count(kind) / every, abs=2)
        assert picked[0] == kinds.index(kind) and picked[-1] == len(kinds) - 1 - kinds[::-1].index(kind)
    assert plus34_t1.FIRST + plus34_t1.COUNT < len(log.iterations)


@emulated
def test_every_chosen_iteration_is_timed_for_every_variant(tiny):
    rows = [case | vllm_ladder.measure(case) for case in vllm_ladder.cases()]
    assert len(rows) == 9 * len(vllm_ladder.chosen()) > 27
    parts = [row["model_ms"] + row["sampler_ms"] for row in rows]
    assert parts == pytest.approx([row["ms"] for row in rows], abs=1e-3) and min(parts) > 0
    assert min(row["loop_ms"] for row in rows) > 0
    assert median(row["loop_ms"] for row in rows) < median(row["ms"] for row in rows)  # any one may be interrupted
    kinds = {bool(vllm_ladder.plan().iterations[row["iteration"]].prefills) for row in rows}
    assert kinds == {True, False}
    lengths = {r.id: r.prompt + r.output for r in vllm2023.chats()}
    assert {i: len(text) for i, text in tiny.texts.items()} == lengths  # no variant left a token behind
    assert len(tiny.pool.free) == 40


@emulated
def test_the_whole_run_leaves_no_iteration_out(tiny):
    """Every request has all of its tokens after each rung, of which none is one that was only planned."""
    lengths = {r.id: r.prompt + r.output for r in vllm2023.chats()}
    for case in vllm_run.cases():
        row = vllm_run.measure(case)
        assert row["requests"] == 5 and row["iterations"] == len(vllm_ladder.plan().iterations)
        assert {i: len(text) for i, text in tiny.texts.items()} == lengths and row["tokens"] > 0
        assert row["requests_s"] == pytest.approx(5 / row["seconds"], rel=0.01) and len(tiny.pool.free) == 40


@emulated
def test_a_stretch_runs_its_iterations_and_no_others(tiny, monkeypatch):
    monkeypatch.setattr(plus34_t1, "FIRST", 2)
    monkeypatch.setattr(plus34_t1, "COUNT", 3)
    variant = vllm2023.LADDER["one copy"]
    executed = []
    submit = tiny.engines[variant].submit
    noting = lambda batch, event: executed.append(batch) or submit(batch, event)  # noqa: E731
    monkeypatch.setattr(tiny.engines[variant], "submit", noting)
    rows = [plus34_t1.measure(case) for case in plus34_t1.cases() if case["sampler"] == "packed"]
    assert len(executed) == len(rows) == 3 and all(row["ms"] > 0 for row in rows)


@emulated
def test_sampler_share_returns_what_it_takes(tiny, monkeypatch):
    monkeypatch.setattr(sampler_share, "CONTEXT", 20)
    for sampler in ("loop", "packed"):
        row = sampler_share.measure({"sampler": sampler, "batch": 3})
        assert row["ms"] > 0 and row["sampler_ms"] > 0
        assert len(tiny.pool.free) == 40


# ---------------------------------------------------------------- a profile


def span(category, name, start, length, correlation=None):
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "args": args}


EVENTS = [
    span("user_annotation", "iteration", 1000, 400),
    span("user_annotation", "sampler begins", 1100, 1),
    span("cuda_runtime", "cudaLaunchKernel", 1010, 5, 1), span("kernel", "gemm", 1050, 100, 1),
    span("cuda_runtime", "cudaLaunchKernel", 1020, 5, 2), span("kernel", "gemm", 1140, 60, 2),
    span("cuda_runtime", "cudaLaunchKernel", 1110, 5, 3), span("kernel", "softmax", 1220, 40, 3),
    span("cuda_runtime", "cudaMemcpyAsync", 1120, 180, 4),
    span("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1290, 2, 4),
    {"ph": "i", "name": "marker", "ts": 1},
]  # fmt: skip


def test_a_profile_becomes_bins(monkeypatch):
    monkeypatch.setattr(vllm_timeline, "BINS", 40)
    rows = vllm_timeline.views(EVENTS)["iteration"]
    assert len(rows) == 40 and rows[1]["start_us"] == rows[0]["width_us"] == 10
    busy = lambda name: sum(row[name] * row["width_us"] for row in rows)  # noqa: E731
    assert busy("model") == pytest.approx(150)  # 100 + 60 with 10 in common
    assert busy("sampler") == pytest.approx(42) and busy("waits") == pytest.approx(180)
    assert [i for i, row in enumerate(rows) if row["copies_begun"]] == [29]
    assert sum(row["model_begun"] for row in rows) == 2 and sum(row["sampler_begun"] for row in rows) == 2


def test_the_zoom_begins_where_the_model_ends():
    rows = vllm_timeline.views(EVENTS)["zoom"]
    begin = next(row["start_us"] for row in rows if row["sampler"])
    assert begin == pytest.approx(20) and len(rows) * rows[0]["width_us"] == pytest.approx(vllm_timeline.ZOOM_US)


def test_the_profiled_iteration_is_a_typical_one():
    log = vllm_ladder.plan()
    batches = [len(i.decodes) for i in log.iterations if i.decodes]
    assert len(log.iterations[vllm_timeline.middle()].decodes) == pytest.approx(sum(batches) / len(batches), abs=2)
