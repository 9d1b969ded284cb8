"""What holds whatever the numbers are: nobody knows the future, names and units mean nothing, sums are sums."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joblib import parallel_config

from pod.serving.events import Log
from pod.serving.request import Request
from pod.simulate.energy import IDLE_WATTS, RECORDED, amounts
from pod.simulate.metrics import metrics
from pod.simulate.run import Both, Run, Setup, simulate
from pod.simulate.summary import Summary
from pod.simulate.workload import Workload
from pod.sweep import sweep

SMALL = Setup(tp=2, max_tokens=2048, chunk=256, max_batch=8, blocks=160)
SERVERS = (
    SMALL, replace(SMALL, scheduler="vllm"), replace(SMALL, scheduler="vllm", preemption="swap"),
    replace(SMALL, pp=2), replace(SMALL, pp=2, pipeline="reformed"), replace(SMALL, scheduler="orca", blocks=500),
    replace(SMALL, jitter=5.0),
)  # fmt: skip
CLUSTERS = tuple(
    replace(SMALL, replicas=3, router=router, prompt_replicas=prompts)
    for router in ("round-robin", "least-outstanding", "shortest-queue") for prompts in (0, 1)
)  # fmt: skip
servers, systems = st.sampled_from(SERVERS), st.sampled_from(SERVERS + CLUSTERS)

# Milliseconds at which nobody else comes; lengths that make pools of 2,560 tokens run dry
rows = st.lists(st.tuples(st.integers(1, 900), st.integers(2, 120)), min_size=2, max_size=24)
times = st.lists(st.integers(0, 4000), min_size=24, max_size=24, unique=True).map(sorted)


def made(rows, times, ids=None) -> list[Request]:
    ids = ids or range(len(rows))
    return [Request(i, *row, time / 1e3) for i, row, time in zip(ids, rows, times, strict=False)]


def told(log) -> list[tuple]:
    """All that happened, in a form that can be compared; lanes of a cluster are run one after the other."""
    return sorted((e.scheduled, e.lane, e.end, tuple(e.prefills), tuple(e.decodes), tuple(e.preempted))
                  for e in log.iterations)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(systems, rows, times, st.integers(1, 23))
def test_who_has_not_come_yet_changes_nothing(setup, rows, times, known):
    """What is scheduled before the next one arrives is the same, whoever that will be."""
    first = simulate(setup, made(rows[:known], times))
    every = simulate(setup, made(rows, times))
    came = times[min(known, len(rows) - 1)] / 1e3
    assert [e for e in told(first) if e[0] < came] == [e for e in told(every) if e[0] < came]


@settings(max_examples=60, deadline=None)
@given(systems, rows, times, st.integers(0, 23), st.integers(1, 200))
def test_nobody_knows_how_long_an_answer_will_be(setup, rows, times, which, more):
    """Up to its last token, the run of a longer answer is the same."""
    which %= len(rows)
    log = simulate(setup, made(rows, times))
    longer = list(rows)
    longer[which] = (rows[which][0], rows[which][1] + more)
    other = simulate(setup, made(longer, times))
    done = min(e.end for e in log.iterations if which in e.finished)
    assert [e for e in told(log) if e[0] < done] == [e for e in told(other) if e[0] < done]


@pytest.mark.parametrize("setup", [SMALL, *CLUSTERS[:2], replace(SMALL, scheduler="orca", blocks=500)])
def test_requests_that_are_used_up_or_have_one_id_are_refused(setup):
    """They ended at once, as if they had been served, or in a traceback."""
    served = made([(90, 9)] * 3, range(3))
    simulate(setup, served)
    for requests, words in (
        (served, "request 0: got one that has been served, allowed are new ones"),
        (made([(90, 9)] * 2, range(2), [7, 7]), "request 7: got two with this id, allowed is one"),
    ):
        with pytest.raises(ValueError, match=words):
            simulate(setup, requests)


@settings(max_examples=60, deadline=None)
@given(systems, rows, times, st.permutations(range(24)))
def test_names_mean_nothing(setup, rows, times, ids):
    plain, renamed = (simulate(setup, made(rows, times, names)) for names in (None, ids))
    assert metrics(plain) == metrics(renamed)
    assert [e.end for e in plain.iterations] == [e.end for e in renamed.iterations]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([s for s in SERVERS + CLUSTERS if not (s.prompt_replicas or s.jitter)]), rows, times)
def test_time_has_no_unit(setup, rows, times):
    """If all takes twice as long and everybody comes at twice the time, all times double, to the last bit."""
    plain = simulate(setup, made(rows, times))
    slow = simulate(replace(setup, slowdown=2.0), made(rows, [2 * t for t in times]))
    assert [(2 * e.scheduled, 2 * e.end) for e in plain.iterations] == [(e.scheduled, e.end) for e in slow.iterations]


@settings(max_examples=40, deadline=None)
@given(servers.filter(lambda s: s.pp == 1 and not s.jitter), rows, times, st.integers(2, 4))
def test_servers_in_turn_are_as_many_servers_alone(setup, rows, times, n):
    together = simulate(replace(setup, replicas=n), made(rows, times))
    for server in range(min(n, len(rows))):
        alone = simulate(setup, made(rows, times)[server::n])
        mine = [e for e in together.iterations if e.lane == server]
        one, other = ([(e.scheduled, e.end, e.prefills, e.decodes) for e in log] for log in (mine, alone.iterations))
        assert one == other


@settings(max_examples=60, deadline=None)
@given(systems, rows, times)
def test_tokens_in_are_tokens_out_and_nobody_works_more_than_the_clock(setup, rows, times):
    log, summary = Log(), Summary()
    simulate(setup, made(rows, times), into=Both(log, summary))
    row, prompts, outputs = summary.metrics(), *(sum(column) for column in zip(*rows, strict=True))
    seconds = 60 * row["minutes"]
    assert row["output_tokens_per_second"] * seconds == pytest.approx(outputs)
    computed = sum(tokens for e in log.iterations for _, tokens, *_ in e.prefills)
    assert summary.computed == computed >= summary.asked == prompts
    assert computed == prompts or row["preemptions"], "nothing is computed twice unless it was thrown away"
    assert summary.busy <= setup.replicas * setup.pp * seconds * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(servers.filter(lambda s: s.pp == 1), rows, times)
def test_little_s_law(setup, rows, times):
    """Who is in the system, by the queue and the batch that each iteration reports, times how long it takes, is the sum
    of all latencies, less the time that each waits for the iteration into whose midst it came."""
    log = simulate(setup, made(rows, times))
    starts = [e.scheduled for e in log.iterations]
    inside, here, gone = 0.0, set(), {}
    for event, after in zip(log.iterations, [*starts[1:], None], strict=True):
        here = here - {i for i, _ in event.preempted} | {c[0] for c in event.prefills} | set(event.decodes)
        inside += (event.waiting + len(here)) * (event.end - event.scheduled)
        assert after is None or after >= event.end
        gone |= dict.fromkeys(event.finished, event.end)
        here -= set(event.finished)
    waits = sum(min(s for s in starts if s >= at) - at for _, at, *_ in log.requests)
    latencies = sum(gone[i] - at for i, at, *_ in log.requests)
    assert inside + waits == pytest.approx(latencies, rel=1e-9)


@given(st.integers(1, 40), st.integers(1, 7))
@settings(max_examples=25, deadline=None)
def test_one_server_more_never_ends_later(requests, n):
    """Of equal requests that are all there."""
    work = Workload("uniform", requests, low=700, high=700)
    ends = [Run(replace(SMALL, replicas=k), work).metrics()["minutes"] for k in (n, n + 1)]
    assert ends[1] <= ends[0]


@pytest.mark.parametrize("options", [{}, {"replicas": 3}, {"replicas": 3, "prompt_replicas": 1}], ids=str)
def test_all_joules_are_those_of_iterations_and_of_waiting(options):
    setup = Setup(gpu="h200", measured=True, attention="pod", host="none", **options)
    run = Run(setup, Workload("azure-conv", 60, 4.0))
    row, log, cost = run.full(), simulate(setup, run.workload.requests()), setup.cost()
    constants = RECORDED["h200", "hopper"]
    work = sum(min(constants.joules(*amounts(cost.shape, e), e.seconds), 700 * e.seconds) for e in log.iterations)
    span = max(e.end for e in log.iterations) - min(at for _, at, *_ in log.requests)
    idle = setup.replicas * span - sum(e.seconds for e in log.iterations)
    assert row["joules_per_iteration"] * len(log.iterations) == pytest.approx(work)
    assert row["joules_per_request"] * 60 == pytest.approx(work + IDLE_WATTS["h200"] * idle)
    answered = sum(output for *_, output in log.requests)
    assert row["joules_per_token"] * answered == pytest.approx(work + IDLE_WATTS["h200"] * idle)


def test_it_does_not_matter_who_computes():
    """Processes, threads that share everything, or nobody but the caller."""
    runs = [Run(replace(setup, jitter=2.0), Workload("arxiv", 25, 2.0, high=2000)) for setup in SERVERS[:3] + CLUSTERS]
    here = [run.metrics() for run in runs]
    for backend in ("loky", "threading"):
        with parallel_config(backend=backend):
            assert sweep(Run.metrics, runs, cores=2, quiet=True) == here
    assert not any(np.isnan(value) for row in here for value in row.values())
