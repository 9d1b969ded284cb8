"""What the call takes and what it refuses: one line before any launch, whatever is handed to it, and quickly."""

import array
import copy
import pickle
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import lay_out, layouts

import pod
from pod import attention, kernels
from pod.batch import SCALES, SOFTCAPS, HybridBatch
from pod.kernels import build, launch, lean, sm80, sm90
from pod.kernels.allowed import Allowed, scales_of
from pod.kernels.workspace import Workspace
from pod.reference import hybrid_attention as reference
from pod.schedule import decide
from pod.simulate import gpusim
from pod.simulate.gpusim import FLASH2

torch = pytest.importorskip("torch")
built = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)

GOOD = HybridBatch((4, 1), (20, 30), 4, 2, 64, page_size=16)


@pytest.fixture
def call(monkeypatch):
    """The good call with some of it changed; it must end before any launch."""
    plan = attention.plan(GOOD, device="cpu", method="pod")
    tensors = dict(zip(("q", "k_cache", "v_cache", "block_table"), GOOD.tensors(), strict=True))
    monkeypatch.setattr(plan, "run", lambda *_: pytest.fail("launched"))
    return lambda **change: pod.hybrid_attention(**tensors | {"plan": plan} | change)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "block_table"])
@pytest.mark.parametrize("what", [[1.0, 2.0], np.zeros((5, 4, 64), np.float16), 7, "q"])
def test_what_is_no_tensor_is_refused(call, name, what):
    with pytest.raises(ValueError, match=f"^{name}: got {type(what).__name__}, allowed is a dense torch tensor$"):
        call(**{name: what})


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache"])
def test_none_and_sparse_tensors_are_refused(call, name):
    with pytest.raises(ValueError, match=f"^{name}: got NoneType, allowed is a dense torch tensor$"):
        call(**{name: None})
    with pytest.raises(ValueError, match=f"^{name}: got torch.sparse_coo, allowed is a dense torch tensor$"):
        call(**{name: torch.zeros(5, 4, 64).to_sparse()})


@pytest.mark.parametrize("change, message", [
    (dict(causal="no"), "causal: got 'no', allowed are True, False and None"),
    (dict(causal=1), "causal: got 1, allowed"),
    (dict(softmax_scale="1"), "softmax_scale: got '1', allowed are numbers from 1e-30 to 1e\\+06$"),
    (dict(softmax_scale=True), "softmax_scale: got True"),
    (dict(softmax_scale=10**400), "softmax_scale: got 1000"),
    (dict(softmax_scale=1e10), "softmax_scale: got 10000000000.0, allowed"),  # it gave NaN
    (dict(softmax_scale=1e-320), "softmax_scale: got 1e-320, allowed are numbers from 1e-30"),
    *((dict(softmax_scale=x), "softmax_scale: got") for x in (0.0, -1.0, float("nan"), float("inf"))),
    (dict(return_lse="x"), "return_lse: got 'x', allowed are True and False"),
    (dict(trace=1), "trace: got 1, allowed are True and False"),
    (dict(plan=None), "plan: got NoneType, allowed is what pod.plan returns"),
    (dict(plan=GOOD), "plan: got HybridBatch, allowed is what pod.plan returns"),
])  # fmt: skip
def test_other_arguments_are_refused(call, change, message):
    with pytest.raises(ValueError, match=message):
        call(**change)


@pytest.mark.parametrize("name, spoil, message", [
    ("q", lambda x: x[1:], "q: got shape"),
    ("q", lambda x: x.float(), "q: got dtype"),
    ("q", lambda x: torch.cat([x, x], -1)[..., ::2], "q: got strides"),
    ("q", lambda x: torch.cat([x, x[..., :4]], -1)[..., :64], "q: got strides"),
    ("q", lambda x: x.to("meta"), "q: got device"),
    ("k_cache", lambda x: x.repeat(1, 2, 1, 1), "k_cache: got pages of 32"),
    ("k_cache", lambda x: torch.cat([x, x], -1)[..., ::2], "k_cache: got strides"),
    ("v_cache", lambda x: x[1:], "v_cache: got"),
    ("block_table", lambda x: x.long(), "block_table: got torch.int64"),
    ("block_table", lambda x: None, "block_table: got None"),
])  # fmt: skip
def test_a_tensor_that_does_not_fit_is_refused(call, name, spoil, message):
    spoilt = {name: spoil(dict(zip(TENSORS, GOOD.tensors(), strict=False))[name])}
    with pytest.raises(ValueError, match=message):
        call(**spoilt | ({"v_cache": spoilt[name]} if name == "k_cache" else {}))


