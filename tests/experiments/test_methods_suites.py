"""The suites of chapter 09: which batches they take, a wrong way becomes a named hole, and how counters are read."""

import sys
from contextlib import nullcontext
from itertools import groupby
from types import SimpleNamespace

import pytest
import torch

from pod import files
from pod.batch import HybridBatch
from pod.experiments.hopper import hopper_sweep
from pod.experiments.pod import pod_01, pod_06, pod_11, pod_t7
from pod.lab import registry
from pod.lab.measure import ncu, peers, run, timing
from pod.schedule.work import SHAPES

TOY = HybridBatch.of(40, 96, 3, 70, 4, 2, 64)


@pytest.fixture(scope="module")
def setting():
    return peers.Setting(TOY, device="cpu")


SUITES = [name for name in registry.measured() if name != "pod-trace"]  # whose rows are the CTAs of plans for the GPU


@pytest.mark.parametrize("name", SUITES)
def test_rows_of_a_suite_have_names_of_their_own(name):
    suite = registry.maker(name)
    rows = [tuple(str(case[key]) for key in suite.KEYS) for case in suite.cases()]
    assert len(set(rows)) == len(rows) > 0
    assert suite.REPEATS % 3 == 0 or not name.startswith("methods")


def test_sweep_takes_every_batch_and_begins_with_a_fair_sample():
    rows, all_rows = pod_11.cases(), hopper_sweep.cases()
    key = lambda case: tuple(case[k] for k in pod_11.KEYS)  # noqa: E731
    assert sorted(map(key, rows)) == sorted(map(key, all_rows)) and len(rows) > 1000
    even = [case for case in rows if case["even"]]
    assert even == rows[: pod_11.EVEN]
    for name in ("model", "chunk", "context"):  # each value about as often as in the whole sweep
        for value in {case[name] for case in all_rows}:
            share, whole = (sum(c[name] == value for c in r) / len(r) for r in (even, all_rows))
            assert share == pytest.approx(whole, abs=0.07), (name, value)


def test_batches_that_may_pass_the_filter_come_before_the_rest():
    balanced = [pod_11._is_balanced(case) for case in pod_11.cases()[pod_11.EVEN :]]
    assert balanced == sorted(balanced, reverse=True) and 0 < sum(balanced) < len(balanced)


def test_figure_6_has_a_full_wave_and_one_request_more_on_both_gpus():
    from pod.experiments.basics.waves import last_in_a_wave
    from pod.hardware import A100, H200

    full = {last_in_a_wave(gpu.sms)[0] for gpu in (A100, H200)}
    assert set(pod_06.DECODES) == full | {n + 1 for n in full}


@pytest.mark.parametrize("ways", [peers.HALVES, peers.FAMILY, peers.CONFIGURATIONS])
def test_the_family_computes_the_right_thing(setting, ways):
    calls, holes = peers.ready(setting, ways)
    assert holes == {} and set(calls) == set(ways)


def test_decode_with_prefills_tile_is_right_and_has_its_rows():
    decodes = peers.Setting(HybridBatch((1, 1, 1), (70, 96, 33), 4, 2, 64), device="cpu")
    ways = {name: make for name, make in pod_01.WAYS["tile"].items() if name != "fa2"}
    calls, holes = peers.ready(decodes, ways)
    assert holes == {} and set(calls) == set(ways)
    shapes = [SHAPES[make.keywords["ctas_per_sm"]] for make in list(ways.values())[1:]]
    assert [shape.prefill_rows for shape in shapes] == [64, 128]


def test_a_wrong_way_is_a_named_hole(setting):
    def off_by_one(s):
        return lambda: (s.q_prefill, None)

    def broken(s):
        raise ValueError("no such shape at /tmp/made/x.h:49\nmore")

    def absent(s):
        import no_such_package  # noqa: F401

    calls, holes = peers.ready(setting, {"wrong": off_by_one, "broken": broken, "absent": absent})
    assert calls == {}
    assert holes["wrong"].startswith("wrong result") and holes["broken"] == "ValueError: no such shape at x.h:49"
    assert holes["absent"] == "not installed (no_such_package)"


