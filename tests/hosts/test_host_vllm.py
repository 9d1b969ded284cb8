"""The backend for vLLM against a stub of what it builds on, as vLLM documents it. It has not run inside vLLM."""

import enum
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Generic, TypeVar

import numpy as np
import pytest
import torch

from pod import kernels
from pod.batch import HybridBatch
from pod.files import ROOT
from pod.hosts import step
from pod.reference import hybrid_attention

REGISTERED = {}


class AttentionBackend(ABC):
    @staticmethod
    @abstractmethod
    def get_name(): ...

    @staticmethod
    @abstractmethod
    def get_impl_cls(): ...

    @staticmethod
    @abstractmethod
    def get_builder_cls(): ...


M = TypeVar("M")


class AttentionMetadataBuilder(ABC, Generic[M]):
    @abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec, self.device = kv_cache_spec, device

    @abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...


class AttentionImpl(ABC, Generic[M]):
    @abstractmethod
    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None,
                 kv_cache_dtype="auto", logits_soft_cap=None, attn_type="decoder",
                 kv_sharing_target_layer_name=None): ...  # fmt: skip

    @abstractmethod
    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output=None, output_scale=None,
                output_block_scale=None): ...  # fmt: skip


class AttentionBackendEnum(enum.Enum):
    CUSTOM = None


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    seq_lens_cpu_upper_bound: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool = True


@pytest.fixture
def host(monkeypatch):
    """pod.hosts.vllm with the stub in vLLM's place."""
    backend = {"AttentionBackend": AttentionBackend, "AttentionImpl": AttentionImpl,
               "AttentionMetadataBuilder": AttentionMetadataBuilder}  # fmt: skip
    registry = {"AttentionBackendEnum": AttentionBackendEnum, "register_backend": REGISTERED.__setitem__}
    for name, holds in {"": {}, ".v1": {}, ".v1.attention": {}, ".v1.attention.backend": backend,
                        ".v1.attention.backends": {}, ".v1.attention.backends.registry": registry}.items():  # fmt: skip
        module = ModuleType(f"vllm{name}")
        vars(module).update(holds)
        monkeypatch.setitem(sys.modules, f"vllm{name}", module)
    monkeypatch.delitem(sys.modules, "pod.hosts.vllm", raising=False)
    yield import_module("pod.hosts.vllm")
    sys.modules.pop("pod.hosts.vllm", None)


BATCH = HybridBatch((1, 9, 3, 1), (21, 9, 33, 40), 4, 2, 64, page_size=16, dtype="float16")
SCALE = 0.2


def config(**more):
    model = SimpleNamespace(get_num_attention_heads=lambda parallel: BATCH.num_q_heads, dtype=torch.float16)
    return SimpleNamespace(model_config=model, parallel_config=None, **({"speculative_config": None} | more))


def builder(host, **more):
    spec = SimpleNamespace(num_kv_heads=BATCH.num_kv_heads, head_size=BATCH.head_dim, block_size=BATCH.page_size)
    return host.Backend.get_builder_cls()(spec, ["layer.0"], config(**more), torch.device("cpu"))


