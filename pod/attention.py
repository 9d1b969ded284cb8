"""The public call: plan an iteration once, then compute the attention of its hybrid batch in every layer."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from pod.batch import HybridBatch
from pod.schedule.binding import POLICIES

# Where each method lives: a module with make_plan(batch, device, ...) and run(plan, q, ...).
METHODS = {method: "pod.ampere" for method in ("serial", "streams", "cta", "warp", "pod")}
METHODS |= {"hopper": "pod.hopper", "lean": "pod.lean"}
DTYPES = ("float16", "bfloat16")
CTAS_PER_SM = (2, 4)


@dataclass(frozen=True)
class Plan:
    """One iteration's work, ready on the device. Any number of layers may use it, one after the other."""

    batch: HybridBatch
    method: str
    device: object
    module: ModuleType
    work: object  # the method's own plan

    def __repr__(self) -> str:
        b = self.batch
        heads = f"{b.num_q_heads}/{b.num_kv_heads} heads"
        return f"Plan({self.method!r}, {len(b.q_lens)} sequences, {heads}, {self.device})"


def plan(
    q_lens, kv_lens, num_q_heads, num_kv_heads, head_dim, page_size=None, dtype=None, device="cuda", method="pod",
    policy="proportional", ctas_per_sm="auto", prefill_splits="limited", decode_splits="auto",
) -> Plan:  # fmt: skip
    """Decide who computes what, for sequences that bring q_lens tokens and then hold kv_lens, the new ones included.

    q_len 1 is a decode, more a prefill chunk; any mix in any order. page_size=None means one contiguous cache row a
    sequence; the dtype is bfloat16 unless named. method: "pod" (SM-aware), "serial", "streams", "cta", "warp",
    "hopper", "lean" (stream-K, for decodes only), or "auto": on compute capability 9.0 "hopper", for decodes alone
    "lean" (which takes the Hopper kernel too, unless its cost model knows better), elsewhere "pod". The rest
    shapes every method but "hopper", and "lean" by decode_splits alone; naming any of it makes "auto" choose "pod".
    policy, for pod: "proportional" (to the work), "50:50", or "integer ratio" (of CTA counts, as the paper's artifact
    has it). ctas_per_sm: 2, 4 or "auto". prefill_splits: "limited" (two waves), "vanilla", "none" or a number;
    decode_splits: "auto", "stream-k" or a number.
    """
    import torch

    name = _dtype_name(torch.bfloat16 if dtype is None else dtype)
    lens = (_lengths(q_lens, "q_lens"), _lengths(kv_lens, "kv_lens"))
    batch = HybridBatch(*lens, num_q_heads, num_kv_heads, head_dim, page_size=page_size, dtype=name)
    if page_size is not None and (page_size < 16 or page_size & (page_size - 1)):
        raise ValueError(f"page_size: got {page_size}, allowed are powers of two from 16 on, and None (contiguous)")
    _one_of("method", method, ("auto", *METHODS))
    device = _device(device)
    if method == "auto":
        named = (policy, ctas_per_sm, prefill_splits, decode_splits) != ("proportional", "auto", "limited", "auto")
        best = "hopper" if max(batch.q_lens) > 1 else "lean"
        method = "pod" if named or not _is_hopper(device) else best
    module = import_module(METHODS[method])
    if method == "hopper":
        return Plan(batch, method, device, module, module.make_plan(batch, device))
    if method == "lean":
        _count_or("decode_splits", decode_splits, ("auto", "stream-k"))
        return Plan(batch, method, device, module, module.make_plan(batch, device, decode_splits))
    _one_of("policy", policy, POLICIES)
    _one_of("ctas_per_sm", ctas_per_sm, ("auto", *CTAS_PER_SM))
    _count_or("prefill_splits", prefill_splits, ("limited", "vanilla", "none"))
    _count_or("decode_splits", decode_splits, ("auto", "stream-k"))
    work = module.make_plan(batch, device, method, policy, ctas_per_sm, prefill_splits, decode_splits)
    return Plan(batch, method, device, module, work)


def hybrid_attention(q, k_cache, v_cache, plan: Plan, block_table=None, softmax_scale=None, causal=True,
                     return_lse=False, trace=False):  # fmt: skip
    """Attention of a hybrid batch: q [sum of q_lens, Hq, D] -> out, the same shape.

    k_cache, v_cache: [pages, page_size, Hkv, D] with block_table int32 [sequences, pages of the longest], or
    [sequences, longest kv_len or more, Hkv, D]. The new tokens' K and V must be in the cache. The causal mask is
    aligned to the end: token j of a chunk sees all earlier tokens and the chunk up to j. softmax_scale is 1 / sqrt(D)
    unless given. With return_lse also the log-sum-exp, float32 [tokens, Hq]; with trace also one row a CTA, int64
    [CTAs, 8] (pod.kernels.TRACE_FIELDS). Runs on the current stream, without host sync: on a GPU the pages that
    block_table names are only checked when the environment has POD_DEBUG, since looking at them would wait for it.
    """
    _check(q, k_cache, v_cache, plan, block_table, softmax_scale)
    return plan.module.run(plan.work, q, k_cache, v_cache, block_table, softmax_scale, causal, return_lse, trace)


# ---------------------------------------------------------------- checks


