"""The public call: plan an iteration once, then compute the attention of its hybrid batch in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, TypeAlias

from pod.batch import LONGEST, HybridBatch, shown
from pod.kernels import launch, lean, sm80, sm90
from pod.kernels.allowed import scales_of
from pod.kernels.build import DTYPES, ahead
from pod.kernels.launch import Plan
from pod.kernels.workspace import Workspace, fullest, make_workspace
from pod.reference import PADDING
from pod.schedule import choose, decide
from pod.schedule.binding import POLICIES

if TYPE_CHECKING:
    import torch

Lengths: TypeAlias = "Sequence[int] | torch.Tensor"

# Where each method lives: a module with plan(batch, device, ...) and build_for(batch, device).
METHODS = dict.fromkeys(sm80.METHODS, sm80) | {"hopper": sm90, "lean": lean}
CTAS_PER_SM = (2, 4, 8)
SHAPE = ("kv_lens", "num_q_heads", "num_kv_heads", "head_dim", "page_size", "dtype")  # what a HybridBatch says as well
OPTIONS = {"policy": "auto", "ctas_per_sm": "auto", "prefill_splits": "limited", "decode_splits": "auto"}
FIXED = ("prefill_splits", "decode_splits")  # what an invariant plan has no choice about
TAKES = dict.fromkeys(sm80.METHODS, ("ctas_per_sm", *FIXED, "invariant"))  # what shapes a method
TAKES |= {"pod": (*OPTIONS, "invariant"), "hopper": ("invariant",), "lean": ("decode_splits", "invariant")}


def plan(
    q_lens: HybridBatch | Lengths,
    kv_lens: Lengths | None = None,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    page_size: int | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cuda",
    method: str = "auto",
    policy: str = "auto",
    ctas_per_sm: int | str = "auto",
    prefill_splits: int | str = "limited",
    decode_splits: int | str = "auto",
    invariant: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    kv_dtype: str | torch.dtype | None = None,
) -> Plan:
    """Decide who computes what, for sequences that bring q_lens tokens and then hold kv_lens, the new ones included.

    q_len 1 is a decode, more a prefill chunk; any mix in any order. (The Hopper kernel counts a few tokens, as
    speculative decoding brings them, among the decodes where that is faster.) Lengths on a GPU are waited for.
    page_size=None means one contiguous cache row a sequence; the dtype is bfloat16 unless named. A HybridBatch stands
    for all of these: pod.plan(batch, device=...).

    method: "auto" is on compute capability 9.0 "hopper", for decodes alone that are long or equal and best left whole
    "lean" (which takes the Hopper kernel too, unless its cost model knows better), elsewhere "pod". "pod" (SM-aware),
    "serial", "streams", "cta" and "warp" are the paper's; "lean" is stream-K, for decodes only. The rest shapes every
    method but "hopper", and "lean" by decode_splits alone; anything but the default there makes "auto" choose "pod".
    policy, for pod: "50:50", "proportional" (to the work), "integer ratio" (of CTA counts, as the paper's artifact has
    it) or "auto". ctas_per_sm: 2, 4, 8 or "auto". prefill_splits: "limited" (two waves), "vanilla", "none" or a number;
    decode_splits: "auto", "stream-k" or a number.

    invariant: a sequence's results do not depend on the others of the batch, to the bit. It costs some speed, since all
    keys are cut at fixed lengths, and the method must be the same: "auto" is "hopper" or, elsewhere, "pod" then.

    What a layer asks of its scores, for hopper. window: a token sees so many keys, its own the last of them (Mistral;
    a model whose layers differ needs a plan for each kind). softcap: a score s becomes softcap x tanh(s / softcap)
    (Gemma 2; 1e-30 to 1000). sinks: every query head has one more score, without a value (gpt-oss): hybrid_attention
    takes them.

    kv_dtype, for hopper: of the caches, if not dtype; float8_e4m3fn, without these rules.
    """
    rest = {"window": window, "softcap": softcap, "sinks": sinks, "kv_dtype": kv_dtype}
    batch = _batch(q_lens, kv_lens, num_q_heads, num_kv_heads, head_dim, page_size, dtype, **rest)
    device = _device(device)
    _one_of("policy", policy, ("auto", *POLICIES))
    _one_of("ctas_per_sm", ctas_per_sm, ("auto", *CTAS_PER_SM))
    prefill_splits = _count_or("prefill_splits", prefill_splits, ("limited", "vanilla", "none"))
    decode_splits = _count_or("decode_splits", decode_splits, ("auto", "stream-k"))
    options = dict(zip(OPTIONS, (policy, ctas_per_sm, prefill_splits, decode_splits), strict=True))
    if invariant is not True and invariant is not False:
        raise ValueError(f"invariant: got {shown(invariant)}, allowed are True and False")
    named = {name: value for name, value in options.items() if value != OPTIONS[name]}
    if invariant and method == "auto":
        method = "hopper" if sm90.available(device) else "pod"
    method = _choose(method, batch, device, bool(named))
    for name, value in (named | ({"invariant": True} if invariant else {})).items():
        if invariant and name in FIXED:
            raise ValueError(f"{name}: got {value!r}, allowed in an invariant plan is {OPTIONS[name]!r}")
        if name not in TAKES[method]:
            raise ValueError(f"{name}: got {value!r}, allowed for method {method!r} is {OPTIONS.get(name, False)!r}")
    if method == "hopper":
        return sm90.plan(batch, device, invariant=invariant)
    if method == "lean":
        return lean.plan(batch, device, decode_splits, invariant=invariant)
    return sm80.plan(batch, device, method, **options, invariant=invariant)


def build(
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cuda",
    method: str = "auto",
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    kv_dtype: str | torch.dtype | None = None,
) -> None:
    """Build, or find built, all that pod.plan may choose for these shapes where nothing but the method is named: once,
    before serving, so that no request waits for a compiler."""
    rest = {"window": window, "softcap": softcap, "sinks": sinks, "kv_dtype": kv_dtype}
    batch = _batch([1], [1], num_q_heads, num_kv_heads, head_dim, page_size, dtype, **rest)
    device, chunk = _device(device), replace(batch, q_lens=(2,), kv_lens=(2,))
    with ahead():
        for method in {_choose(method, b, device, False) for b in (batch, chunk)}:
            METHODS[method].build_for(batch, device)


def workspace(
    tokens: int,
    sequences: int,
    kv_len: int,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    page_size: int | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cuda",
    causal: bool = True,
    draft: int = 1,
    sm_margin: int = 0,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    kv_dtype: str | torch.dtype | None = None,
) -> Workspace:
    """A plan that the GPU makes itself, again and again: for CUDA graphs, which outlive the lengths of an iteration.

    For q of `tokens` rows, of up to `sequences` sequences of up to `kv_len` tokens; an engine makes one for each size
    to which it pads. `workspace.update(q_lens, kv_lens)` plans for what comes next, from tensors on the GPU without
    any wait; it and the layers may be captured together or apart, since a launch is the same for all lengths. Rows that
    no sequence has are left as they are; a sequence may have none (q_len 0).

    draft: new tokens of a sequence that is decoding. sm_margin: SMs that are left to others. window, softcap, sinks,
    kv_dtype: as in pod.plan. It needs compute capability 9.0.
    """
    shape = {"num_q_heads": num_q_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "page_size": page_size,
             "dtype": _dtype_of_kernels(dtype), "causal": causal, "window": window, "softcap": softcap, "sinks": sinks,
             "kv_dtype": kv_dtype and _dtype(kv_dtype)}  # fmt: skip
    limits = {"tokens": tokens, "sequences": sequences, "kv_len": kv_len}
    made = fullest(**{name: _count(name, value) for name, value in limits.items()}, **shape)
    _check_pages(made)
    return make_workspace(made, _device(device), _count("draft", draft), sm_margin)


def hybrid_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: Plan,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool | None = None,
    return_lse: bool = False,
    trace: bool = False,
    out: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: float | torch.Tensor | None = None,
    v_scale: float | torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Attention of a hybrid batch: q [sum of q_lens, Hq, D] -> out, the same shape, dense. It has no gradient.

    k_cache, v_cache: [pages, page_size, Hkv, D] with block_table int32 [sequences, pages of the longest], or
    [sequences, longest kv_len or more, Hkv, D]. They and q may be views, as q of a fused QKV or a corner of a wider
    block_table: only the last dimension must be dense, and rows must start at multiples of 16 bytes. The new tokens' K
    and V must be in the cache. The causal mask (unless the plan's batch says otherwise) is aligned to the end: token j
    of a chunk sees all earlier tokens and the chunk up to j. softmax_scale is 1 / sqrt(D) unless given. With return_lse
    also the log-sum-exp, float32 [tokens, Hq]; with trace also one row a CTA, int64 [CTAs, 8]
    (TRACE_FIELDS of its kernel's module). out: a dense tensor like q to write into. sinks: float32 [Hq], where the plan
    has them; the log-sum-exp counts them. Pages that lie before all windows may be others' by now, but the 127 tokens
    before the first that is seen are read, weighed with 0, and must be finite. k_scale, v_scale: what 1 in a cache of 8
    bits stands for, a number or float32 [Hkv]; 1 unless given. Queries then become halves: what exceeds 65504 counts as
    that.

    Runs on the current stream, without host sync once this mask has run: on a GPU the pages that block_table names are
    only checked where the environment had POD_DEBUG when the plan was made, since looking at them waits for it.
    Otherwise a page that is not there reads as some other page of the pool, or as zeros, and never from outside it.
    NaN and inf spread as in any attention: to all rows that see them, and from v_cache also to earlier rows of the same
    chunk, which weigh them with 0. Scores (with softmax_scale) beyond 1e8 in size may become NaN in rounding.

    Inside torch.compile it is one opaque operator, also with fullgraph=True, and a workspace whose lengths change
    compiles nothing anew: update it outside. Keep the plan as long as what was compiled; there is no trace.
    """
    if not isinstance(plan, Plan):
        raise ValueError(f"plan: got {type(plan).__name__}, allowed is what pod.plan returns")
    for name, flag in (("return_lse", return_lse), ("trace", trace)):
        if flag is not True and flag is not False:
            raise ValueError(f"{name}: got {shown(flag)}, allowed are True and False")
    if causal is not True and causal is not False:
        causal = _causal(causal, plan.batch)
    if launch.is_compiling():
        return launch.compiled(q, k_cache, v_cache, plan, block_table, softmax_scale, causal, return_lse, trace, out,
                               sinks, k_scale, v_scale)  # fmt: skip
    plan.allowed.check(q, k_cache, v_cache, block_table, softmax_scale, causal, out, sinks)
    scales = scales_of(k_scale, v_scale, plan)
    return plan.run(q, k_cache, v_cache, block_table, softmax_scale, causal, return_lse, trace, out, sinks, scales)