def test_contiguous_call_refuses_tables_and_short_caches():
    batch = HybridBatch((4, 1), (20, 30), 4, 2, 64)
    plan, (q, k, v, _) = pod.plan(batch, device="cpu"), batch.tensors()
    with pytest.raises(ValueError, match="block_table: got one"):
        pod.hybrid_attention(q, k, v, plan, torch.zeros(2, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="k_cache: got 2 sequences of 29 slots"):
        pod.hybrid_attention(q, k[:, :29], v[:, :29], plan)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache"])
def test_gradients_are_refused_and_not_forgotten(call, name):
    x = dict(zip(("q", "k_cache", "v_cache"), GOOD.tensors(), strict=False))[name].requires_grad_()
    with pytest.raises(ValueError, match=f"{name}: got a tensor that requires a gradient, allowed is inference"):
        call(**{name: x})


@built
def test_without_gradients_such_tensors_are_as_any():
    plan, (q, k, v, table) = attention.plan(GOOD, device="cpu"), GOOD.tensors()
    want = pod.hybrid_attention(q, k, v, plan, table)
    with torch.no_grad():
        assert torch.equal(pod.hybrid_attention(q.requires_grad_(), k, v, plan, table), want)
    with pytest.raises(ValueError, match="q: got a tensor that requires"):
        pod.hybrid_attention(q, k, v, plan, table)


def test_a_layout_that_was_right_is_looked_at_again_when_it_changes():
    allowed, (q, k, v, table) = Allowed(GOOD, torch.device("cpu")), GOOD.tensors()
    for _ in range(2):
        allowed.check(q, k, v, table)
    shifted = torch.zeros(q.numel() + 1, dtype=q.dtype)[1:].view(q.shape)  # the same layout, at an odd address
    with pytest.raises(ValueError, match="q: got strides"):
        allowed.check(shifted, k, v, table)
    with pytest.raises(ValueError, match="v_cache: got"):
        allowed.check(q, k, v[:1], table)
    with pytest.raises(ValueError, match="block_table: got shape"):
        allowed.check(q, k, v, table[:, :1])
    with pytest.raises(ValueError, match="block_table: got .*99"):
        allowed.check(q, k, v, torch.full_like(table, 99))
    allowed.check(q, k, v, table)


def test_pages_are_checked_on_a_gpu_only_when_asked_for(monkeypatch):
    q, k, v, table = GOOD.tensors()
    gpu, wrong = torch.device("cpu"), torch.full_like(table, 99)

    def allowed():
        made = Allowed(GOOD, gpu)
        made.debug = bool(made.debug and debug)  # what a GPU leaves of it
        return made

    debug = ""
    allowed().check(q, k, v, wrong)  # does not wait for the table
    debug = "1"
    with pytest.raises(ValueError, match="block_table: got .*99"):
        allowed().check(q, k, v, wrong)


def test_the_check_is_quick_whatever_the_batch():
    def checked(sequences: int):
        batch = HybridBatch([1] * sequences, [16] * sequences, 4, 2, 64, page_size=16)
        allowed, tensors = Allowed(batch, torch.device("cpu")), batch.tensors()
        allowed.debug = False  # as on a GPU
        return timeit.Timer(lambda: allowed.check(*tensors), timer=time.thread_time)

    both = checked(4), checked(2048)
    rounds = [[each.timeit(50) / 50 * 1e6 for each in both] for _ in range(100)]  # in turn: others take the cores, too
    few, many = map(min, zip(*rounds, strict=True))
    assert many < 2 * few + 1 and few < 20, (few, many)  # some 3 on a quiet machine, where it once took 139


# ---------------------------------------------------------------- the plan

PLAN = dict(q_lens=[4, 1], kv_lens=[20, 30], num_q_heads=4, num_kv_heads=2, head_dim=64, device="cpu")


@pytest.mark.parametrize("change, message", [
    (dict(device="gpu"), "device: got 'gpu', allowed are 'cuda'"),
    (dict(device=None), "device: got None, allowed are 'cuda'"),
    (dict(device=1.5), "device: got 1.5, allowed are 'cuda'"),
    (dict(window=0), "window: got 0, allowed are integers from 1 on"),
    (dict(sinks=1), "sinks: got 1, allowed are True and False"),
    (dict(page_size=12), "page_size: got 12, allowed are multiples of 8 up to 1073741824, and None"),
    (dict(dtype=torch.float32), "dtype: got 'float32'"),
    (dict(q_lens=[4, -1]), "q_lens: got -1"),
    (dict(kv_lens=torch.tensor([20.0, 30.0])), "kv_lens: got dtype"),
    (dict(method="magic"), "method: got 'magic'"),
    (dict(policy="fair"), "policy: got 'fair'"),
    (dict(ctas_per_sm=3), "ctas_per_sm: got 3"),
    (dict(prefill_splits=0), "prefill_splits: got 0"),
    (dict(decode_splits="many"), "decode_splits: got 'many'"),
    (dict(device="meta"), "device: got 'meta'"),
    (dict(head_dim=64.0), "head_dim: got 64.0, allowed are integers"),
    (dict(head_dim=None), "head_dim: got None, allowed are integers"),
    (dict(q_lens=None), "q_lens: got None, allowed is a sequence of integers"),
    (dict(kv_lens=None), "kv_lens: got None, allowed is a sequence of integers"),
    (dict(kv_lens=[20, 2**40]), "kv_lens: got 1099511627776 at most"),
    (dict(kv_lens=[20, 2**70]), "kv_lens: got 1180591620717411303424 at most"),
    (dict(q_lens=[2**29, 1], kv_lens=[2**29, 30], num_q_heads=8), "2147483648|4294967304 rows of queries"),
    (dict(page_size=2**32), "page_size: got 4294967296, allowed are multiples of 8"),
    (dict(ctas_per_sm=2.0), "ctas_per_sm: got 2.0, allowed are 'auto', 2, 4"),
    (dict(policy=np.array(["a", "b"])), "policy: got ndarray of shape"),
    (dict(prefill_splits=np.array([1, 2])), "prefill_splits: got ndarray of shape"),
    (dict(q_lens=torch.ones(2, dtype=torch.int32, device="meta")), "q_lens: got a tensor without values"),
    (dict(dtype=None, q_lens=GOOD), "kv_lens: got .* beside a HybridBatch, allowed is what the batch says"),
    (dict(method="lean", q_lens=[1, 1], ctas_per_sm=4), "ctas_per_sm: got 4, allowed for method 'lean' is 'auto'"),
    *(
        (dict(method=m, policy="50:50"), f"policy: got '50:50', allowed for method '{m}' is 'auto'")
        for m in ("serial", "streams", "cta", "warp", "lean")
    ),
    (dict(method="hopper", policy="50:50"), "policy: got '50:50', allowed for method 'hopper' is 'auto'"),
])  # fmt: skip
def test_plan_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        pod.plan(**PLAN | change)


SAID_TWICE = {
    "kv_lens": [20, 30], "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "page_size": 16, "dtype": "bfloat16",
    "window": 5, "softcap": 30.0, "sinks": True,
}  # fmt: skip


@pytest.mark.parametrize("name", SAID_TWICE)
def test_what_a_batch_says_is_not_said_beside_it(name):
    with pytest.raises(ValueError, match=f"^{name}: got .* beside a HybridBatch, allowed is what the batch says$"):
        pod.plan(GOOD, device="cpu", **{name: SAID_TWICE[name]})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_plan_for_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="device: got 'cuda'"):
        pod.plan([1], [1], 1, 1, 64)


