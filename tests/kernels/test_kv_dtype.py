"""Caches of 8 bits: what a plan and a call take, and what they refuse in one line before any launch."""

from functools import partial

import pytest

import pod
from pod.batch import HybridBatch
from pod.kernels import launch, sm90
from pod.kernels.launch import Plan
from pod.schedule import decide

torch = pytest.importorskip("torch")

KV = "float8_e4m3fn"
BATCH = HybridBatch((1, 1), (20, 30), 4, 2, 64, page_size=16, kv_dtype=KV)
PLAIN = HybridBatch((1, 1), (20, 30), 4, 2, 64, page_size=16)


def plan_of(batch: HybridBatch) -> Plan:
    kernel = sm90.KERNEL8 if batch.kv_dtype else sm90.KERNEL
    return Plan(batch, "hopper", torch.device("cpu"), kernel, partial(decide.hopper, batch, 4))


@pytest.fixture
def call(monkeypatch):
    """The arguments with which a call would be launched: the good one with some of it changed."""
    monkeypatch.setattr(Plan, "run", lambda plan, *arguments: arguments)

    def made(batch=BATCH, **change):
        tensors = dict(zip(("q", "k_cache", "v_cache", "block_table"), BATCH.tensors(), strict=True))
        return pod.hybrid_attention(**tensors | {"plan": plan_of(batch)} | change)

    return made


@pytest.mark.parametrize("dtype", [KV, torch.float8_e4m3fn])
def test_a_plan_names_the_type_of_its_caches(dtype):
    with pytest.raises(ValueError, match="kv_dtype: got 'float8_e4m3fn', allowed for method 'hopper' alone"):
        pod.plan((1, 1), (20, 30), 4, 2, 64, 16, device="cpu", kv_dtype=dtype)


@pytest.mark.parametrize("change, message", [
    (dict(kv_dtype="float16"), "kv_dtype: got 'float16', allowed are float8_e4m3fn and None"),
    (dict(kv_dtype=torch.float8_e5m2), "kv_dtype: got 'float8_e5m2', allowed are float8_e4m3fn and None"),
    (dict(kv_dtype=8), "kv_dtype: got '8', allowed are float8_e4m3fn and None"),
    (dict(method="pod"), f"kv_dtype: got '{KV}', allowed for method 'hopper' alone, and not for 'pod'"),
    (dict(method="lean"), f"kv_dtype: got '{KV}', allowed for method 'hopper' alone, and not for 'lean'"),
    (dict(window=9), f"kv_dtype: got '{KV}' beside window, allowed is None, as dtype"),
    (dict(sinks=True), f"kv_dtype: got '{KV}' beside sinks, allowed is None, as dtype"),
])  # fmt: skip
def test_plans_are_refused(change, message):
    with pytest.raises(ValueError) as refusal:
        pod.plan(**dict(q_lens=(1,), kv_lens=(20,), num_q_heads=4, num_kv_heads=2, head_dim=64, page_size=16,
                        device="cpu", kv_dtype=KV) | change)  # fmt: skip
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_batch_says_its_own_type():
    with pytest.raises(ValueError, match=f"kv_dtype: got '{KV}' beside a HybridBatch"):
        pod.plan(PLAIN, device="cpu", kv_dtype=KV)
    assert BATCH.kv_bytes * 2 == PLAIN.kv_bytes and BATCH.tensors()[1].dtype == torch.float8_e4m3fn