def common(table, padded=0):
    """As vLLM's runner has it, with `padded` sequences without a token at the end, and a wider table."""
    starts = torch.tensor([0, *np.cumsum(BATCH.q_lens), *padded * [sum(BATCH.q_lens)]], dtype=torch.int32)
    seq_lens = torch.tensor([*BATCH.kv_lens, *padded * [0]], dtype=torch.int32)
    lens = enumerate(zip(BATCH.q_lens, BATCH.kv_lens, strict=True))
    places = [(i, j) for i, (q, kv) in lens for j in range(kv - q, kv)]
    slots = [int(table[i, j // 16]) * 16 + j % 16 for i, j in places]
    table = torch.nn.functional.pad(table, (0, 5, 0, padded))
    mapping = torch.tensor(slots + 3 * padded * [-1])
    return CommonAttentionMetadata(starts, starts, seq_lens, seq_lens, len(seq_lens), len(slots), table, mapping)


def impl(host, **more):
    given = {"num_heads": 4, "head_size": 64, "scale": SCALE, "num_kv_heads": 2, "alibi_slopes": None,
             "sliding_window": None, "kv_cache_dtype": "auto"}  # fmt: skip
    return host.Backend.get_impl_cls()(**(given | more))


def heads_first(*shape):
    return torch.zeros(shape, dtype=torch.float16)


def tokens_first(blocks, heads, size, content):
    return torch.zeros(blocks, size, heads, content, dtype=torch.float16).transpose(1, 2)


def blocks_of_all_layers(blocks, heads, size, content):
    """As connectors like it: a block of all layers, and in it one of this layer."""
    return torch.zeros(blocks, 3, size, heads, content, dtype=torch.float16)[:, 1].transpose(1, 2)


def attended(host, padded=0, layers=({}, {}), memory=heads_first):
    """Layers of one iteration: what they gave, and what those that ask for nothing should have given."""
    q, k, v, table = BATCH.tensors()
    k, v = k.nan_to_num(), v.nan_to_num()
    made = builder(host).build(0, common(table, padded))
    cache, new = memory(k.shape[0], 2, 16, 2 * 64), (made.slots // 16, made.slots % 16)
    assert host.Backend.get_kv_cache_shape(k.shape[0], 16, 2, 64) == cache.shape
    fresh = [x[new].clone() for x in (k, v)]
    for side, old in zip(cache.transpose(1, 2).split(64, -1), (k, v), strict=True):
        side[:] = old
        side[new] = 7  # they have to be written anew
    rows = torch.nn.functional.pad(q, (0, 0, 0, 0, 0, 3 * padded))
    given = (rows, *(torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 3 * padded)) for x in fresh), cache, made)
    outs = [impl(host, **asked).forward(None, *given, output=torch.full_like(rows, 5)) for asked in layers]
    wanted, _ = hybrid_attention(q, k, v, BATCH.q_lens, BATCH.kv_lens, table, scale=SCALE)
    return outs, wanted, made


@pytest.mark.parametrize("memory", [heads_first, tokens_first, blocks_of_all_layers])
@pytest.mark.parametrize("padded", [0, 2])
def test_a_mixed_batch_is_right_and_padding_stays_as_it_is(host, padded, memory):
    """The shape of a cache is vLLM's; in which order it lies in memory, connectors and users choose."""
    outs, wanted, _ = attended(host, padded, memory=memory)
    for out in outs:
        np.testing.assert_allclose(out[: len(wanted)].double().numpy(), wanted, atol=4e-3)
        assert bool((out[len(wanted) :] == 5).all())


@pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
def test_the_kernel_is_planned_once_for_all_layers(host, monkeypatch):
    monkeypatch.setattr(host, "best", lambda device: step.Kernel("serial"))
    plans, plan = [], step.pod.plan
    monkeypatch.setattr(step.pod, "plan", lambda *args: plans.append(args) or plan(*args))
    with kernels.machine(2):
        outs, wanted, made = attended(host, padded=1, memory=tokens_first)
    assert len(plans) == 1 and made.step.q_lens.tolist() == list(BATCH.q_lens)
    for out in outs:
        np.testing.assert_allclose(out[: len(wanted)].double().numpy(), wanted, atol=4e-3)


class Ruled:
    """Whoever computes windows, softcaps and sinks; `bound` are the rules of the plans that were made."""

    def __init__(self):
        self.bound = []

    def bind(self, step, *shape, **rules):
        self.bound.append(rules)
        rules = {name: value for name, value in rules.items() if name != "sinks"}

        def attend(q, k, v, scale, sinks=None):
            more = rules if sinks is None else rules | {"sinks": sinks}
            out, _ = hybrid_attention(q, k, v, step.q_lens, step.kv_lens, step.table, scale=scale, **more)
            return torch.from_numpy(out).half()

        return attend


def test_what_layers_ask_of_their_scores_is_passed_on_where_a_kernel_has_it(host, monkeypatch):
    """Layers of one group may differ; those that ask for the same share a plan."""
    attention, sinks = Ruled(), torch.linspace(-2, 4, 4, dtype=torch.bfloat16)
    monkeypatch.setattr(host.sm90, "available", lambda device="cuda": True)
    monkeypatch.setattr(host, "best", lambda device: attention)
    asked = ({"sliding_window": 12}, {}, {"logits_soft_cap": 3.0, "sinks": sinks}, {"sliding_window": 12})
    monkeypatch.setattr(attention, "build", lambda *shape: None, raising=False)
    outs, _, _ = attended(host, layers=asked)
    assert attention.bound == [{"window": 12}, {}, {"softcap": 3.0, "sinks": True}]
    assert host.Backend.supports_sink() and host.Backend.supports_sliding_window(), "or no such layer comes here"
    assert min(host.Backend.get_supported_kernel_block_sizes()) == 16
    q, k, v, table = BATCH.tensors()
    lens = (BATCH.q_lens, BATCH.kv_lens, table)
    given = ({"window": 12}, {}, {"softcap": 3.0, "sinks": sinks.float()}, {"window": 12})
    for out, rules in zip(outs, given, strict=True):
        want, _ = hybrid_attention(q, k.nan_to_num(), v.nan_to_num(), *lens, scale=SCALE, **rules)
        np.testing.assert_allclose(out.double().numpy(), want, atol=4e-3)


def test_it_is_found_under_the_free_name(host):
    entry = '[project.entry-points."vllm.general_plugins"]\npod = "pod.hosts.vllm:register"'
    assert entry in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    host.register()
    module, _, name = REGISTERED[AttentionBackendEnum.CUSTOM].rpartition(".")
    assert getattr(import_module(module), name) is host.Backend
    assert host.Backend.get_name() == "CUSTOM", "vLLM looks the enum up by this name"
    supports = host.Backend.supports_compute_capability
    assert [supports(SimpleNamespace(major=n)) for n in (7, 8, 9)] == [False, True, True]


def test_what_vllm_has_to_refuse_by_itself(host):
    """Its defaults would let these layers come: context shared among GPUs, and lengths that only the GPU knows."""
    assert not host.Backend.get_impl_cls().supports_dcp and impl(host).kv_cache_dtype == "auto"
    assert not host.Backend.supports_device_cpu_query_lens_mismatch()
    assert not (host.Backend.supports_sliding_window() or host.Backend.supports_sink()), "not on this machine"
    assert 16 in host.Backend.get_supported_kernel_block_sizes(kv_cache_spec=None)


def test_a_run_that_only_measures_memory_gives_zeros(host):
    out = torch.ones(3, 4, 64)
    assert not impl(host).forward(None, out, out, out, torch.empty(0), None, output=out).any()


@pytest.mark.parametrize(("asked", "words"), [
    ({"sliding_window": 128}, "sliding_window: got 128, allowed with our attention are None"),
    ({"logits_soft_cap": 30.0}, "logits_soft_cap: got 30.0, allowed with our attention are None"),
    ({"alibi_slopes": [0.5]}, r"alibi_slopes: got \[0.5\], allowed with our attention are None"),
    ({"sinks": torch.zeros(4)}, r"sinks: got shape \(4,\), allowed with our attention are None"),
    ({"attn_type": "encoder"}, "attn_type: got 'encoder', allowed with our attention are 'decoder'"),
    ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype: got 'fp8', allowed with our attention are 'auto'"),
    ({"head_size": 96}, "head_size: got 96, allowed with our attention are 64, 128"),
])  # fmt: skip
def test_what_a_layer_may_not_be(host, asked, words):
    with pytest.raises(ValueError, match=words):
        impl(host, **asked)


def test_what_an_iteration_may_not_be(host):
    given = common(BATCH.tensors()[3])
    given.causal = False
    with pytest.raises(ValueError, match="causal: got False, allowed with our attention are True"):
        builder(host).build(0, given)
    with pytest.raises(ValueError, match="speculative_config: got 'eagle', allowed with our attention are None"):
        builder(host, speculative_config="eagle")
    with pytest.raises(ValueError, match="output_scale: got 2.0, allowed"):
        impl(host).forward(None, *4 * [torch.empty(0)], None, output_scale=2.0)