def test_gpu_that_is_too_old_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    with pytest.raises(ValueError, match="device: got compute capability 7.5, allowed is 8.0 and later"):
        pod.plan([1], [1], 1, 1, 64)


ASKED = {"window": [9], "softcap": [5.0], "sinks": [True], "kv_dtype": ["float8_e4m3fn"], "page_size": [4, 8, 24]}
CPU, TILE = torch.device("cpu"), FLASH2["flash2"].keys
DOORS = {
    "pod.plan": lambda batch: pod.plan(batch, device="cpu", method="pod"),
    "pod.plan, lean": lambda batch: pod.plan(batch, device="cpu", method="lean"),
    "sm80.plan": lambda batch: sm80.plan(batch, CPU, "cta"),
    "lean.plan": lambda batch: lean.plan(batch, CPU),
    "lean.plan of a worker": lambda batch: lean.plan(batch, CPU, worker="cta64"),
    "lean.plan, hopper": lambda batch: lean.plan(batch, CPU, worker="hopper"),
    "sm80.build_for": lambda batch: sm80.build_for(batch, CPU),
    "lean.build_for": lambda batch: lean.build_for(batch, CPU),
    "decide.flash2": lambda batch: decide.flash2(batch, 4, TILE),
    "gpusim": lambda batch: gpusim.seconds(batch, pod.GPUS["a100"], "serial"),
    "gpusim, flash2": lambda batch: gpusim.seconds(batch, pod.GPUS["a100"], "serial", kernel="flash2"),
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in ASKED.items() for value in values])
@pytest.mark.parametrize("door", DOORS)
def test_no_door_leads_to_a_kernel_that_would_compute_something_else(door, name, value):
    batch = HybridBatch((1, 1), (20, 30), 4, 2, 64, **{name: value})
    message = f"^{name}: got {value!r}, allowed (for method 'hopper' alone, and not for|are multiples of 8)"
    with pytest.raises(ValueError, match=message):
        DOORS[door](batch)


@pytest.mark.parametrize("name, value", [("window", 9), ("softcap", 5.0), ("sinks", True)])
def test_caches_of_8_bits_have_no_rules_in_any_batch(name, value):
    with pytest.raises(ValueError, match=f"^kv_dtype: got 'float8_e4m3fn' beside {name}, allowed is None"):
        HybridBatch((1,), (1,), 1, 1, 64, kv_dtype="float8_e4m3fn", **{name: value})


@pytest.mark.parametrize("before", [False, True], ids=["at first", "after a call"])
@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "block_table", "out"])
def test_a_storage_that_was_made_smaller_is_refused(name, before):
    tensors = dict(zip(("q", "k_cache", "v_cache", "block_table"), GOOD.tensors(), strict=True))
    tensors["out"], allowed = torch.empty_like(tensors["q"]), Allowed(GOOD, CPU)
    given = lambda: [tensors[n] for n in ("q", "k_cache", "v_cache", "block_table")]  # noqa: E731
    if before:
        allowed.check(*given(), out=tensors["out"])
    storage = tensors[name].untyped_storage()
    storage.resize_(storage.nbytes() - 2)
    with pytest.raises(
        ValueError, match=rf"^{name}: got {storage.nbytes()} bytes of memory for shape .*, allowed are at "
    ):
        allowed.check(*given(), out=tensors["out"])


