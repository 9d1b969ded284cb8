"""The public call inside torch.compile: whole graphs, and none anew for new lengths. Kernels in the emulator."""

import gc
from dataclasses import replace

import pytest

import pod
from pod import kernels
from pod.batch import HybridBatch

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)

MIXED = HybridBatch((5, 1, 1), (20, 30, 7), 2, 1, 64, page_size=16)
LONGER = HybridBatch((3, 3, 1), (40, 3, 16), 2, 1, 64, page_size=16)  # as many tokens


class Counter:
    """A backend that only counts what it is asked to compile."""

    def __init__(self, backend: str):
        self.backend, self.graphs = backend, 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return torch._dynamo.lookup_backend(self.backend)(graph, inputs)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def tensors_of(batch: HybridBatch):
    """Of one size, whatever the lengths: as engines keep them."""
    q, k, v, table = batch.tensors()
    room = torch.zeros(2, 12, *k.shape[1:], dtype=k.dtype)
    room[0, : len(k)], room[1, : len(v)] = k, v
    wide = torch.zeros(len(table), 4, dtype=torch.int32)
    wide[:, : table.shape[1]] = table
    return q, *room, wide


def layer(q, k, v, plan, table):
    return pod.hybrid_attention(q * 2, k, v, plan, table) + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("method", ["serial", "pod"])
def test_a_whole_graph_gives_the_same(backend, method):
    q, k, v, table = tensors_of(MIXED)
    plan, counter = pod.plan(MIXED, device="cpu", method=method), Counter(backend)
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for _ in range(2):
        assert torch.equal(compiled(q, k, v, plan, table), layer(q, k, v, plan, table))
    assert counter.graphs == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_new_lengths_of_one_plan_compile_nothing(backend):
    """The plan is refilled in place, as a workspace is: same object, other lists and another batch inside."""
    plan, counter = pod.plan(MIXED, device="cpu", method="serial"), Counter(backend)
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for batch in (MIXED, LONGER, MIXED):
        other = pod.plan(batch, device="cpu", method="serial")
        plan.batch, plan.allowed, plan.decide = other.batch, other.allowed, other.decide
        plan._placed, plan._operators = other._placed, other._operators
        q, k, v, table = tensors_of(batch)
        assert torch.equal(compiled(q, k, v, plan, table), layer(q, k, v, other, table))
    assert counter.graphs == 1


def test_plans_of_their_own_compile_at_most_once_more():
    """The number of a plan is first taken for a constant, then for a variable."""
    counter = Counter("eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for batch in (MIXED, LONGER, MIXED, LONGER, MIXED):
        plan, (q, k, v, table) = pod.plan(batch, device="cpu", method="serial"), tensors_of(batch)
        assert torch.equal(compiled(q, k, v, plan, table), layer(q, k, v, plan, table))
    assert counter.graphs <= 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_options_and_a_place_for_the_result(backend):
    q, k, v, table = tensors_of(MIXED)
    plan = pod.plan(MIXED, device="cpu", method="serial")

    def call(out):
        made, lse = pod.hybrid_attention(q, k, v, plan, table, 0.3, causal=False, return_lse=True, out=out)
        return made + 1, lse

    want, want_lse = call(torch.empty_like(q))
    out = torch.full_like(q, 7.0)
    got, lse = torch.compile(call, fullgraph=True, backend=backend)(out)
    assert torch.equal(got, want) and torch.equal(lse, want_lse) and torch.equal(out + 1, want)


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("lse", [False, True])
def test_the_operator_passes_opcheck(into, lse):
    q, k, v, table = tensors_of(MIXED)
    plan = pod.plan(MIXED, device="cpu", method="serial")
    out = torch.zeros_like(q) if into else None
    torch.library.opcheck(torch.ops.pod.attention, (q, k, v, table, plan.number, None, None, lse, out))


def test_bad_tensors_and_plans_that_are_gone_are_refused_when_it_runs():
    q, k, v, table = tensors_of(MIXED)
    plan = pod.plan(MIXED, device="cpu", method="serial")
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with pytest.raises(ValueError, match="^q: got dtype torch.float64, allowed by the plan is torch.bfloat16"):
        torch.ops.pod.attention(q.double(), k, v, table, plan.number, None, None, False, None)
    with pytest.raises(Exception, match="trace: got True inside torch.compile"):
        torch.compile(pod.hybrid_attention, fullgraph=True, backend="eager")(q, k, v, plan, table, trace=True)
    compiled(q, k, v, plan, table)
    number = plan.number
    del plan, compiled
    torch._dynamo.reset()
    gc.collect()
    with pytest.raises(RuntimeError, match="^plan: got one that is gone, allowed is one that is kept"):
        torch.ops.pod.attention(q, k, v, table, number, None, None, False, None)


@pytest.mark.parametrize("scale, causal, match", [(-1.0, None, "^softmax_scale: got -1.0"), (None, False, "^causal:")])
def test_what_a_layer_asks_is_checked_when_it_runs(scale, causal, match):
    q, k, v, table = tensors_of(MIXED)
    plan = pod.plan(MIXED, device="cpu", method="serial")
    plan.allowed.batch = replace(MIXED, window=5)  # no kernel here has windows
    with pytest.raises(ValueError, match=match):
        torch.ops.pod.attention(q, k, v, table, plan.number, scale, causal, False, None, None)