# ---------------------------------------------------------------- checks


def _causal(causal, batch: HybridBatch) -> bool:
    if causal is None:
        return batch.causal
    raise ValueError(f"causal: got {shown(causal)}, allowed are True, False and None (as the plan's batch says)")


def _batch(q_lens, kv_lens, num_q_heads, num_kv_heads, head_dim, page_size, dtype, **rest) -> HybridBatch:
    if isinstance(q_lens, HybridBatch):
        named = dict(zip(SHAPE, (kv_lens, num_q_heads, num_kv_heads, head_dim, page_size, dtype), strict=True))
        for name, value in (named | rest).items():
            if value is not None and value is not False:
                raise ValueError(f"{name}: got {shown(value)} beside a HybridBatch, allowed is what the batch says")
        batch = q_lens
        _one_of("dtype", batch.dtype, DTYPES)
    else:
        lens = (_lengths(q_lens, "q_lens"), _lengths(kv_lens, "kv_lens"))
        if rest.get("kv_dtype") is not None:
            rest["kv_dtype"] = _dtype(rest["kv_dtype"])
        shape = {"page_size": page_size, "dtype": _dtype_of_kernels(dtype)}
        batch = HybridBatch(*lens, num_q_heads, num_kv_heads, head_dim, **shape, **rest)
    _check_pages(batch)
    return batch