@pytest.mark.parametrize("name", ["block_table", "out"])
def test_a_table_and_an_output_without_memory_are_refused(name):
    """On a GPU the kernel would follow a null pointer."""
    tensors = dict(zip(("q", "k_cache", "v_cache", "block_table"), GOOD.tensors(), strict=True))
    tensors["out"], allowed = torch.empty_like(tensors["q"]), Allowed(GOOD, CPU)
    allowed.debug = False
    tensors[name].untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=f"^{name}: got a tensor without memory for shape .*, allowed are at least"):
        allowed.check(*list(tensors.values())[:4], out=tensors["out"])


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "block_table"])
def test_a_layout_that_was_right_may_begin_where_its_storage_has_no_room(name):
    """Two views of one layout, in storages of one size: the second begins 16 bytes before its end."""
    tensors = dict(zip(("q", "k_cache", "v_cache", "block_table"), GOOD.tensors(), strict=True))
    allowed, first = Allowed(GOOD, CPU), tensors[name]
    allowed.debug = False
    rows = first.flatten()
    step = 16 // first.element_size()
    for start in (0, step):
        longer = torch.cat([rows, rows])
        tensors[name] = longer[start : start + len(rows)].view(first.shape)
        longer.untyped_storage().resize_(first.untyped_storage().nbytes())
        if not start:
            allowed.check(*tensors.values())
    with pytest.raises(ValueError, match=f"^{name}: got {first.untyped_storage().nbytes()} bytes of memory for shape"):
        allowed.check(*tensors.values())


def test_layers_of_one_storage_are_looked_at_once(monkeypatch):
    """As of an engine whose layers share a pool."""
    q, k, v, table = GOOD.tensors()
    pool, allowed = torch.stack([k, v] * 6).view(6, 2, *k.shape), Allowed(GOOD, CPU)
    allowed.check(q, *pool[0], table)
    monkeypatch.setattr(allowed, "_check", lambda *_: pytest.fail("looked at again"))
    for layer in pool:
        allowed.check(q, *layer, table)


SPOILT = {
    "got a view that negates": torch._neg_view,
    "got a tensor without memory": lambda x: (x.untyped_storage().resize_(0), x)[1],
    "got 8 bytes of memory": lambda x: (x.untyped_storage().resize_(8), x)[1],
}


@pytest.mark.parametrize("says", SPOILT)
def test_sinks_and_scales_are_plain_numbers_with_memory(says):
    with pytest.raises(ValueError, match=f"^sinks: {says}"):
        Allowed(replace(GOOD, sinks=True), CPU).check(*GOOD.tensors(), sinks=SPOILT[says](torch.zeros(4)))
    plan = SimpleNamespace(batch=replace(GOOD, num_q_heads=8, num_kv_heads=4, kv_dtype="float8_e4m3fn"), device=CPU)
    with pytest.raises(ValueError, match=f"^k_scale: {says}"):
        scales_of(SPOILT[says](torch.ones(4)), None, plan)


def test_sinks_that_are_a_parameter_need_no_more_than_no_grad():
    sinks, allowed = torch.nn.Parameter(torch.zeros(4)), Allowed(replace(GOOD, sinks=True), CPU)
    with pytest.raises(ValueError, match="^sinks: got a tensor on cpu, allowed is a dense one .* without a gradient"):
        allowed.check(*GOOD.tensors(), sinks=sinks)
    for inference in (torch.no_grad, torch.inference_mode):
        with inference():
            allowed.check(*GOOD.tensors(), sinks=sinks)


@pytest.mark.parametrize("kv_dtype", ["float8_e5m2", 8, "bfloat16"])
def test_a_workspace_says_which_caches_it_takes(kv_dtype):
    with pytest.raises(ValueError, match=f"^kv_dtype: got '{kv_dtype}', allowed are float8_e4m3fn and None"):
        pod.workspace(8, 2, 64, 4, 2, 64, kv_dtype=kv_dtype)


@pytest.mark.parametrize("softcap", [0, -1.0, True, "5", 1e-31, 1.1e3, float("nan"), float("inf"), 10**400, [1.0]])
def test_a_softcap_that_would_overflow_or_blur_is_refused(softcap):
    with pytest.raises(ValueError, match="^softcap: got .*, allowed are None and numbers from 1e-30 to 1000$"):
        HybridBatch((1,), (1,), 1, 1, 64, softcap=softcap)


@pytest.mark.parametrize("softcap", [50, 50.0, Fraction(50), np.float32(50)])
def test_a_softcap_is_said_as_it_came_and_reaches_the_kernel_as_a_float(softcap, monkeypatch):
    made = launch.Plan(replace(GOOD, softcap=softcap), "hopper", CPU, sm90.KERNEL, partial(decide.hopper, GOOD, 4))
    assert made.batch.softcap is softcap
    given = []
    monkeypatch.setattr(launch.Plan, "operator", lambda *_: lambda *arguments: given.append(arguments) or ((None,) * 3))
    made.run(*GOOD.tensors())
    assert type(given[0][9]) is float and given[0][9] == 50


def test_what_scores_are_multiplied_by_fits_float32():
    """As csrc/bindings.cpp makes both numbers of them."""
    for scale, cap in product(SCALES, SOFTCAPS):
        made = np.array([cap * np.log2(np.e), 2 * np.log2(np.e) * scale / cap], np.float32)
        assert np.isfinite(made).all() and (made >= np.finfo(np.float32).tiny).all()


@built
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("method", ["pod", "lean"])
def test_the_least_and_the_largest_scale_are_right(method, scale):
    batch = HybridBatch((1, 1), (20, 30), 4, 2, 64)
    q, k, v, _ = batch.tensors()
    out = pod.hybrid_attention(q, k, v, pod.plan(batch, device="cpu", method=method), softmax_scale=scale)
    want, _ = reference(q, k, v, batch.q_lens, batch.kv_lens, scale=scale)
    np.testing.assert_allclose(out.double().numpy(), want, atol=0.02)