def _check(q, k_cache, v_cache, plan: Plan, block_table, softmax_scale) -> None:
    b = plan.batch
    tokens = sum(b.q_lens)
    if tuple(q.shape) != (tokens, b.num_q_heads, b.head_dim):
        raise ValueError(f"q: got shape {tuple(q.shape)}, allowed by the plan is {(tokens, b.num_q_heads, b.head_dim)}")
    slots = b.page_size or "slots"
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dim() != 4 or tuple(cache.shape[2:]) != (b.num_kv_heads, b.head_dim):
            wanted = f"[{'pages' if b.page_size else 'sequences'}, {slots}, {b.num_kv_heads}, {b.head_dim}]"
            raise ValueError(f"{name}: got shape {tuple(cache.shape)}, allowed by the plan is {wanted}")
    if v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        got, wanted = (f"{tuple(x.shape)} with strides {x.stride()}" for x in (v_cache, k_cache))
        raise ValueError(f"v_cache: got {got}, allowed is what k_cache has, {wanted}")
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        _check_tensor(name, x, plan)
        if _runs_on_hopper(plan) and not x.is_contiguous():  # its tensor maps know the shape, not the strides
            raise ValueError(f"{name}: got strides {x.stride()}, allowed for method {plan.method!r} is a contiguous "
                             "tensor")  # fmt: skip
    if b.page_size is None:
        _check_contiguous(k_cache, b, block_table)
    else:
        _check_paged(k_cache, b, block_table, plan.device)
    if softmax_scale is not None and not (math.isfinite(softmax_scale) and softmax_scale > 0):
        raise ValueError(f"softmax_scale: got {softmax_scale!r}, allowed are numbers above 0")


def _check_tensor(name: str, x, plan: Plan) -> None:
    if str(x.dtype) != f"torch.{plan.batch.dtype}":
        raise ValueError(f"{name}: got dtype {x.dtype}, allowed by the plan is torch.{plan.batch.dtype}")
    if x.device != plan.device:
        raise ValueError(f"{name}: got device {x.device}, allowed by the plan is {plan.device}")
    if x.stride(-1) != 1:
        raise ValueError(f"{name}: got strides {x.stride()}, allowed is a dense last dimension")
    if any(s % 8 for s in x.stride()[:-1]) or x.data_ptr() % 16:
        raise ValueError(f"{name}: got strides {x.stride()}, allowed are rows that start at multiples of 16 bytes")


def _check_contiguous(k_cache, b: HybridBatch, block_table) -> None:
    if block_table is not None:
        raise ValueError("block_table: got one, allowed is None as the plan has no page_size")
    if k_cache.shape[0] < len(b.q_lens) or k_cache.shape[1] < max(b.kv_lens):
        raise ValueError(f"k_cache: got {k_cache.shape[0]} sequences of {k_cache.shape[1]} slots, allowed are at least "
                         f"{len(b.q_lens)} of {max(b.kv_lens)}")  # fmt: skip


def _check_paged(k_cache, b: HybridBatch, block_table, device) -> None:
    if k_cache.shape[1] != b.page_size:
        raise ValueError(f"k_cache: got pages of {k_cache.shape[1]} tokens, allowed by the plan is {b.page_size}")
    if block_table is None:
        raise ValueError(f"block_table: got None, allowed is int32 [{len(b.q_lens)}, pages], as the plan has page_size")
    if str(block_table.dtype) != "torch.int32" or block_table.dim() != 2 or block_table.stride(1) != 1:
        raise ValueError(f"block_table: got {block_table.dtype} of shape {tuple(block_table.shape)}, allowed is dense "
                         "int32 [sequences, pages]")  # fmt: skip
    if block_table.device != device:
        raise ValueError(f"block_table: got device {block_table.device}, allowed by the plan is {device}")
    if block_table.shape[0] < len(b.q_lens) or block_table.shape[1] < max(b.pages):
        raise ValueError(f"block_table: got shape {tuple(block_table.shape)}, allowed is at least "
                         f"{(len(b.q_lens), max(b.pages))}")  # fmt: skip
    if device.type == "cpu" or os.environ.get("POD_DEBUG"):  # on a GPU this waits for the table, so only when asked for
        _check_pages(block_table, b.pages, k_cache.shape[0])


def _check_pages(block_table, used, pages: int) -> None:
    for i, n in enumerate(used):
        row = block_table[i, :n]
        if bool(((row < 0) | (row >= pages)).any()):
            raise ValueError(f"block_table: got {row.tolist()} in row {i}, allowed are pages 0 to {pages - 1}")


def _runs_on_hopper(plan: Plan) -> bool:
    return plan.method == "hopper" or plan.method == "lean" and _is_hopper(plan.device)


def _is_hopper(device) -> bool:
    import torch

    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def _dtype_name(dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    _one_of("dtype", name, DTYPES)
    return name


def _lengths(lengths, name: str) -> list[int]:
    if hasattr(lengths, "tolist"):
        if "float" in str(lengths.dtype):
            raise ValueError(f"{name}: got dtype {lengths.dtype}, allowed are integers")
        lengths = lengths.tolist()
    return lengths


def _device(device):
    import torch

    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device: got {str(device)!r}, allowed are cuda and cpu")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device: got {str(device)!r}, allowed is 'cpu' (the emulator), as torch sees no GPU")
        index = torch.cuda.current_device() if device.index is None else device.index
        device = torch.device("cuda", index)
        if torch.cuda.get_device_capability(device) < (8, 0):
            capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
            raise ValueError(f"device: got compute capability {capability}, allowed is 8.0 and later")
    return device


def _one_of(name: str, value, allowed) -> None:
    if value not in tuple(allowed) or isinstance(value, bool):
        raise ValueError(f"{name}: got {value!r}, allowed are {', '.join(map(repr, allowed))}")


def _count_or(name: str, value, words: tuple[str, ...]) -> None:
    if value in words:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 128:
        raise ValueError(f"{name}: got {value!r}, allowed are {', '.join(map(repr, words))} and numbers from 1 to 128")
