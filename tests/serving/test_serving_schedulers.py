"""What each scheduler does, on cases small enough to check by hand."""

import inspect
import subprocess
import sys

import pytest

from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.events import Log
from pod.serving.loop import Replay, Ticks, WallClock, serve
from pod.serving.request import Request
from pod.serving.schedulers import SCHEDULERS, VLLM, Orca, Sarathi, SarathiV1, Static
from pod.simulate import scenarios
from pod.simulate.run import Setup, simulate
from pod.simulate.scenarios import ticked
from pod.simulate.workload import Workload


def reserved(slots=4, tokens=40):
    return ReservedPool(slots * tokens, tokens)


def batches(log):
    """Each iteration as (chunk lengths by request, decoding requests)."""
    return [({c[0]: c[1] for c in e.prefills}, e.decodes) for e in log.iterations]


def test_schedulers_load_no_torch_and_no_clock():
    code = ("import sys, pod.serving.schedulers, pod.simulate.run, pod.simulate.workload;"
            "print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
    for kind in SCHEDULERS.values():
        source = inspect.getsource(sys.modules[kind.__module__])
        assert "import time" not in source and "random" not in source


@pytest.mark.parametrize("name", ["static", "orca", "vllm", "sarathi_v1", "sarathi"])
def test_a_scheduler_fits_on_a_screen(name):
    assert len(inspect.getsource(sys.modules[SCHEDULERS[name].__module__]).splitlines()) <= 60


def test_static_waits_for_its_longest():
    log = ticked(Static(reserved(), 2), [(2, 2), (3, 4), (2, 1)])
    assert batches(log) == [({0: 2, 1: 3}, []), ({}, [0, 1]), ({}, [1]), ({}, [1]), ({2: 2}, [])]
    assert [e.idle for e in log.iterations] == [[], [], [0], [0], []]
    assert [e.finished for e in log.iterations] == [[], [], [], [0, 1], [2]]


def test_orca_refills_at_once_with_whole_prompts():
    log = ticked(Orca(reserved(), 2), [(2, 2), (3, 4), (2, 1)])
    assert batches(log) == [({0: 2, 1: 3}, []), ({}, [0, 1]), ({2: 2}, [1]), ({}, [1])]


def test_orca_admits_no_more_than_it_has_reserved_room_for():
    log = ticked(Orca(ReservedPool(80, 40), 4), [(2, 2), (3, 2), (2, 1)])
    assert [len(p) + len(d) for p, d in batches(log)] == [2, 2, 1]


def test_vllm_puts_prompts_first_and_alone():
    log = ticked(VLLM(PagedPool(100, 2), 4), [(2, 4), (3, 3, 1.0)])
    assert batches(log) == [({0: 2}, []), ({1: 3}, []), ({}, [0, 1]), ({}, [0, 1]), ({}, [0])]


def test_vllm_limits_the_tokens_of_a_prompt_iteration():
    log = ticked(VLLM(PagedPool(100, 2), 4, max_tokens=8), [(5, 2), (4, 2)])
    assert batches(log)[:2] == [({0: 5}, []), ({1: 4}, [])]


def test_sarathi_gives_the_budget_to_decodes_first():
    log = ticked(Sarathi(PagedPool(100, 2), 4, chunk=4), [(3, 5), (7, 2, 1.0)])
    assert batches(log) == [({0: 3}, []), ({1: 3}, [0]), ({1: 3}, [0]), ({1: 1}, [0]), ({}, [0, 1])]


def test_sarathi_takes_several_prompts_only_when_asked():
    requests = [(2, 1), (2, 1), (2, 1)]
    one, many = (ticked(Sarathi(PagedPool(100, 2), 4, chunk=5, max_prefills=n), requests) for n in (1, 3))
    assert [p for p, _ in batches(one)] == [{0: 2}, {1: 2}, {2: 2}]
    assert [p for p, _ in batches(many)] == [{0: 2, 1: 2, 2: 1}, {2: 1}]


def test_sarathi_v1_keeps_the_rows_a_multiple_of_the_tile():
    scheduler = SarathiV1(reserved(9), 9, chunk=8, tile=4)
    assert [scheduler.chunk_beside(n) for n in (0, 3, 7, 8, 9, 11)] == [8, 5, 1, 4, 3, 1]
    log = ticked(SarathiV1(reserved(), 4, chunk=8, tile=4), [(5, 9), (20, 2, 1.0)])
    assert [e.tokens for e in log.iterations[1:3]] == [8, 8]


def test_preemption_drops_the_latest_and_recomputes_all_of_it():
    pool = PagedPool(5, 2, watermark=0.0)
    log = ticked(VLLM(pool, 4), [(4, 3), (4, 4)])
    (event,) = [e for e in log.iterations if e.preempted]
    assert event.preempted == [(1, "recompute")]
    assert ({1: 6}, []) in batches(log) or ({1: 5}, []) in batches(log), "prompt and output so far, as one prompt"


def test_swap_keeps_what_was_computed():
    recompute, swap = (scenarios.crowded()[k] for k in ("recompute", "swap"))
    total = {id(log): sum(e.tokens for e in log.iterations) for log in (recompute, swap)}
    asked = sum(p + o - 1 for p, o in scenarios.CROWD)
    assert total[id(swap)] == asked < total[id(recompute)]
    assert any(e.swapped_in for e in swap.iterations)
    assert not any(e.swapped_in and e.preempted for e in swap.iterations), "in and out never in the same step"


def test_swap_falls_back_to_recompute_when_host_memory_is_full():
    log = ticked(VLLM(PagedPool(12, 2, 0.0, swap_blocks=0), 4, preemption="swap"), scenarios.CROWD)
    assert {how for e in log.iterations for _, how in e.preempted} == {"recompute"}


def test_a_request_that_never_fits_is_refused_with_a_reason():
    log = ticked(VLLM(PagedPool(10, 2), 4), [(30, 5), (3, 3)])
    assert log.refused == {0: "35 tokens and the watermark need 19 blocks, the pool has 10"}
    assert [i for e in log.iterations for i in e.finished] == [1]
    with pytest.raises(ValueError, match="request 7: 60 tokens, the limit is 40"):
        Orca(reserved(), 2).add(Request(7, 30, 30))
    with pytest.raises(ValueError, match="60 tokens, an iteration has 50"):
        VLLM(PagedPool(100, 2), 4, max_tokens=50).add(Request(7, 30, 30))


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Request(1, 0, 3), "prompt of request 1: got 0"),
    (lambda: Request(1, 2.5, 3), "prompt of request 1: got 2.5"),
    (lambda: Request(1, 2, 3, -1.0), "arrival of request 1: got -1.0"),
    (lambda: PagedPool(0), "num_blocks: got 0"),
    (lambda: PagedPool(4, 0), "block_size: got 0"),
    (lambda: PagedPool(4, watermark=1.0), "watermark: got 1.0"),
    (lambda: ReservedPool(4, 9), "num_blocks: got 4, allowed are integers from 9, which one request"),
    (lambda: Orca(PagedPool(9), 2), "pool: got PagedPool, orca needs ReservedPool"),
    (lambda: VLLM(PagedPool(9), 0), "max_batch: got 0"),
    (lambda: VLLM(PagedPool(9), 1, preemption="pray"), "preemption: got 'pray'"),
    (lambda: Sarathi(PagedPool(9), 1, chunk=0), "chunk: got 0"),
    (lambda: SarathiV1(reserved(), 1, tile=0), "tile: got 0"),
])  # fmt: skip
def test_bad_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_log_survives_its_file(tmp_path):
    log = ticked(VLLM(PagedPool(12, 2, 0.0), 4), [*scenarios.CROWD, (90, 90)])
    log.save(tmp_path / "run.jsonl")
    again = Log.load(tmp_path / "run.jsonl")
    assert (again.requests, again.refused) == (log.requests, log.refused)
    assert again.iterations == log.iterations


