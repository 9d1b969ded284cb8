"""Our attention inside transformers: `generate_batch` reads the pages where they lie, and `generate` works, too.

    import pod.hosts.transformers
    model = AutoModelForCausalLM.from_pretrained(name, dtype="bfloat16", attn_implementation="pod").cuda()
    model.generate_batch(prompts, generation_config=...)

Its continuous batching has a call with block tables where every row is a decode; in any other step it copies all keys
and values of the batch out of the cache, in every layer. Here every step has block tables. Lengths and pages come from
the host's own lists, so nothing waits for the GPU, and a batch is prepared while the one before runs. With CUDA graphs
(use_cuda_graph=True, on an H100 or H200) the GPU plans, in the graph, from their lengths: one graph serves all batches
of a padded number of tokens.

On a CPU "pod" is torch's own attention from the same pages, in any dtype: the reference. On every device a forward pass
with a mask that is more than causal (padding, for prompts of unequal length in `generate`; a sliding window that hides
a key) goes to transformers' sdpa.

transformers has no door for such a guest: its continuous batching goes by names. So seven names in its modules are
replaced here, and the version has to be the one that was read. Models with another attention notice nothing.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
import transformers
from transformers.generation.continuous_batching import cache as their_cache
from transformers.generation.continuous_batching import continuous_api, input_outputs, model_runner
from transformers.generation.continuous_batching.utils import pad_to_pow2, stream_context
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from pod.batch import HEAD_DIMS
from pod.hosts.step import REFERENCE, Fixed, Step, best, shape_of

VERSION = "5.23"
NARROWEST = 64  # pages of a sequence in the table of a CUDA graph, so that growing sequences rarely ask for another
UNREAD = torch.empty(1, 1, 1, 1)  # a mask of four dimensions goes through a model as it is
UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias")  # what a layer may ask for and no kernel of ours has


# ---------------------------------------------------------------- names
ATTENTIONS: dict[str, object] = {}  # by the name that a model gives; None is the best that its device has


def register(name: str, attention=None) -> None:
    """Let models say attn_implementation=name. `attention` computes it: Kernel("serial") of step.py, or alike."""
    ATTENTIONS[name] = attention
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)


def _is_ours(config) -> bool:
    return config._attn_implementation in ATTENTIONS


def _attention(config, device):
    return ATTENTIONS[config._attn_implementation] or best(device)


# ---------------------------------------------------------------- what a layer calls
def attend(module, query, key, value, attention_mask, dropout=0.0, scaling=None, cache=None, **more):
    """query [batch, heads, tokens, head_dim] and all that it sees; with a paged cache, one row of all sequences' new
    tokens. Returns [batch, tokens, heads, head_dim]."""
    hides = attention_mask is None and (more.get("sliding_window") or 0) < key.shape[2]
    if not (hides or isinstance(cache, Pages)):
        more["sliding_window"] = None  # it is in the mask: where a window hides a key, sdpa_mask makes one
    _check(module, dropout, more)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(cache, Pages):
        return cache.attend(module.layer_idx, query, key, value, scale, more), None
    attention = _attention(module.config, query.device)
    if attention_mask is not None or attention is REFERENCE:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scale)
    seen = query.shape[2] if query.shape[2] > 1 else key.shape[2]  # an empty StaticCache is longer than it is full
    q, k, v = (x[:, :, :seen].transpose(1, 2) for x in (query, key, value))
    bound = _whole(attention, *q.shape[:2], k.shape[1], *shape_of(q, k))
    return bound(q.flatten(0, 1), k, v, scale).view(q.shape), None


@lru_cache(maxsize=1)
def _whole(attention, sequences: int, q_len: int, kv_len: int, *shape) -> Callable:
    """Sequences that are equally long, each a row of the cache: one plan for all layers."""
    return attention.bind(Step(np.full(sequences, q_len), np.full(sequences, kv_len)), *shape)


def _check(module, dropout: float, more: dict) -> None:
    for name in UNKNOWN:
        if (asked := more.get(name)) is not None:
            got = f"shape {tuple(asked.shape)}" if isinstance(asked, torch.Tensor) else repr(asked)
            raise ValueError(f"{name}: got {got}, allowed with attention 'pod' is None")
    causal = more.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise ValueError("is_causal: got False, allowed with attention 'pod' is True")
    if dropout:
        raise ValueError(f"dropout: got {dropout}, allowed with attention 'pod' is 0")


# ---------------------------------------------------------------- continuous batching
class Pages(their_cache.PagedAttentionCache):
    """Their cache, which is told of each sequence of the coming iteration: we note it and copy nothing out.

    They prepare an iteration, launch it, and only then prepare the next, so what was noted last is what runs.
    """

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        self.coming: list[tuple[int, int, list[int]]] = []  # new tokens, all tokens, their blocks
        self.fixed: dict[tuple[int, int], Fixed] = {}  # for CUDA graphs, by tokens and by pages of a sequence
        self.size: tuple[int, int] | None = None  # of the batch that runs, if it is for a graph
        self.attention = _attention(config, self.device) if _is_ours(config) else None
        if self.attention:
            full, group = self._full, config.num_attention_heads // their_cache.find_num_key_value_heads(config)
            heads = full.num_key_value_heads  # of this GPU
            self.shape = (group * heads, heads, full.head_dim, full.tokens_per_page, self.dtype, self.device)
            self.attention.build(*self.shape)

    @property
    def _full(self):
        return self.cache_allocators[their_cache.FULL_ATTENTION]

    def extend_read_and_write_indices(self, request_id, past_length, query_length, read_index, write_index) -> None:
        read_index = None if self.attention else read_index
        super().extend_read_and_write_indices(request_id, past_length, query_length, read_index, write_index)
        if self.attention:
            self.coming.append((query_length, past_length + query_length, self._full.block_table[request_id]))

    def take(self, sequences: int) -> None:
        """So many run now; what was noted before them is of a step that failed."""
        self.q_lens, self.kv_lens, self.blocks = zip(*self.coming[-sequences:], strict=True)
        self.coming = []

    def fix(self, tokens: int, sequences: int) -> None:
        """For a graph: what its size needs, if that is new, and the pages to where it reads them."""
        width = pad_to_pow2(max(map(len, self.blocks)), self._full.num_blocks, NARROWEST)
        self.size = tokens, width
        if self.size not in self.fixed:
            table = torch.zeros(sequences, width, dtype=torch.int32, device=self.device)
            self.fixed[self.size] = self.attention.fix(tokens, table, *self.shape)
        self.fixed[self.size].table[: len(self.blocks)].copy_(self._table(width), non_blocking=True)

    def attend(self, layer: int, query, key, value, scale: float, more: dict):
        """Keys and values go to their slots; then all pages are read where they are."""
        pages, slots = self._full.get_cache_for_block_table(layer), more["write_index"][self._full.index]
        for cache, new in zip(pages, (key, value), strict=True):
            cache.flatten(0, 1).index_copy_(0, slots, new[0].transpose(0, 1))
        q = query[0].transpose(0, 1)
        if layer == 0:
            self.bound = self._bind() if self.size is None else self._update(more)
        return self.bound(q, *pages, scale)[None]

    def _bind(self) -> Callable:
        table = self._table(max(map(len, self.blocks))).to(self.device, non_blocking=True)
        return self.attention.bind(Step(np.array(self.q_lens), np.array(self.kv_lens), table), *self.shape)

    def _update(self, more: dict) -> Callable:
        """Captured, from their tensors: a replay plans anew. Sequences of padding have no tokens."""
        fixed = self.fixed[self.size]
        fixed.update(more["cu_seq_lens_q"].diff(), more["cu_seq_lens_k"][their_cache.FULL_ATTENTION].diff())
        return fixed

    def _table(self, width: int) -> torch.Tensor:
        table = np.zeros((len(self.blocks), width), np.int32)
        for row, mine in zip(table, self.blocks, strict=True):
            row[: len(mine)] = mine
        table *= self._full.block_physical_stride // self._full.tokens_per_page  # a block has a page of each layer
        table = torch.from_numpy(table)
        return table.pin_memory() if self.device.type == "cuda" else table


def model_kwargs(ios, *args, **kwargs):
    """Theirs, with a mask that nobody reads in place of none: to find that there is none, a model waits for the GPU."""
    given = model_kwargs.theirs(ios, *args, **kwargs)
    if getattr(ios.cache, "attention", None):
        ios.cache.take(ios.num_request_in_batch)
        given["attention_mask"] = UNREAD
    return given


def compute_batch(runner, model, batch) -> None:
    """Theirs, after what a replay cannot do."""
    if getattr(runner.cache, "attention", None) and runner.use_cuda_graph_varlen:
        with stream_context(runner.inputs_and_outputs.compute_stream):
            runner.cache.fix(batch["input_ids"].shape[1], len(batch["cu_seq_lens_q"]) - 1)
    compute_batch.theirs(runner, model, batch)


def graph_key(ios) -> tuple[int, ...]:
    """What a graph is made for: in ours, no length."""
    return getattr(ios.cache, "size", None) or graph_key.theirs(ios)


def counts_as_flash(config=None, requested_attention_implementation=None, version=None) -> bool:
    """To their continuous batching a guest is a flash attention, of no version: no mask, no copies of KV heads."""
    if (requested_attention_implementation or config._attn_implementation) in ATTENTIONS:
        return version is None
    return counts_as_flash.theirs(config, requested_attention_implementation, version)


def resolve(config, cb_config, *args, **kwargs):
    """Their defaults; where the attention is ours, batches are prepared ahead and what cannot be is said at once."""
    if _is_ours(config):
        _check_model(config)
        _check_batching(cb_config)
        _check_graphs(config, cb_config, kwargs["device"])
    resolved = resolve.theirs(config, cb_config, *args, **kwargs)
    if _is_ours(config):
        _check_graphs(config, resolved, kwargs["device"])  # to name an interval of padding asks for them, too
        if cb_config.use_async_batching is None:
            resolved.use_async_batching = torch.cuda.is_available()
    return resolved


def _check_model(config) -> None:
    kinds = set(their_cache.group_layers_by_attn_type(config)) - {their_cache.FULL_ATTENTION}
    if kinds:
        raise ValueError(f"layers: got {', '.join(sorted(kinds))}, allowed with attention 'pod' is full_attention")
    if cap := getattr(config, "attn_logit_softcapping", None):
        raise ValueError(f"softcap: got {cap}, allowed with attention 'pod' is None")
    if (head_dim := their_cache.find_head_dim(config)) not in HEAD_DIMS:
        raise ValueError(f"head_dim: got {head_dim}, allowed with attention 'pod' are {', '.join(map(str, HEAD_DIMS))}")


def _check_batching(cb_config) -> None:
    page = cb_config.page_size
    if page < 16 or page & (page - 1):
        raise ValueError(f"page_size: got {page}, allowed with attention 'pod' are powers of two from 16 on")
    if cb_config.varlen_compile_config or cb_config.default_compile_level:
        raise ValueError("varlen_compile_config: got one, allowed with attention 'pod' is None: rows would be padded")


def _check_graphs(config, cb_config, device) -> None:
    """All steps are of one kind, so they are for all of them or for none."""
    attention, asked = _attention(config, device), set(cb_config.cuda_graph_booleans)
    can = hasattr(attention, "fix") and attention.can_fix(device)
    if asked != {False} and not (can and asked == {True}):
        allowed = "are False and True" if can else "is False"
        raise ValueError(f"use_cuda_graph: got {cb_config.use_cuda_graph}, allowed with attention "
                         f"{config._attn_implementation!r} on {device} {allowed}")  # fmt: skip


def _check_version(found: str) -> None:
    if not found.startswith(f"{VERSION}."):
        raise ImportError(f"transformers: got {found}, allowed is {VERSION}; mend it: pip install 'pod[transformers]'")


def _enter(place, name: str, ours) -> None:
    """Put ours in the place of theirs, which it may call; a module that is loaded again finds theirs, too."""
    theirs = getattr(place, name)
    ours.theirs = getattr(theirs, "theirs", theirs)
    setattr(place, name, ours)


_check_version(transformers.__version__)
_enter(their_cache, "is_flash_attention_requested", counts_as_flash)
_enter(continuous_api, "is_flash_attention_requested", counts_as_flash)
_enter(continuous_api, "resolve_continuous_batching_config", resolve)
_enter(continuous_api, "PagedAttentionCache", Pages)
_enter(input_outputs.ContinuousBatchingIOs, "get_model_kwargs", model_kwargs)
_enter(input_outputs.ContinuousBatchingIOs, "_get_graph_key", graph_key)
_enter(model_runner.ModelRunner, "compute_batch", compute_batch)
register("pod")