def test_dense_peers_refuse_ragged_decodes():
    ragged = peers.Setting(HybridBatch((40, 1, 1), (96, 70, 64), 4, 2, 64), device="cpu")
    assert "2 lengths" in peers.ready(ragged, {"fa2": peers.fa2_decode})[1]["fa2"]


def test_the_mask_of_a_chunk_is_that_of_the_kernels(setting, monkeypatch):
    """torch's own attention with the mask that cudnn_serial hands over agrees with the float64 reference."""
    from contextlib import nullcontext

    monkeypatch.setattr(torch.nn.attention, "sdpa_kernel", lambda backend: nullcontext())
    assert peers.ready(setting, {"cudnn": peers.cudnn_serial})[1] == {}


def test_splits_of_table_7():
    assert pod_t7.DECODES[0] == 64 and [c["chunk"] for c in pod_t7.cases()[:4]] == [28, 29, 30, 31]


# ---------------------------------------------------------------- counters


def ncu_table(*kernels) -> list[str]:
    names = ["ID", "Kernel Name", *ncu.METRICS.values()]
    quoted = [",".join(f'"{cell}"' for cell in row) for row in (names, ["", "", "ns", "%", "%", "%"], *kernels)]
    return quoted


def test_counters_fall_apart_into_calls():
    marker = ("void vectorized_elementwise_kernel<4, FillFunctor<double>>", "900", "0.1", "0", "0.1")
    fills = [("fill", "3,000.00", "60", "50", "4"), ("FillFunctor<float>", "1,000", "20", "2", "80")]
    rows = [marker, *fills, marker, ("pod", "2,000", "50", "50", "50")]
    kernels = ncu.read(ncu_table(*((i, *row) for i, row in enumerate(rows))))
    calls = ncu.calls_of(kernels)
    assert [[k["kernel"] for k in call] for call in calls] == [["fill", "FillFunctor<float>"], ["pod"]]
    assert ncu._mean(calls[0]) == pytest.approx({"us": 4.0, "compute": 50.0, "tensor": 38.0, "dram": 23.0})


def test_no_ncu_is_said_in_words_and_utilisation_is_counted(monkeypatch, capsys):
    monkeypatch.setattr(ncu.shutil, "which", lambda name: None)
    pod_01._counters.cache_clear()
    assert pod_01._counters() == []
    assert "no ncu here" in capsys.readouterr().out
    pod_01._counters.cache_clear()


def test_a_program_that_fails_under_ncu_is_said_in_words(monkeypatch, tmp_path):
    fake = tmp_path / "ncu"
    fake.write_text('#!/bin/sh\necho "==ERROR== ERR_NVGPUCTRPERM" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr(ncu.shutil, "which", lambda name: str(fake))
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        ncu.profile("pod.experiments.pod.pod_01")


# ---------------------------------------------------------------- python -m pod measure pod-06


def test_a_figure_names_the_recordings_that_it_shows():
    assert run.recordings_of("pod-06") == run.recordings_of("methods-chunks") == ["methods-chunks"]
    assert run.recordings_of("pod-01") == ["methods-counters", "methods-peers"]
    assert run.recordings_of("hopper-trace") == ["hopper-trace"]


@pytest.mark.parametrize("name", ["pod-03", "pod-99", "sweep", "online"])
def test_what_is_not_recorded_is_refused(name):
    with pytest.raises(ValueError, match=f"no recording {name}, nor a figure"):
        run.recordings_of(name)


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """Measures a suite of two runs with three rows each, of which nth says which call of `measure` it was."""
    asked = []

    def measure(case: dict) -> dict:
        asked.append(case["run"])
        return {"nth": len(asked)}

    suite = SimpleNamespace(KEYS=("run", "i"), WHOLE=("run",), UNITS=(), REPEATS=1, measure=measure)
    suite.cases = lambda: [{"run": name, "i": i} for name in "ab" for i in range(3)]
    monkeypatch.setattr(registry, "measured", lambda: {"toy": "toy"})
    monkeypatch.setitem(sys.modules, "toy", suite)
    monkeypatch.setattr(run.provenance, "watch", nullcontext)
    monkeypatch.setattr(run.provenance, "write", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 1))

    def rows(seconds: float) -> list[tuple]:
        asked.clear()
        path = run.measure("toy", tmp_path, seconds, again=False)
        return [(row["run"], row["i"], row["nth"]) for row in files.rows(path)]

    rows.path = tmp_path / "toy.csv"
    return rows


