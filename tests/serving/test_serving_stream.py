"""A run of any length in the same memory: the summary, its percentiles, and the log as it is written."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_serving_invariants import make, request_lists, systems

from pod.serving.events import Log, LogFile
from pod.serving.loop import Ticks, serve
from pod.serving.request import Request
from pod.serving.schedulers import Sarathi
from pod.simulate.metrics import metrics, requests
from pod.simulate.quantiles import Quantiles
from pod.simulate.run import Both, Run, Setup, description, simulate
from pod.simulate.summary import DEFINITIONS, STALLS, Summary
from pod.simulate.workload import Workload


class Uneven:
    """An executor whose iterations take long and short, so that gaps differ and lanes end in any order."""

    def submit(self, batch, event) -> float:
        return event.scheduled + 0.05 + 0.07 * (event.lane + batch.tokens % 7)


@pytest.mark.parametrize("definition", DEFINITIONS)
@settings(max_examples=150, deadline=None)
@given(systems(), request_lists)
def test_the_summary_is_what_the_tokens_of_the_log_say(definition, lanes, rows):
    log, summary = Log(), Summary(definition)
    serve(make(rows), lanes, Uneven(), into=Both(log, summary))
    if len(log.refused) == len(rows):
        return
    live, row = summary.metrics(), requests(log, definition)
    assert live == metrics(log, definition), "while it runs, and from the log"
    for name, values in (("ttft", row.ttft), ("tbt", row.gaps), ("latency", row.latency)):
        for p in (50, 99) if len(values) else ():
            assert live[f"{name}_p{p}"] == pytest.approx(np.percentile(values, p), rel=1e-12)
    for bound in STALLS:
        assert live[f"stalls_{bound * 1000:.0f}ms"] == pytest.approx(np.mean(row.worst_gap > bound) * 100)
    assert (live["requests"], live["refused"]) == (len(row.id), len(log.refused))
    assert live["tbt_max"] == row.gaps.max(initial=0.0)
    kept = (summary._arrival, summary._begun, summary._fresh, summary._last, summary._waited)
    assert not any(kept) and not any(summary._stalled.values()), "nothing is kept of who has gone"


@given(st.lists(st.tuples(st.floats(0, 1e3), st.integers(1, 9)), min_size=1, max_size=60), st.floats(0, 100))
def test_percentiles_are_numpy_s(pairs, p):
    q = Quantiles()
    for value, count in pairs:
        q.add(value, count)
    values = np.repeat([v for v, _ in pairs], [c for _, c in pairs])
    assert q.percentiles(p) == [pytest.approx(np.percentile(values, p), rel=1e-12)]
    assert (q.count, q.max) == (len(values), values.max())


def test_a_long_stream_is_kept_short_and_nearly_exact():
    values = np.random.default_rng(0).lognormal(-3, 1, 200_000)
    q = Quantiles(kept=50_000)
    for value in values.tolist():
        q.add(value)
    assert len(q._values) <= q.kept <= 100_000
    for p in (1, 50, 99, 99.9):
        assert q.percentiles(p)[0] == pytest.approx(np.percentile(values, p), rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"pp": 2, "scheduler": "orca"}, {"blocks": 1500}], ids=str)
def test_the_log_that_is_written_as_it_goes_is_the_log_that_is_saved(options, tmp_path):
    setup, work = Setup(tp=2, **options), Workload("arxiv", 60, 1.0, high=16384)
    log = simulate(setup, work.requests(), **vars(work))
    log.save(tmp_path / "after")
    file = LogFile(tmp_path / "during", description(setup, vars(work)))
    for r in work.stream():
        file.request(r.id, r.arrival, r.prompt, r.output, None)
    simulate(setup, work.stream(), into=file)
    file.close()
    assert (tmp_path / "during").read_bytes() == (tmp_path / "after").read_bytes()
    assert Log.load(tmp_path / "during").iterations == log.iterations


def test_requests_may_come_one_by_one_in_order():
    rows = [(5, 3, 2.0), (4, 2, 9.0), (3, 3, 9.0)]
    lane = lambda: [Sarathi(Setup().lanes()[0].pool, 8)]  # noqa: E731
    assert serve(make(rows), lane(), Ticks()) == serve(iter(make(rows)), lane(), Ticks())
    with pytest.raises(ValueError, match="arrival of request 1: got 1.0, allowed is 2.0 or later"):
        serve(iter([Request(0, 5, 3, 2.0), Request(1, 5, 3, 1.0)]), lane(), Ticks())
    made = [Workload("arxiv", 9000, 1.0, seed=5).requests(), list(Workload("arxiv", 9000, 1.0, seed=5).stream())]
    one, other = ([(r.id, r.prompt, r.output, r.arrival) for r in requests] for requests in made)
    assert one == other


def test_a_run_keeps_no_log_of_itself():
    run = Run(Setup(tp=2), Workload("arxiv", 50, 1.0))
    assert run.metrics() == metrics(simulate(run.setup, run.workload.requests()))


def spent(options: str) -> tuple[float, float]:
    """Processor seconds of a whole `python -m pod simulate`, and the most memory that it had, in MB."""
    run = f"from pod.__main__ import main; main({['simulate', *options.split()]!r}); import time; "
    code = run + "print(time.process_time(), open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    seconds, kilobytes = out.split()[-2:]
    return float(seconds), int(kilobytes) / 1e3


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the largest memory a process had")
def test_four_times_the_requests_need_no_more_memory():
    work = "--tp 2 --workload uniform --low 2000 --high 2000 --pd 20 --qps 6 --requests"
    (_, small), (_, large) = spent(f"{work} 3000"), spent(f"{work} 12000")
    assert large < small + 8 < 120


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the largest memory a process had")
def test_sixty_five_thousand_requests_take_less_than_forty_seconds_and_400_mb():
    """Two hours of chats on one H100. A processor that others share counts more seconds, about twice as many."""
    seconds, megabytes = spent("--gpu h100 --workload azure-conv --qps 10 --requests 65536")
    assert seconds < 40 and megabytes < 400
