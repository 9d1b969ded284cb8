"""CUDA graphs: what a capture takes, what it refuses, and that replays give the same bits."""

import on_card
import pytest
import torch
from on_card import batch_for, prepared, run, spoil_free_memory

import pod

asked = on_card.asked


def test_a_plan_made_elsewhere_is_captured_and_replayed(method):
    plan, tensors, want = prepared(method)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(plan, tensors)
    for _ in range(20):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, want)
    assert int(plan.placed(True).counters.abs().sum()) == 0


def test_a_plan_that_never_ran_is_ready(method):
    _, tensors, want = prepared(method)
    plan, graph, stream = pod.plan(batch_for(method), method=method), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()  # as torch.cuda.graph, without its synchronisation
        out = run(plan, tensors)
        graph.capture_end()
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)


def test_layers_in_a_graph_and_outside_follow_each_other(method):
    plan, tensors, want = prepared(method)
    graph, outs = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        layers = [run(plan, tensors) for _ in range(4)]
    for _ in range(5):
        outs.append(run(plan, tensors))
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, want) for out in [*outs, *layers])


def test_a_graph_outlives_other_plans(method):
    plan, tensors, want = prepared(method)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(plan, tensors)
    for _ in range(5):
        pod.plan(batch_for(method), method=method)
        spoil_free_memory()
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, want)


def test_planning_inside_a_capture_is_refused(method):
    _, tensors, want = prepared(method)
    kept, graph = pod.plan(batch_for(method), method=method), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="plan: got a stream that captures a CUDA graph"):
            pod.plan(batch_for(method), method=method)
        out = run(kept, tensors)  # the capture itself goes on
    graph.replay()
    assert torch.equal(out, want)


def test_a_mask_that_comes_first_inside_a_capture_is_refused(method):
    if method == "lean":
        pytest.skip("of a single query both masks are one, and so are the lists")
    plan, tensors, _ = prepared(method)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="allowed are a plan made before"):
            run(plan, tensors, causal=False)
        run(plan, tensors)
    want, graph = run(plan, tensors, causal=False), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(plan, tensors, causal=False)
    graph.replay()
    assert torch.equal(out, want)