REQUEST = b'{"event":"request","id":0,"arrival":0,"prompt":1,"output":1}'


@pytest.mark.parametrize("line", [
    b'{"event":"iteration"}', b"", b"[", b"[1, 2]", b"{}", b"7", b"null", b'"event"', b"NaN", b"\xff", b"[" * 100_000,
    b'{"event":' * 100_000, REQUEST.replace(b'"arrival":0', b'"arrival":NaN'), REQUEST.replace(b'"id":0,', b""),
    b'{"event":"iteration","prefills":7}', b'{"event":"other"}',
], ids=lambda line: line[:24].decode(errors="replace"))  # fmt: skip
def test_a_line_that_is_no_event_is_named(line, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"event":"run"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"bad.jsonl, line 2: not an event of a serving log \(.*\)$") as refused:
        Log.load(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_recorded_times_give_the_identical_batches(name, tmp_path):
    """With its own iteration times fed back, a run makes the same batches: what a real engine is checked with."""
    setup = Setup(tp=2, scheduler=name, max_batch=24, blocks=20_000 if "s" in name[1:] else 60_000, max_tokens=16384)
    work = Workload("arxiv", 60, qps=2.0, high=12_000)
    log = simulate(setup, work.requests())
    log.save(tmp_path / "run.jsonl")
    again = serve(work.requests(), setup.lanes(), Replay(Log.load(tmp_path / "run.jsonl")))
    assert batches(again) == batches(log)
    assert [e.preempted for e in again.iterations] == [e.preempted for e in log.iterations]


def test_the_loop_runs_on_a_real_clock_too():
    clock = WallClock()

    class Busy:
        def submit(self, batch, event):
            return clock.now

    log = serve([Request(0, 4, 2), Request(1, 3, 2, arrival=0.02)], [Sarathi(PagedPool(99), 4)], Busy(), clock)
    ends = [e.end for e in log.iterations]
    assert ends == sorted(ends) and log.iterations[-1].scheduled >= 0.02


def test_lanes_of_a_pipeline_share_the_queue():
    lanes = Setup(pp=4, scheduler="orca", max_batch=2, blocks=40_000).lanes()
    log = serve([Request(i, 5, 3) for i in range(8)], lanes, Ticks())
    assert {e.lane for e in log.iterations} == {0, 1, 2, 3}