@built
def test_a_hybrid_batch_stands_for_its_numbers():
    """With its mask: nobody should have to say twice that there is none."""
    batch = HybridBatch((4, 1), (20, 30), 4, 2, 64, page_size=16, dtype="float16", causal=False)
    q, k, v, table = batch.tensors()
    named = pod.plan([4, 1], [20, 30], 4, 2, 64, 16, torch.float16, "cpu")
    want = pod.hybrid_attention(q, k, v, named, table, causal=False)
    assert torch.equal(pod.hybrid_attention(q, k, v, pod.plan(batch, device="cpu"), table), want)
    masked = pod.hybrid_attention(q, k, v, named, table)
    assert torch.equal(pod.hybrid_attention(q, k, v, pod.plan(batch, device="cpu"), table, causal=True), masked)
    assert not torch.equal(want, masked)


ODD = [
    None, True, 0, -1, 3, 2.5, float("nan"), float("inf"), "", "x", b"x", [], [1], {}, object(), int, range(2),
    np.int8(3), np.uint64(2**63), np.float32(2), np.array(3), np.array([1.0, 1.0]), np.array(["a", "b"]), np.float16,
    torch.tensor(3), torch.tensor([[1, 2], [3, 4]]), torch.ones(2).to_sparse(), torch.ones(2, dtype=torch.complex64),
    torch.ones(2, device="meta"), torch.float16, torch.int8, torch.device("meta"), "cuda:99", "mps", 10**30, -(10**30),
    array.array("i", [1, 1]), memoryview(b"\1\1"), [torch.ones((), dtype=torch.int32, device="meta")] * 2,
    2**31, complex(1, 1), Fraction(3, 2), [None, 1], ["1", "1"], [True, True], [[1], [1]], lambda: 1,
]  # fmt: skip
TAKES = {
    "plan": (pod.plan, PLAN | dict(page_size=16, dtype="float16", method="pod", policy="auto", ctas_per_sm="auto",
             prefill_splits=1, decode_splits=1, invariant=False, window=None, softcap=None, sinks=False,
             kv_dtype=None)),
    "workspace": (pod.workspace, dict(tokens=8, sequences=2, kv_len=64, num_q_heads=4, num_kv_heads=2, head_dim=64,
                  page_size=16, dtype="float16", device="cpu", causal=True, draft=1, sm_margin=0, softcap=None,
                  sinks=False)),
    "HybridBatch": (HybridBatch, dict(q_lens=[4, 1], kv_lens=[20, 30], num_q_heads=4, num_kv_heads=2, head_dim=64,
                    page_size=16, dtype="float16", causal=True, window=None, softcap=None, sinks=False, kv_dtype=None)),
}  # fmt: skip


@pytest.mark.parametrize("offer, name", [(offer, name) for offer, (_, good) in TAKES.items() for name in good])
def test_whatever_is_handed_over_is_taken_or_refused_in_one_line_of_ours(offer, name):
    take, good = TAKES[offer]
    for value in ODD:
        refused_in_one_line(lambda value=value: take(**good | {name: value}))


TENSORS = ("q", "k_cache", "v_cache", "block_table", "out", "sinks", "k_scale", "v_scale")


@pytest.mark.parametrize("name", [*TENSORS, "softmax_scale", "causal", "return_lse", "trace"])
def test_so_is_what_a_call_is_given(call, name):
    q, k, _, table = GOOD.tensors()
    given = [q, q.double(), q[None], q.to("meta"), q.permute(1, 0, 2), q.double().numpy(), k, k[:0], table,
             table.long(), table[:, :0], table.T, torch.nn.Parameter(q.clone())]  # fmt: skip
    for value in ODD + given:
        refused_in_one_line(lambda value=value: call(**{name: value}))


def refused_in_one_line(take) -> None:
    try:
        take()
    except pytest.fail.Exception:
        pass  # it would have been launched
    except ValueError as error:
        text = str(error)
        assert ": got " in text and "\n" not in text and len(text) < 400, text


@pytest.mark.parametrize("name, value", [("causal", "no"), ("causal", None), ("dtype", ["a"])])
def test_a_hybrid_batch_refuses_other_types(name, value):
    with pytest.raises(ValueError, match=f"{name}: got"):
        HybridBatch((1,), (1,), 1, 1, 64, **{name: value})


def test_an_empty_pool_and_freed_memory_are_refused():
    allowed, (q, k, v, table) = Allowed(GOOD, torch.device("cpu")), GOOD.tensors()
    allowed.debug = False
    allowed.check(q, k, v, table)
    with pytest.raises(ValueError, match="k_cache: got a tensor without memory"):
        allowed.check(q, k[:0], v[:0], table)
    with pytest.raises(ValueError, match="^q: got a tensor without memory"):
        freed = q.clone()
        freed.untyped_storage().resize_(0)
        allowed.check(freed, k, v, table)
    k.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="k_cache: got a tensor without memory"):
        allowed.check(q, k, v, table)
    with pytest.raises(ValueError, match="q: got nested"):
        allowed.check(torch.nested.nested_tensor([torch.zeros(5, 4, 64)]), k, v, table)


def far(sizes, strides, dtype="bfloat16"):
    """A tensor that needs no memory, wherever its rows lie."""
    return torch.empty_strided(sizes, strides, dtype=getattr(torch, dtype), device="meta")