def test_an_interrupted_suite_keeps_whole_runs_and_goes_on(toy):
    """The clock stops it after the first run. The second has all of its rows from one execution."""
    first = [("a", "0", "1"), ("a", "1", "2"), ("a", "2", "3")]
    assert toy(seconds=0) == first
    assert toy(seconds=0) == first + [("b", *rest) for _, *rest in first]


def test_who_has_nothing_to_measure_leaves_the_sidecar_alone(toy, monkeypatch):
    toy(seconds=9)
    monkeypatch.setattr(run.provenance, "begun", lambda *_: {"commit": "that measured"})
    monkeypatch.setattr(run.provenance, "write", lambda *_, **__: pytest.fail("written for a session without a row"))
    assert len(toy(seconds=9)) == 6


def test_what_is_there_in_part_or_asked_for_no_more_does_not_count(toy):
    run._write(toy.path, [{"run": name, "i": i, "nth": 70} for name, i in (("a", 0), ("a", 3), ("c", 0))])
    assert [nth for *_, nth in toy(seconds=9)] == list("123456")


@pytest.mark.parametrize("name", SUITES)
def test_rows_of_one_execution_lie_together(name):
    """Suites go from execution to execution, and one must not come twice."""
    suite = registry.maker(name)
    whole = getattr(suite, "WHOLE", suite.KEYS)
    assert set(whole) <= set(suite.KEYS)
    units = [unit for unit, _ in groupby(suite.cases(), lambda case: run._name(case, whole))]
    assert len(units) == len(set(units))


def test_every_batch_gets_an_order_of_its_own(monkeypatch):
    """With one order for all batches, the same call under two names differs by a percent over the whole sweep."""
    visits = []
    monkeypatch.setattr(timing, "_samples", lambda call, n, lead, flush: (visits.append(call) or [1.0] * n, lead))
    for _ in range(2):
        timing.shuffled(dict.fromkeys("abcdefgh") | {name: name for name in "abcdefgh"}, rounds=1)
    first, second = visits[:8], visits[8:]
    assert sorted(first) == sorted(second) == list("abcdefgh") and first != second


def test_a_visit_lasts_about_as_long_as_asked(monkeypatch):
    """The first round takes the least number of calls; later ones take what fits, and at most 20."""
    taken = {5.0: [], 0.4: [], 0.01: []}
    monkeypatch.setattr(timing, "_samples", lambda ms, n, lead, flush: (taken[ms].append(n) or [ms] * n, lead))
    timing.shuffled({ms: ms for ms in taken}, rounds=3, ms=2.0, least=2)
    assert taken == {5.0: [2, 2, 2], 0.4: [2, 5, 5], 0.01: [2, 20, 20]}


@pytest.fixture
def slow_host(monkeypatch):
    """A GPU that reaches an event before the launch behind it wherever `late(fills so far)` says so."""
    fills, state = [], {"late": lambda count: False}

    class Event:
        def __init__(self, enable_timing):
            self.late = False

        def record(self):
            self.late = state["late"](len(fills))

        def query(self):
            return self.late

        def elapsed_time(self, end):
            return 9.0 if self.late else 1.0

    class Buffer:
        def zero_(self):
            fills.append(1)

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr(timing, "_flush_buffer", Buffer)
    return state


def test_the_host_gets_the_lead_that_it_needs(slow_host):
    slow_host["late"] = lambda count: count < 16
    assert timing._samples(lambda: None, 2, timing.LEADS[0], timing.fill) == ([1.0, 1.0], timing.LEADS[1])


def test_a_time_in_which_the_gpu_waited_for_the_host_does_not_count(slow_host):
    slow_host["late"] = lambda count: count == timing.LEADS[0] + 2  # the second of four
    assert timing.samples(lambda: None, 4) == [1.0] * 3


def test_a_host_that_is_always_late_is_timed_all_the_same(slow_host):
    slow_host["late"] = lambda count: True
    assert timing._samples(lambda: None, 2, timing.LEADS[0], timing.fill) == ([9.0, 9.0], timing.LEADS[-1])