def _dtype(dtype) -> str:
    return "bfloat16" if dtype is None else str(dtype).removeprefix("torch.")


def _dtype_of_kernels(dtype) -> str:
    """A batch that is only simulated may have others."""
    name = _dtype(dtype)
    _one_of("dtype", name, DTYPES)
    return name


def _check_pages(batch: HybridBatch) -> None:
    page_size = batch.page_size
    if page_size is not None and (page_size % 8 or page_size > LONGEST):
        most = f"allowed are multiples of 8 up to {LONGEST}, and None (contiguous)"
        raise ValueError(f"page_size: got {page_size}, {most}")


def _choose(method, batch: HybridBatch, device, named: bool) -> str:
    """The method, or the one that "auto" stands for."""
    _one_of("method", method, ("auto", *METHODS))
    if method != "auto":
        return method
    if not sm90.available(device):
        return "pod"
    if decide.alone_takes(batch):
        return "hopper"
    if named:
        return "pod"
    alone = max(batch.q_lens) == 1 and not _has_padding(batch)
    return "lean" if alone and not choose.as_few_rows(batch) else "hopper"


def _has_padding(batch: HybridBatch) -> bool:
    return 0 in batch.kv_lens and PADDING in zip(batch.q_lens, batch.kv_lens, strict=True)