@pytest.mark.parametrize("q_strides, k_strides, says", [
    ((256, 64), (2048, 128, 64), None),
    ((256, 64), (1 << 40, 128, 64), None),  # from page to page in 64 bits
    ((1 << 27, 64), (2048, 128, 64), "q: got a stride of 134217728 elements, allowed are up to 134217727"),
    ((256, 1 << 27), (2048, 128, 64), "q: got a stride of 134217728 elements, allowed are up to 134217727"),
    ((256, 64), (2048, 1 << 27, 64), "k_cache: got a stride of 134217728 elements, allowed are up to 134217727"),
    ((256, 64), (2048, 128, 1 << 30), "k_cache: got a stride of 1073741824 elements, allowed are up to 1073741823"),
])  # fmt: skip
@pytest.mark.parametrize("kernel", [sm80.KERNEL, lean.kernel()], ids=["sm80", "lean"])
def test_strides_that_32_bits_do_not_hold_are_refused(kernel, q_strides, k_strides, says):
    q, k = far((5, 4, 64), (*q_strides, 1)), far((5, 16, 2, 64), (*k_strides, 1))
    if says is None:
        return kernel.check_layout(GOOD, q, k)
    with pytest.raises(ValueError, match=f"^{says}$"):
        kernel.check_layout(GOOD, q, k)


@pytest.mark.parametrize("page_size, pages, strides, says", [
    (16, 1 << 20, (2048, 128, 64), None),  # a token's heads side by side: a place for every 64 elements
    (16, 1 << 20, (2048, 64, 1024), None),
    (16, 1 << 20, (1024, 64, 1 << 30), None),  # all pages of a head, then those of the next
    (16, 1 << 24, (2056, 128, 64), "k_cache: got 4311744264 places for heads, 8 elements apart, allowed for method "
                                   "'hopper' in pages of 16 are 2147483647"),
    (16, 1, (1 << 60, 128, 64), None), (128, 1 << 24, (2056, 128, 64), None),
])  # fmt: skip
def test_places_for_heads_that_31_bits_do_not_hold_are_refused(page_size, pages, strides, says):
    batch = HybridBatch((1,), (9,), 4, 2, 64, page_size)
    with pytest.raises(ValueError, match=f"^{says}$") if says else nullcontext():
        sm90.KERNEL.check_layout(batch, None, far((pages, page_size, 2, 64), (*strides, 1)))


@pytest.mark.parametrize("page, there", [(0, True), (4, True), (5, False), (-1, False), (1 << 30, False)])
def test_a_page_beside_the_pool_is_named_up_to_the_last(page, there):
    """Of a pool of 5, where whoever asks for it has the pages looked at; what a row does not use may be anything."""
    allowed, (q, k, v, table) = Allowed(GOOD, torch.device("cpu")), GOOD.tensors()
    assert k.shape[0] == 5
    table[0, 1], unused = page, torch.full((2, 1), -7, dtype=torch.int32)
    says = rf"^block_table: got \[0, {page}\] in row 0, allowed are pages 0 to 4$"
    with nullcontext() if there else pytest.raises(ValueError, match=says):
        allowed.check(q, k, v, torch.cat([table, unused], 1))


def test_a_table_whose_rows_lie_too_far_apart_is_refused():
    allowed, k = Allowed(GOOD, torch.device("meta")), far((5, 16, 2, 64), (2048, 128, 64, 1))
    with pytest.raises(
        ValueError, match="^block_table: got a stride of 2147483648 elements, allowed are up to 21474836"
    ):
        allowed.check(far((5, 4, 64), (256, 64, 1)), k, k, far((2, 2), (1 << 31, 1), "int32"))


def test_an_engine_builds_what_its_plans_will_ask_for_before_it_serves(monkeypatch):
    from pod.serving.backends import Ours

    asked = []
    monkeypatch.setattr(pod, "build", lambda *shape: asked.append(shape))
    monkeypatch.setattr(pod, "plan", lambda *_, **__: pytest.fail("planned"))
    Ours("auto", 8, 2, 128, 16, torch.bfloat16, CPU)
    assert asked == [(8, 2, 128, 16, torch.bfloat16, CPU, "auto")]


def test_decodes_have_one_list_for_both_masks():
    """So that no mask of theirs comes first inside a capture."""
    batch = HybridBatch((1, 1), (64, 64), 4, 2, 64, page_size=16, causal=False)
    for method in ("pod", "lean"):
        plan = pod.plan(batch, device="cpu", method=method)
        assert plan.placed(True) is plan.placed(False)


@pytest.mark.parametrize("family", [sm80.HYBRID, sm90.HOPPER, lean.LEAN], ids=lambda family: family.name)
def test_fake_results_are_dense_whatever_the_query(family):
    q = torch.empty(4, 5, 64, device="meta").transpose(0, 1)
    out, lse, rows = family.fake("", q, *[None] * 6, list(launch.Header(trace_rows=7)), 1.0, 0.0, None, True, True)
    assert out.shape == q.shape and out.is_contiguous() and lse.shape == (5, 4) and len(rows) == 7


def test_a_device_has_one_staging_whoever_asks_first(monkeypatch):
    """Two threads that plan at once share its memory, one after the other."""

    class Stream:
        def __init__(self, device, priority):
            time.sleep(0.05)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    launch._staging_of.cache_clear()
    with ThreadPoolExecutor(2) as pool:
        found = set(pool.map(lambda _: launch._staging(torch.device("cuda", 7)), range(2)))
    launch._staging_of.cache_clear()
    assert len(found) == 1