@pytest.mark.parametrize("scale", [None, 0.5, 2, torch.tensor(0.25), torch.tensor([3.0]), torch.tensor([1.0, 2.0])])
def test_scales_become_one_number_a_head(call, scale):
    *_, (k_scale, v_scale) = call(k_scale=scale)
    wanted = torch.ones(2) if scale is None else torch.as_tensor(scale, dtype=torch.float32).expand(2)
    assert k_scale.dtype == torch.float32 and k_scale.is_contiguous() and torch.equal(k_scale, wanted)
    assert torch.equal(v_scale, torch.ones(2))


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
@pytest.mark.parametrize("scale, got", [
    (True, "got True"),
    ("1", "got '1'"),
    (0.0, "got 0.0"),
    (float("nan"), "got nan"),
    (torch.ones(3), r"got torch.float32 of shape \(3,\)"),
    (torch.ones(1, 2), r"got torch.float32 of shape \(1, 2\)"),
    (torch.ones(2).half(), r"got torch.float16 of shape \(2,\)"),
    (torch.ones(2, device="meta"), r"got torch.float32 of shape \(2,\) on meta"),
])  # fmt: skip
def test_scales_are_refused(call, name, scale, got):
    allowed = r".*, allowed are numbers above 0 and float32 \[2\], one a KV head, on cpu$"
    with pytest.raises(ValueError, match=f"^{name}: {got}{allowed}"):
        call(**{name: scale})


def test_scales_need_a_cache_of_8_bits(call):
    with pytest.raises(ValueError, match="^v_scale: got 2.0, allowed by the plan is None, as it has no kv_dtype$"):
        call(PLAIN, **dict(zip(("k_cache", "v_cache"), PLAIN.tensors()[1:3], strict=True)), v_scale=2.0)


def test_caches_must_be_what_the_plan_says(call):
    q, k, v, _ = PLAIN.tensors()
    with pytest.raises(
        ValueError, match="^k_cache: got dtype torch.bfloat16, allowed by the plan is torch.float8_e4m3fn$"
    ):
        call(k_cache=k, v_cache=v)
    with pytest.raises(ValueError, match="^q: got dtype torch.float16, allowed by the plan is torch.bfloat16$"):
        call(q=q.half())


def test_rows_start_at_16_bytes(call):
    """8 elements are 16 bytes of 16 bits each, but not of 8."""
    _, k, v, _ = BATCH.tensors()
    k, v = (torch.empty(*x.shape[:3], 72, dtype=x.dtype)[..., :64] for x in (k, v))
    with pytest.raises(
        ValueError, match="^k_cache: got strides .*, allowed are rows that start at multiples of 16 bytes$"
    ):
        call(k_cache=k, v_cache=v)


@pytest.mark.parametrize(
    "k_scale, v_scale", [(None, None), (0.5, 2), (torch.tensor([3.0, 2.0]), None), (torch.tensor(0.25), 4.0)]
)
def test_scales_arrive_inside_torch_compile(monkeypatch, k_scale, v_scale):
    """One graph; and what the kernel would be given is what it is given outside."""
    asked = []

    def run(plan, q, *arguments):
        asked.append(arguments[-1])
        return torch.zeros_like(q)

    monkeypatch.setattr(Plan, "run", run)
    plan, (q, k, v, table) = plan_of(BATCH), BATCH.tensors()
    layer = lambda q, plan: pod.hybrid_attention(q * 2, k, v, plan, table, k_scale=k_scale, v_scale=v_scale)  # noqa: E731
    torch._dynamo.reset()
    torch.compile(layer, fullgraph=True, backend="aot_eager")(q, plan)
    layer(q, plan)
    inside, outside = asked
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(inside, outside, strict=True))


@pytest.mark.parametrize("scale", [-1.0, torch.ones(3)])
def test_wrong_scales_are_refused_inside_torch_compile(call, monkeypatch, scale):
    monkeypatch.setattr(launch, "is_compiling", lambda: True)
    with pytest.raises(ValueError, match="^v_scale: got .*, allowed are numbers above 0 and float32"):
        call(v_scale=scale)
    with pytest.raises(ValueError, match="^k_scale: got .*, allowed by the plan is None, as it has no kv_dtype$"):
        call(PLAIN, **dict(zip(("k_cache", "v_cache"), PLAIN.tensors()[1:3], strict=True)), k_scale=torch.ones(2))


def test_nothing_waits_for_a_scale(call):
    """To write a tensor down is to copy it from the GPU."""

    class Unread(torch.Tensor):
        def __repr__(self):
            raise AssertionError("somebody read the scale")

    scale = torch.ones(2).as_subclass(Unread)
    *_, scales = call(k_scale=scale, v_scale=scale)
    assert [x.shape for x in scales] == [(2,), (2,)]
