"""Other people's attention on the same batch: what a user could pick instead of our kernel.

A peer takes a `Setting` and returns a call that computes prefill and decode, as (prefill out, decode out). A peer that
is not installed, cannot take the batch, or computes something else is a named hole in the table, never a silent drop.
"""

import math
import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial

from pod.batch import HybridBatch
from pod.hardware import GPU
from pod.lab.measure import timing
from pod.schedule import decide
from pod.schedule.work import Schedule

PAGE = 16  # page size for the peers that need pages; the contiguous cache is seen as pages in order
WORKSPACE = 512 << 20


@dataclass
class Setting:
    """One batch on the GPU: at most one prefill chunk, first in the batch, then the decodes; a contiguous cache."""

    batch: HybridBatch
    seed: int = 0
    device: str = "cuda"  # "cpu" is for our own kernels on the emulator

    def __post_init__(self):
        import torch

        b = self.batch
        torch.manual_seed(self.seed)
        dtype = getattr(torch, b.dtype)
        longest = -(-max(b.kv_lens) // PAGE) * PAGE
        self.q = torch.randn(sum(b.q_lens), b.num_q_heads, b.head_dim, device=self.device, dtype=dtype)
        shape = (len(b.kv_lens), longest, b.num_kv_heads, b.head_dim)
        self.k, self.v = (torch.empty(shape, device=self.device, dtype=dtype).normal_() for _ in "kv")
        self.chunk = b.q_lens[0] if b.q_lens[0] > 1 else 0
        self.context = b.kv_lens[0] if self.chunk else 0
        self.first = 1 if self.chunk else 0  # the first sequence that decodes
        self.lens = torch.tensor(b.kv_lens, dtype=torch.int32, device=self.device)
        if any(q != 1 for q in b.q_lens[self.first :]):
            raise ValueError(f"q_lens: got {b.q_lens}, allowed is one chunk followed by decodes")

    @property
    def q_prefill(self):
        return self.q[: self.chunk]

    @property
    def q_decode(self):
        return self.q[self.chunk :]

    def sides(self, out):
        """The rows of the chunk and those of the decodes, of an output for both."""
        return out[: self.chunk], out[self.chunk :]

    @cached_property
    def pages(self):
        """The caches as [pages, PAGE, Hk, D], the first page of each sequence, and pages a sequence."""
        import torch

        shape = (-1, PAGE, self.batch.num_kv_heads, self.batch.head_dim)
        stride = self.k.shape[1] // PAGE
        counts = [-(-n // PAGE) for n in self.batch.kv_lens]
        indices = (
            torch.cat([torch.arange(i * stride, i * stride + n) for i, n in enumerate(counts)]).int().to(self.device)
        )
        return self.k.view(shape), self.v.view(shape), indices, counts

    def page_arguments(self, first: int, last: int):
        """indptr, indices and last_page_len of sequences [first, last), as FlashInfer takes them."""
        import torch

        _, _, indices, counts = self.pages
        ends = torch.tensor([0, *counts]).cumsum(0)
        part = indices[ends[first] : ends[last]]
        indptr = (ends[first : last + 1] - ends[first]).int().to(self.device)
        tail = torch.tensor(
            [(n - 1) % PAGE + 1 for n in self.batch.kv_lens[first:last]], dtype=torch.int32, device=self.device
        )
        return indptr, part, tail

    def reference(self):
        """float32 attention of a few query rows of the chunk and a few decodes: (rows, out) for each side."""
        import torch

        b = self.batch
        rows = [i for i in (0, self.chunk // 2, self.chunk - 1) if self.chunk] if self.chunk else []
        decodes = sorted({0, (len(b.q_lens) - self.first) // 2, len(b.q_lens) - self.first - 1})
        decodes = [i for i in decodes if i >= 0] if len(b.q_lens) > self.first else []
        prefill = [self._row(self.q[i], 0, self.context - self.chunk + i + 1) for i in rows]
        decode = [self._row(self.q_decode[i], self.first + i, b.kv_lens[self.first + i]) for i in decodes]
        return (rows, torch.stack(prefill) if rows else None), (decodes, torch.stack(decode) if decodes else None)

    def _row(self, q, sequence: int, visible: int):
        import torch

        b = self.batch
        k, v = (x[sequence, :visible].float().transpose(0, 1) for x in (self.k, self.v))
        q = q.float().view(b.num_kv_heads, b.group, b.head_dim)
        scores = torch.softmax(q @ k.transpose(1, 2) * b.head_dim**-0.5, -1)
        return (scores @ v).reshape(b.num_q_heads, b.head_dim)


def error(setting: Setting, outputs, expected) -> float:
    """Largest relative error of the sampled rows of both sides."""
    worst = 0.0
    for out, (rows, truth) in zip(outputs, expected, strict=True):
        if rows:
            got = out[rows].double()
            worst = max(worst, float((got - truth.double()).norm() / truth.double().norm()))
    return worst


def _one_length(s: Setting) -> int:
    """Tokens of every decode; torch's kernels take a dense cache and no lengths."""
    lengths = set(s.batch.kv_lens[s.first :])
    if len(lengths) != 1:
        raise ValueError(f"kv_lens: got decodes of {len(lengths)} lengths, allowed is one length")
    return lengths.pop()


def on_two_streams(prefill: Callable, decode: Callable) -> Callable:
    """The prefill on the current stream, the decode beside it on another."""
    import torch

    side = torch.cuda.Stream()

    def call():
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            out_decode = decode()
        out = prefill(), out_decode
        here.wait_stream(side)
        return out

    return call


def graphed(make: Callable, calls: int = 1) -> Callable:
    """A maker of the same, captured in a CUDA graph: a call replays it, and the host has no part in what it takes."""

    def made(s: Setting):
        import torch

        call, graph, side = make(s), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # what a first call alone does must not be in the graph
                call()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            for _ in range(calls):
                out = call()
        kept = call, out  # the graph only has their addresses
        if not _is_whole(graph, out):
            raise RuntimeError("a second replay leaves results unwritten: the graph has not all that a call does")

        def replay():
            graph.replay()
            return kept[1]

        return replay

    return made


def refused(why: str) -> Callable:
    """A maker that says why there is no such way."""

    def made(s: Setting):
        raise RuntimeError(why)

    return made


def _is_whole(graph, outputs) -> bool:
    """Whether a replay makes the results, and after it another one: what a call does on a stream of its own, as setting
    counters to zero, is not in the graph."""
    made = [x for x in outputs if x is not None]
    for _ in range(2):
        for x in made:
            x.fill_(math.nan)
        graph.replay()
    return not any(bool(x.isnan().any()) for x in made)


# ---------------------------------------------------------------- torch: FlashAttention-2 and cuDNN


def _fa2_calls(s: Setting):
    """FlashAttention-2 as torch carries it: what the paper calls FA. Its causal mask is aligned to the end."""
    import torch

    def attend(q, k, v, causal):
        lengths = (q.shape[1], k.shape[1])
        return torch.ops.aten._flash_attention_forward(q, k, v, None, None, *lengths, 0.0, causal, False)[0]

    def prefill():
        return attend(s.q_prefill[None], s.k[:1, : s.context], s.v[:1, : s.context], True)[0]

    def decode():
        tokens = _one_length(s)
        return attend(s.q_decode[:, None], s.k[s.first :, :tokens], s.v[s.first :, :tokens], False)[:, 0]

    return prefill, decode


def fa2_prefill(s: Setting):
    prefill, _ = _fa2_calls(s)
    return lambda: (prefill(), None)


def fa2_decode(s: Setting):
    _, decode = _fa2_calls(s)
    return lambda: (None, decode())


def fa2_serial(s: Setting):
    prefill, decode = _fa2_calls(s)
    return lambda: (prefill(), decode())


def fa2_streams(s: Setting):
    return on_two_streams(*_fa2_calls(s))


def cudnn_serial(s: Setting):
    """torch's cuDNN attention. It knows the mask of a whole prompt; that of a chunk is a tensor."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    whole, tokens = s.chunk == s.context, _one_length(s)
    ones = torch.ones(s.chunk, s.context, dtype=torch.bool, device=s.device)
    mask = {"is_causal": True} if whole else {"attn_mask": ones.tril(s.context - s.chunk)}

    def attend(q, k, v, **mask):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True, **mask)
        return out.transpose(1, 2)

    def call():
        prefill = attend(s.q_prefill[None], s.k[:1, : s.context], s.v[:1, : s.context], **mask)
        decode = attend(s.q_decode[:, None], s.k[s.first :, :tokens], s.v[s.first :, :tokens])
        return prefill[0], decode[:, 0]

    return call


# ---------------------------------------------------------------- FlashAttention-3


def _fa3_calls(s: Setting):
    import flash_attn_interface as fa3

    def prefill():
        return alone(
            fa3.flash_attn_with_kvcache(s.q_prefill[None], s.k[:1], s.v[:1], cache_seqlens=s.lens[:1], causal=True)
        )[0]

    def prefill_exact():
        return alone(fa3.flash_attn_func(s.q_prefill[None], s.k[:1, : s.context], s.v[:1, : s.context], causal=True))[0]

    def decode():
        q, k, v, lens = s.q_decode[:, None], s.k[s.first :], s.v[s.first :], s.lens[s.first :]
        return alone(fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=lens, causal=True))[:, 0]

    return prefill, prefill_exact, decode


def alone(out):
    """The output, of versions that return more beside it."""
    return out[0] if isinstance(out, tuple) else out


def fa3_prefill(s: Setting):
    prefill, _, _ = _fa3_calls(s)
    return lambda: (prefill(), None)


def fa3_prefill_exact(s: Setting):
    _, prefill, _ = _fa3_calls(s)
    return lambda: (prefill(), None)


def fa3_decode(s: Setting):
    _, _, decode = _fa3_calls(s)
    return lambda: (None, decode())


def fa3_paged(s: Setting, page: int):
    """Prefill alone or decode alone in pages of `page` tokens, in random order."""
    import flash_attn_interface as fa3

    _, caches, table = in_pages(s, page)
    q = s.q_prefill[None] if s.chunk else s.q_decode[:, None]

    def call():
        out = alone(fa3.flash_attn_with_kvcache(q, *caches, cache_seqlens=s.lens, page_table=table, causal=True))
        return (out[0], None) if s.chunk else (None, out[:, 0])

    return call


def fa3_serial(s: Setting):
    prefill, _, decode = _fa3_calls(s)
    return lambda: (prefill(), decode())


def fa3_streams(s: Setting):
    """The two calls on two streams; FlashAttention-3 takes whole SMs, so they rarely share one."""
    prefill, _, decode = _fa3_calls(s)
    return on_two_streams(prefill, decode)


def fa3_varlen(s: Setting, **options):
    """One call over the whole batch, as serving engines make it."""
    import flash_attn_interface as fa3
    import torch

    starts = torch.tensor([0, *s.batch.q_lens], dtype=torch.int32, device="cuda").cumsum(0, dtype=torch.int32)

    call = partial(fa3.flash_attn_with_kvcache, s.q, s.k, s.v, cache_seqlens=s.lens, cu_seqlens_q=starts,
                   max_seqlen_q=max(s.batch.q_lens), causal=True, **options)  # fmt: skip
    return lambda: s.sides(alone(call()))


# ---------------------------------------------------------------- FlashInfer


def workspace():
    import torch

    return torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")


def _fi_shape(s: Setting) -> dict:
    return {"num_qo_heads": s.batch.num_q_heads, "num_kv_heads": s.batch.num_kv_heads, "page_size": PAGE}


def _fi_prefill(s: Setting, backend: str, first: int, last: int):
    import flashinfer
    import torch

    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend=backend)
    starts = torch.tensor([0, *s.batch.q_lens[first:last]]).cumsum(0).int().cuda()
    indptr, indices, tail = s.page_arguments(first, last)
    wrapper.plan(
        starts, indptr, indices, tail, head_dim_qk=s.batch.head_dim, causal=True, q_data_type=s.q.dtype, **_fi_shape(s)
    )
    return wrapper


def _fi_decode(s: Setting, tensor_cores: bool = True):
    import flashinfer

    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD", use_tensor_cores=tensor_cores)
    indptr, indices, tail = s.page_arguments(s.first, len(s.batch.q_lens))
    wrapper.plan(indptr, indices, tail, head_dim=s.batch.head_dim, q_data_type=s.q.dtype, **_fi_shape(s))
    return wrapper


def fi_serial(s: Setting, backend: str):
    prefill, decode, cache = _fi_prefill(s, backend, 0, 1), _fi_decode(s), s.pages[:2]
    return lambda: (prefill.run(s.q_prefill, cache), decode.run(s.q_decode, cache))


def fi_batched(s: Setting, backend: str = "fa3"):
    """One paged prefill call over the whole batch; fa3 is what FlashInfer takes on Hopper, fa2 what the paper had."""
    wrapper, cache = _fi_prefill(s, backend, 0, len(s.batch.q_lens)), s.pages[:2]
    return lambda: s.sides(wrapper.run(s.q, cache))


def fi_pod(s: Setting):
    import flashinfer

    wrapper, cache = flashinfer.PODWithPagedKVCacheWrapper(workspace(), "NHD"), s.pages[:2]
    indptr, indices, tail = s.page_arguments(1, len(s.batch.q_lens))
    wrapper.plan(indptr, indices, tail, head_dim=s.batch.head_dim, q_data_type=s.q.dtype, **_fi_shape(s))
    k, v = s.k[0, : s.context], s.v[0, : s.context]
    return lambda: wrapper.run(s.q_prefill, k, v, s.q_decode, cache, causal_p=True)


def fi_persistent(s: Setting):
    import flashinfer
    import torch

    wrapper, cache = flashinfer.BatchAttention("NHD", "cuda"), s.pages[:2]
    wrapper.float_workspace_buffer = workspace()  # its own is too small for some batches
    starts = torch.tensor([0, *s.batch.q_lens]).cumsum(0).int().cuda()
    indptr, indices, _ = s.page_arguments(0, len(s.batch.q_lens))
    shape = (s.batch.num_q_heads, s.batch.num_kv_heads, s.batch.head_dim, s.batch.head_dim, PAGE)
    kinds = {"q_data_type": s.q.dtype, "kv_data_type": s.q.dtype}
    wrapper.plan(starts, indptr, indices, s.lens, *shape, causal=True, **kinds)
    return lambda: s.sides(alone(wrapper.run(s.q, cache)))


# ---------------------------------------------------------------- ours


def ours(s: Setting, **choices):
    """Our Hopper kernel with the configuration that its cost model chooses."""
    from pod.kernels import sm90

    plan = sm90.plan(s.batch, **choices)
    return lambda: s.sides(plan.run(s.q, s.k, s.v))


def ours_serial(s: Setting):
    """The two halves of our kernel one after the other: what fusing alone brings is the ratio to `ours`."""
    halves = [ours(_side(s, side)) for side in (0, 1)]
    return lambda: (halves[0]()[0], halves[1]()[1])


def _side(s: Setting, side: int) -> Setting:
    """The prefill (0) or the decode (1) of a setting, on the same tensors."""
    part = copy(s)
    part.batch = s.batch.prefill if side == 0 else s.batch.decode
    if side == 0:
        part.q, part.k, part.v = s.q_prefill, s.k[:1], s.v[:1]
    else:
        part.q, part.k, part.v, part.chunk = s.q_decode, s.k[s.first :], s.v[s.first :], 0
    return part


def in_pages(s: Setting, page: int):
    """The batch in pages of `page` tokens in random order, its caches and its block table."""
    import torch

    batch = replace(s.batch, page_size=page)
    length = -(-s.k.shape[1] // page) * page
    order = torch.randperm(len(batch.kv_lens) * length // page, device=s.device)
    caches = []
    for cache in (s.k, s.v):
        padded = torch.nn.functional.pad(cache, (0, 0, 0, 0, 0, length - cache.shape[1]))
        paged = torch.empty_like(padded).view(-1, page, *cache.shape[2:])
        paged[order] = padded.view(paged.shape)
        caches.append(paged)
    return batch, caches, order.view(len(batch.kv_lens), -1).int()


def ours_paged(s: Setting, page: int, **choices):
    """`ours` in pages."""
    from pod.kernels import sm90

    batch, caches, table = in_pages(s, page)
    plan = sm90.plan(batch, **choices)
    return lambda: s.sides(plan.run(s.q, *caches, table))


def family(s: Setting, method: str, **choices):
    """One of the methods of csrc/sm80/hybrid.cu; `choices` as in pod.plan, which decides whatever they leave open."""
    import pod

    heads = (s.batch.num_q_heads, s.batch.num_kv_heads, s.batch.head_dim)
    choices |= {"dtype": s.q.dtype, "device": s.device}
    plan = pod.plan(s.batch.q_lens, s.batch.kv_lens, *heads, method=method, **choices)
    return lambda: s.sides(pod.hybrid_attention(s.q, s.k, s.v, plan))


def family_half(s: Setting, side: int):
    """The prefill (0) or the decode (1) of the family, alone on the GPU."""
    half = family(_side(s, side), "serial")
    return (lambda: (half()[0], None)) if side == 0 else (lambda: (None, half()[1]))


HALVES: dict[str, Callable] = {"prefill": partial(family_half, side=0), "decode": partial(family_half, side=1)}
FAMILY: dict[str, Callable] = {
    method: partial(family, method=method) for method in ("serial", "streams", "cta", "warp", "pod")
}
CONFIGURATIONS: dict[str, Callable] = {f"pod_{n}": partial(family, method="pod", ctas_per_sm=n) for n in (2, 4)}
TORCH_PEERS: dict[str, Callable] = {"fa2_serial": fa2_serial, "fa2_streams": fa2_streams, "cudnn_serial": cudnn_serial}
PEERS: dict[str, Callable] = {
    "fa3_serial": fa3_serial,
    "fa3_streams": fa3_streams,
    "fa3_varlen": fa3_varlen,
    "fi_fa3_serial": partial(fi_serial, backend="fa3"),
    "fi_fa2_serial": partial(fi_serial, backend="fa2"),
    "fi_batched": fi_batched,
    "fi_fa2_batched": partial(fi_batched, backend="fa2"),
    "fi_pod": fi_pod,
    "fi_persistent": fi_persistent,
}


def planned(batch: HybridBatch, ways: dict[str, Callable], gpu: GPU) -> list[Schedule]:
    """What the planner gives our kernels among these ways on a batch; other people's are none of its business."""
    return [schedule for make in ways.values() for schedule in _planned(batch, make, gpu)]


def _planned(batch: HybridBatch, make: Callable, gpu: GPU) -> list[Schedule]:
    made, choices = (make.func, make.keywords) if isinstance(make, partial) else (make, {})
    if made is ours:
        return [decide.hopper(batch, gpu.sms, **choices)]
    if made is ours_serial:
        return [decide.hopper(half, gpu.sms) for half in (batch.prefill, batch.decode)]
    if made is family:
        return [decide.hybrid(batch, gpu, gpu.sms, **choices)]
    if made is family_half:
        return [decide.hybrid((batch.prefill, batch.decode)[choices["side"]], gpu, gpu.sms, "serial")]
    return []


def on_batches(batch_of: Callable[[dict], HybridBatch], ways: dict[str, Callable], rounds: int, **times) -> tuple:
    """`measure` and `planned` of a page: each case is a batch, and all these ways take it."""

    def measure(case: dict) -> dict:
        return table_row(Setting(batch_of(case)), ways, rounds, **times)

    return measure, lambda case, gpu: planned(batch_of(case), ways, gpu)


def first_line(failure: Exception) -> str:
    """What a failure says, without the folders of the machine that it happened on."""
    line = (str(failure).splitlines() or [""])[0]
    return re.sub(r"/\S*/", "", line)[:160]


def ready(
    setting: Setting, makers: dict[str, Callable], limit: float = 2e-2
) -> tuple[dict[str, Callable], dict[str, str]]:
    """The calls that work and are right on this setting, and for every other one the reason why it is a hole."""
    import torch

    expected, calls, holes = setting.reference(), {}, {}
    for name, make in makers.items():
        try:
            call = make(setting)
            outputs = call()
            if setting.device == "cuda":
                torch.cuda.synchronize()
        except ModuleNotFoundError as missing:
            holes[name] = f"not installed ({missing.name})"
            continue
        except Exception as failure:  # a peer may fail in any way; the table says how
            holes[name] = f"{type(failure).__name__}: {first_line(failure)}"
            continue
        sides = [(out, want) for out, want in zip(outputs, expected, strict=True) if out is not None]
        wrong = max((error(setting, [out], [want]) for out, want in sides), default=0.0)
        if wrong < limit:
            calls[name] = call
        else:
            holes[name] = f"wrong result (relative error {wrong:.1e})"
    return calls, holes


def table_row(setting: Setting, makers: dict[str, Callable], rounds: int, ms: float = 2.0, least: int = 3) -> dict:
    """Milliseconds with p10 and p90 of every maker on one setting, the holes by name, and the batch's counts."""
    calls, holes = ready(setting, makers)
    times = timing.shuffled(calls, rounds, ms, least)
    prefill, decode = setting.batch.prefill, setting.batch.decode
    row = {"flops": prefill.flops if prefill else 0, "kv_bytes": decode.kv_bytes if decode else 0}
    for name in makers:
        row |= times[name].columns(name) if name in times else dict.fromkeys((name, f"{name}_p10", f"{name}_p90"), "")
    return row | {"holes": "; ".join(f"{name}: {why}" for name, why in holes.items())}