def test_auto_is_the_default_and_hopper_gets_its_own_kernel(monkeypatch):
    """Of decodes alone the method lean knows more: where a warp's tile reads faster, and where a fixed split does. Only
    short ones that must be cut are faster as few rows of prefill."""
    chosen = []
    monkeypatch.setattr(sm90, "available", lambda device="cuda": True)
    for module in (sm90, lean, sm80):
        monkeypatch.setattr(module, "plan", lambda *_, module=module, **choice: chosen.append(module))
    for q_lens in ([4, 1], [4, 4], [1, 1]):
        pod.plan(**PLAN | {"q_lens": q_lens})
    pod.plan(**PLAN | {"q_lens": [1, 1], "kv_lens": [100_000, 90_000]})
    pod.plan(**PLAN | {"q_lens": [1, 1]}, decode_splits=2)  # only the sm_80 family has the option
    assert chosen == [sm90, sm90, sm90, lean, sm80]


@pytest.mark.parametrize("method", ["pod", "lean"])
def test_what_is_the_default_elsewhere_is_none_of_a_plans_business(method):
    """Whoever loads a model sets them: lists lay on another device, partial results had another type."""
    batch = HybridBatch((1,) * 3, (700, 16, 40), 4, 2, 64, page_size=16)
    tensors = batch.tensors()
    want = pod.hybrid_attention(*tensors[:3], pod.plan(batch, device="cpu", method=method), tensors[3])
    with torch.device("meta"):
        plans = [pod.plan(batch, device="cpu", method=method, decode_splits=3)]
    torch.set_default_dtype(torch.float64)
    try:
        plans.append(pod.plan(batch, device="cpu", method=method, decode_splits=3))
        outs = [pod.hybrid_attention(*tensors[:3], plan, tensors[3]) for plan in plans]
    finally:
        torch.set_default_dtype(torch.float32)
    for out in outs:
        torch.testing.assert_close(out, want, atol=0.01, rtol=0)


class Card:
    """What staging asks of CUDA."""

    def __init__(self, device=None, priority=0): ...

    synchronize = __init__


def test_what_goes_up_lies_on_the_host_whatever_the_default_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", Card)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **how: empty(*size, **how))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            ints, partials = launch.Staging(torch.device("cpu")).upload([np.arange(5)], 32, 7)
    finally:
        torch.set_default_dtype(torch.float32)
    assert ints[:6].tolist() == [0, 1, 2, 3, 4, 0] and partials.shape == (7,) and partials.dtype == torch.float32


# ---------------------------------------------------------------- what would be wrong in silence


def test_a_derivative_forwards_is_refused_like_one_backwards():
    """A tangent was dropped without a word."""
    from torch.autograd import forward_ad

    plan, tensors = pod.plan(GOOD, device="cpu"), GOOD.tensors()
    with forward_ad.dual_level():
        for i, name in enumerate(("q", "k_cache", "v_cache")):
            dual = forward_ad.make_dual(tensors[i], torch.ones_like(tensors[i]))
            given = [*tensors[:i], dual, *tensors[i + 1 :]]
            with pytest.raises(ValueError, match=f"^{name}: got a tensor with a tangent, allowed is inference"):
                pod.hybrid_attention(*given[:3], plan, given[3])
        pod.hybrid_attention(*tensors[:3], plan, tensors[3])


@pytest.mark.parametrize("transform", [
    lambda f, q: torch.vmap(f)(q[None]), lambda f, q: torch.func.jvp(f, (q,), (q,)),
], ids=["vmap", "jvp"])  # fmt: skip
def test_transforms_of_functions_are_refused_in_our_words(transform):
    plan, (q, k, v, table) = pod.plan(GOOD, device="cpu"), GOOD.tensors()
    with pytest.raises(ValueError, match="^q: got a tensor without memory, allowed is a dense torch tensor"):
        transform(lambda q: pod.hybrid_attention(q, k, v, plan, table), q)


def test_an_output_that_lies_in_an_input_is_refused():
    plan, (q, k, v, table) = pod.plan(GOOD, device="cpu"), GOOD.tensors()
    room = torch.zeros(q.numel() + 64, dtype=q.dtype)
    shifted = room[64:].view(q.shape), room[: q.numel()].view(q.shape)
    inside = (k.view(-1)[: q.numel()].view(q.shape), v.view(-1)[-q.numel() :].view(q.shape))
    for out, asked in ((inside[0], q), (inside[1], q), shifted, (q, q)):
        with pytest.raises(ValueError, match="^out: got memory of (q|k_cache|v_cache), allowed is memory of its own"):
            pod.hybrid_attention(asked, k, v, plan, table, out=out)
    beside = torch.zeros(2, *q.shape, dtype=q.dtype)
    pod.hybrid_attention(beside[0].copy_(q), k, v, plan, table, out=beside[1])


@pytest.mark.parametrize("door", ["eager", "compiled"])
def test_an_output_over_the_page_table_is_refused(door):
    """Its pages would be overwritten while others are still looked up in it."""
    plan, (q, k, v, table) = pod.plan(GOOD, device="cpu"), GOOD.tensors()
    room = torch.zeros(q.numel() // 2 + 64, dtype=torch.int32)
    within = room[32:][: table.numel()].view(table.shape).copy_(table)
    with pytest.raises(ValueError, match="^out: got memory of block_table, allowed is memory of its own"):
        out = room.view(q.dtype)[: q.numel()].view(q.shape)
        if door == "eager":
            pod.hybrid_attention(q, k, v, plan, within, out=out)
        else:
            launch.compiled(q, k, v, plan, within, None, None, False, False, out, None)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "out"])
