"""A plan knows no stream: made on one, run on others, at once or in turn, from any thread, dropped at any time."""

from concurrent.futures import ThreadPoolExecutor

import on_card
import pytest
import torch
from on_card import BUSY, batch_for, padded_for, prepared, run, spoil_free_memory

import pod

asked = on_card.asked


def streams(count: int) -> list:
    return [torch.cuda.Stream() for _ in range(count)]


def unharmed(plan) -> bool:
    torch.cuda.synchronize()
    return int(plan.placed(True).counters.abs().sum()) == 0


def test_a_plan_made_on_one_stream_runs_on_another(method):
    """While the first is busy, so that nothing which was left to it has been done yet."""
    _, tensors, want = prepared(method)
    here, there = streams(2)
    for _ in range(20):
        spoil_free_memory()
        with torch.cuda.stream(here):
            torch.cuda._sleep(BUSY)
            plan = pod.plan(batch_for(method), method=method)
        with torch.cuda.stream(there):
            out = run(plan, tensors)
        there.synchronize()
        assert torch.equal(out, want) and unharmed(plan)


@pytest.mark.parametrize("batch_of", [batch_for, padded_for])
def test_a_plan_may_be_dropped_while_its_kernel_waits_to_run(method, batch_of):
    batch = batch_of(method)
    _, tensors, want = prepared(method, batch)
    (there,) = streams(1)
    for _ in range(20):
        plan = pod.plan(batch, method=method)
        with torch.cuda.stream(there):
            torch.cuda._sleep(BUSY)
            out = run(plan, tensors, out=torch.full_like(want, torch.nan))
        del plan
        others = [pod.plan(batch, method=method) for _ in range(3)]  # would take its memory
        spoil = [torch.full((1 << 20,), 7, dtype=torch.int32, device="cuda") for _ in range(8)]
        there.synchronize()
        assert torch.equal(out, want)
        del others, spoil


def test_rows_that_see_no_key_are_zeros(method):
    """Whichever family writes them."""
    batch = padded_for(method)
    _, _, want = prepared(method, batch)
    ends = torch.tensor(batch.q_lens).cumsum(0).tolist()
    empty = [end - 1 for end, q, kv in zip(ends, batch.q_lens, batch.kv_lens, strict=True) if q and not kv]
    assert len(empty) >= 2 and not want[empty].any() and want.isfinite().all()


def test_one_plan_on_two_streams_at_once(method):
    plan, tensors, want = prepared(method)
    both, outs = streams(2), []
    for turn in range(60):
        with torch.cuda.stream(both[turn % 2]):
            if turn % 7 == 0:
                torch.cuda._sleep(BUSY // 10)
            outs.append(run(plan, tensors))
    torch.cuda.synchronize()
    assert all(torch.equal(out, want) for out in outs) and unharmed(plan)


def test_one_plan_from_four_threads(method):
    plan, tensors, want = prepared(method)

    def work(stream) -> bool:
        with torch.cuda.stream(stream):
            outs = [run(plan, tensors) for _ in range(25)]
            stream.synchronize()
            return all(torch.equal(out, want) for out in outs)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, streams(4)))
    assert unharmed(plan)


def test_two_plans_at_once(method):
    plan, tensors, want = prepared(method)
    plans, both = [plan, pod.plan(batch_for(method), method=method)], streams(2)
    torch.cuda.synchronize()
    for _ in range(30):
        outs = []
        for mine, stream in zip(plans, both, strict=True):
            with torch.cuda.stream(stream):
                outs.append(run(mine, tensors))
        torch.cuda.synchronize()
        assert all(torch.equal(out, want) for out in outs)
    assert all(map(unharmed, plans))


def test_planning_does_not_wait_for_kernels_that_run():
    """Its own copy is all that it waits for."""
    import time

    batch = batch_for("pod")
    pod.plan(batch)
    torch.cuda._sleep(20 * BUSY)
    start = time.perf_counter()
    pod.plan(batch)
    took, busy = time.perf_counter() - start, not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert busy, f"the stream was idle again after {took * 1e3:.0f} ms: the test saw nothing"
    assert took < 0.02


@pytest.mark.parametrize("causal", [True, False])
def test_both_masks_from_two_threads(method, causal):
    """The lists of the other mask are made when first asked for: once, whoever asks."""
    plan, tensors, _ = prepared(method)
    with ThreadPoolExecutor(4) as pool:
        outs = list(pool.map(lambda _: run(plan, tensors, causal=causal), range(8)))
    torch.cuda.synchronize()
    assert all(torch.equal(out, outs[0]) for out in outs)
