"""Our attention inside vLLM, as its backend CUSTOM. It has not run inside vLLM here, whose wheels fit neither the
machine that tests this nor the one that measures; it follows the contract that vLLM's sources state (read: some of 0.25
to 0.32 and what is to follow; the newest release is 0.33), and is tested against a stub of that.

    pip install -e CLONE  # beside vLLM, which finds the entry point by itself, in every process
    vllm serve MODEL --attention-backend CUSTOM --compilation-config '{"cudagraph_mode": "PIECEWISE"}'

One plan an iteration, made in the first layer from the lengths that vLLM keeps on the host. So attention stays outside
of CUDA graphs, as PIECEWISE means, and speculative decoding is refused: there the host knows an upper bound only.
On an H100 or H200 layers may have a sliding window, a softcap and sinks; elsewhere they are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from pod.batch import HEAD_DIMS
from pod.hosts.step import Step, best, shape_of
from pod.kernels import sm90

CACHES = ("auto", "float16", "bfloat16")  # dtypes of the cache, as vLLM names them


def register() -> None:
    """The entry point. vLLM takes no new names from outside; CUSTOM is the place that it keeps free."""
    register_backend(AttentionBackendEnum.CUSTOM, f"{Backend.__module__}.{Backend.__qualname__}")


class Backend(AttentionBackend):
    """What vLLM asks before it chooses."""

    supported_kv_cache_dtypes = list(CACHES)
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type:
        return Impl

    @staticmethod
    def get_builder_cls() -> type:
        return Builder

    @staticmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto") -> tuple[int, ...]:
        """As all caches are since vLLM no longer asks: V of a token behind its K."""
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None) -> list[int]:
        return [16, 32, 64, 128, 256]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return list(HEAD_DIMS)

    @classmethod
    def supports_compute_capability(cls, capability) -> bool:
        return capability.major >= 8

    @classmethod
    def supports_sink(cls) -> bool:
        return sm90.available()

    supports_sliding_window = supports_sink

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False


@dataclass
class Metadata:
    """One iteration, for all layers of a group; the first of those with the same rules of scores plans it."""

    step: Step
    slots: torch.Tensor  # of the new tokens, without the padding
    bound: dict[tuple, object] = field(default_factory=dict)
    places: tuple[torch.Tensor, torch.Tensor] | None = None  # block and row of each slot

    def write(self, cache, new) -> None:
        self.places = self.places or (self.slots // cache.shape[1], self.slots % cache.shape[1])
        cache[self.places] = new[: len(self.slots)]

    def attend(self, q, k, v, scale: float, rules: dict, **sinks):
        key = tuple(rules.items())
        if key not in self.bound:
            self.bound[key] = best(q.device).bind(self.step, *shape_of(q, k, k.shape[1]), **rules)
        return self.bound[key](q, k, v, scale, **sinks)


class Builder(AttentionMetadataBuilder[Metadata]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        _only("speculative_config", vllm_config.speculative_config, None)
        model, spec = vllm_config.model_config, kv_cache_spec
        heads = model.get_num_attention_heads(vllm_config.parallel_config)
        shape = (heads, spec.num_kv_heads, spec.head_size, spec.block_size, model.dtype)
        best(torch.device(device)).build(*shape, torch.device(device))

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False) -> Metadata:
        given = common_attn_metadata
        _only("causal", given.causal, True)
        q_lens = given.query_start_loc_cpu.diff().numpy()
        live = int((q_lens > 0).sum())  # sequences without a token are padding, at the end
        step = Step(q_lens[:live], given.seq_lens_cpu_upper_bound[:live].numpy(), given.block_table_tensor[:live])
        return Metadata(step, given.slot_mapping[: int(q_lens.sum())])


class Impl(AttentionImpl):
    supports_dcp = False

    def __init__(self, num_heads, head_size, scale, num_kv_heads, alibi_slopes=None, sliding_window=None,
                 kv_cache_dtype="auto", logits_soft_cap=None, attn_type="decoder", kv_sharing_target_layer_name=None,
                 sinks=None):  # fmt: skip
        softcap = logits_soft_cap or None
        asked = {"sliding_window": sliding_window, "logits_soft_cap": softcap, "sinks": sinks}
        for name, value in ({"alibi_slopes": alibi_slopes} | ({} if sm90.available() else asked)).items():
            _only(name, value, None)
        rules = {"window": sliding_window, "softcap": softcap, "sinks": None if sinks is None else True}
        self.rules, self.sinks = {name: value for name, value in rules.items() if value is not None}, sinks
        _only("attn_type", attn_type, "decoder")
        _only("kv_cache_dtype", kv_cache_dtype, *CACHES)
        _only("head_size", head_size, *HEAD_DIMS)
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, float(scale), num_kv_heads
        self.kv_cache_dtype, self.kv_sharing_target_layer_name = kv_cache_dtype, kv_sharing_target_layer_name

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output=None, output_scale=None,
                output_block_scale=None):  # fmt: skip
        """query [tokens, heads, head_dim], key and value alike -> output, in place, but for rows of padding.
        kv_cache [blocks, kv_heads, block_size, 2 x head_dim], whatever the order in memory."""
        _only("output_scale", output_scale, None)
        _only("output_block_scale", output_block_scale, None)
        if attn_metadata is None:  # vLLM measures what memory a step takes
            return output.zero_()
        tokens, caches = len(attn_metadata.slots), kv_cache.transpose(1, 2).split(self.head_size, -1)
        if self.kv_sharing_target_layer_name is None:
            for cache, new in zip(caches, (key, value), strict=True):
                attn_metadata.write(cache, new)
        sinks = {} if self.sinks is None else {"sinks": self.sinks.detach().float()}
        out = attn_metadata.attend(query[:tokens], *caches, self.scale, self.rules, **sinks)
        output[:tokens].copy_(out.view_as(output[:tokens]))
        return output


def _only(name: str, value, *allowed) -> None:
    if not any(value is one or (isinstance(value, (str, int)) and value == one) for one in allowed):
        got = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise ValueError(f"{name}: got {got}, allowed with our attention are {', '.join(map(repr, allowed))}")