def test_a_view_that_negates_is_refused_although_its_layout_was_right_before(name, call):
    """The kernels read memory, where the numbers have the other sign."""
    tensors = dict(zip(("q", "k_cache", "v_cache"), GOOD.tensors(), strict=False))
    tensors["out"] = torch.empty_like(tensors["q"])
    with pytest.raises(pytest.fail.Exception, match="launched"):
        call(**tensors)
    with pytest.raises(ValueError, match=f"^{name}: got a view that negates, allowed is a tensor of plain numbers$"):
        call(**tensors | {name: torch._neg_view(tensors[name])})


def test_a_number_of_a_cpu_is_nothing_to_its_tensors(call):
    with pytest.raises(pytest.fail.Exception, match="launched"):
        numbered = pod.plan(GOOD, device="cpu:0", method="pod")
        numbered.run = lambda *_: pytest.fail("launched")
        call(plan=numbered)


def test_splits_are_numbers_of_any_kind():
    splits = dict(prefill_splits=np.int64(2), decode_splits=np.int32(3))
    mine, plain = (pod.plan(**PLAN | kind) for kind in (splits, dict(prefill_splits=2, decode_splits=3)))
    assert torch.equal(mine.placed().lists, plain.placed().lists)


@pytest.mark.parametrize("again", [copy.deepcopy, pickle.dumps])
def test_a_plan_that_would_leave_its_process_says_what_to_do(again):
    with pytest.raises(TypeError, match="^plan: got a copy, allowed is one of its own: pod.plan makes it anew$"):
        again(pod.plan(GOOD, device="cpu"))


# ---------------------------------------------------------------- builds


@pytest.mark.parametrize("hopper", [True, False])
def test_all_that_auto_may_choose_is_built_ahead(hopper, monkeypatch):
    """What a plan of any batch asks for afterwards must have been asked for before, inside `ahead`."""
    asked, used = set(), set()

    def operator(family, kind, device):
        (asked if build._built_ahead.get() else used).add((family.name, kind))

    monkeypatch.setattr(build, "operator", operator)
    monkeypatch.setattr(sm90, "available", lambda device="cuda": hopper)
    monkeypatch.setattr(attention, "_device", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr(build, "sm_count", lambda device: 132)
    monkeypatch.setattr(build, "gpu_of", lambda device: pod.GPUS["h200"])
    monkeypatch.setattr(launch, "place", lambda schedule, *_: SimpleNamespace(schedule=schedule))
    pod.build(32, 8, 128, 16)
    for q_lens, kv_len in (
        ((1,), 500),
        ((1,), 5000),
        ((1,) * 64, 500),
        ((1,) * 64, 60000),
        ((300, 1, 1), 4000),
        ((300,), 300),
    ):
        pod.plan(q_lens, [kv_len] * len(q_lens), 32, 8, 128, 16).operator()
    if hopper:
        monkeypatch.setattr(Workspace, "_place", lambda self: SimpleNamespace(schedule=self._no_work(True)))
        pod.workspace(512, 64, 4000, 32, 8, 128, 16)
    assert used and used <= asked


def test_a_lazy_build_says_which_call_would_have_saved_the_wait(monkeypatch, tmp_path, capsys):
    def pretend(folder, *_, **options):
        (folder / "made.so").touch()
        return ""

    monkeypatch.delenv("POD_QUIET")
    monkeypatch.setattr(build, "require_tools", lambda *_: None)
    monkeypatch.setattr(build, "compiler", lambda: "some-c++")
    monkeypatch.setattr("pod.kernels.builder.build", pretend)
    build._build(sm90.HOPPER, ("bfloat16_128_8_16",), (9, 0), tmp_path / "lazy.so")
    assert "pod.build(...) ahead would have saved this wait" in capsys.readouterr().err
    with build.ahead():
        build._build(sm90.HOPPER, ("bfloat16_128_8_16",), (9, 0), tmp_path / "ahead.so")
    assert "pod.build" not in capsys.readouterr().err


# ---------------------------------------------------------------- views


VIEWED = st.builds(
    lambda q_lens, more, heads, head_dim, page_size: HybridBatch(
        q_lens, [n + more for n in q_lens], *heads, head_dim, page_size
    ),
    st.sampled_from([(5, 1), (1, 1, 1), (33,)]),
    st.sampled_from([0, 16, 50]),
    st.sampled_from([(2, 2), (4, 2), (6, 1)]),
    st.sampled_from([64, 128]),
    st.sampled_from([None, 16, 64]),
)


@built
@settings(max_examples=25)
@given(VIEWED, layouts(), st.sampled_from(["pod", "serial", "lean"]))
def test_views_are_read_where_they_lie(batch, layout, method):
    method = "warp" if method == "lean" and batch.prefill else method
    tensors = batch.tensors()
    want, _ = reference(*tensors[:3], batch.q_lens, batch.kv_lens, tensors[3])
    q, k, v, table = lay_out(tensors, **layout)
    got = pod.hybrid_attention(q, k, v, pod.plan(batch, device="cpu", method=method), table)
    np.testing.assert_allclose(got.double().numpy(), want, atol=0.02)