def _lengths(lengths, name: str) -> list[int]:
    if hasattr(lengths, "tolist") and not isinstance(lengths, type):
        if "float" in str(getattr(lengths, "dtype", "")):  # an array of Python's own has none
            raise ValueError(f"{name}: got dtype {lengths.dtype}, allowed are integers")
        try:
            lengths = lengths.tolist()
        except (NotImplementedError, RuntimeError):
            raise ValueError(f"{name}: got a tensor without values, allowed are integers") from None
    return lengths


def _device(device):
    import torch

    try:
        device = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"device: got {shown(device)}, allowed are 'cuda', 'cuda:0', ... and 'cpu'") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device: got {str(device)!r}, allowed are cuda and cpu")
    if device.type == "cpu":
        return torch.device("cpu")  # as tensors say it, whatever number was named
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device: got {str(device)!r}, allowed is 'cpu' (the emulator), as torch sees no GPU")
        index = torch.cuda.current_device() if device.index is None else device.index
        try:
            capability = torch.cuda.get_device_capability(index)
        except (AssertionError, RuntimeError):
            raise ValueError(f"device: got {str(device)!r}, allowed are the GPUs that torch sees") from None
        device = torch.device("cuda", index)
        if capability < (8, 0):
            capability = ".".join(map(str, capability))
            raise ValueError(f"device: got compute capability {capability}, allowed is 8.0 and later")
    return device


def _one_of(name: str, value, allowed) -> None:
    if not isinstance(value, (str, Integral)) or isinstance(value, bool) or value not in tuple(allowed):
        raise ValueError(f"{name}: got {shown(value)}, allowed are {', '.join(map(repr, allowed))}")


def _count(name: str, value) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: got {shown(value)}, allowed are integers from 1 on")
    return int(value)


def _count_or(name: str, value, words: tuple[str, ...]) -> int | str:
    if isinstance(value, str) and value in words:
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= value <= 128:
        words = ", ".join(map(repr, words))
        raise ValueError(f"{name}: got {shown(value)}, allowed are {words} and numbers from 1 to 128")
    return int(value)
