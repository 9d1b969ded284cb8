"""Attention of any batch in pages, ours and other people's: rows of any length, where peers.py has one chunk.

A maker takes a `Ragged` and returns a call that gives the outputs of consecutive rows. All makers see one cache, one
table and one order of the sequences: most new tokens first, so that each of two calls has its rows side by side.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

from pod.batch import HybridBatch
from pod.lab.measure import timing
from pod.lab.measure.peers import alone, first_line, workspace

MARGIN = 1.5  # of our error over torch's, as pod.lab.measure.check_kernels has it
LIMIT = 2e-2  # of any row between two kernels, relative
SHORT = 16  # new tokens that an engine may still count among the decodes


@dataclass
class Ragged:
    """A batch on the GPU. `room`: elements of the cache, which all batches share; as many as this one needs if None."""

    batch: HybridBatch
    room: int | None = None
    device: str = "cuda"
    seed: int = 0
    scale: float = 1.0  # what 1 in caches of 8 bits stands for

    def __post_init__(self):
        import torch

        b = self.batch
        if b.page_size is None or list(b.q_lens) != sorted(b.q_lens, reverse=True):
            raise ValueError(f"batch: got page_size {b.page_size} and q_lens {b.q_lens}, allowed are pages, and most "
                             "new tokens first")  # fmt: skip
        page = b.page_size * b.num_kv_heads * b.head_dim
        pages = (self.room or sum(b.pages) * page) // page
        random = torch.Generator(self.device).manual_seed(self.seed)
        given = {"device": self.device, "generator": random}
        q_shape = (sum(b.q_lens), b.num_q_heads, b.head_dim)
        self.q = torch.randn(q_shape, dtype=getattr(torch, b.dtype), **given)
        shape = (pages, b.page_size, b.num_kv_heads, b.head_dim)
        room = self.room or pages * page
        self.k, self.v = (x[: pages * page].view(shape) for x in _caches(room, b.dtype, self.device))
        order = torch.randperm(pages, dtype=torch.int32, **given)[: sum(b.pages)]
        self.table = torch.nn.utils.rnn.pad_sequence(order.split(list(b.pages)), batch_first=True)
        self.lens = torch.tensor(b.kv_lens, dtype=torch.int32, device=self.device)
        self.starts = [0]
        for q_len in b.q_lens:
            self.starts.append(self.starts[-1] + q_len)

    def descales(self, sequences: int) -> dict:
        """What FlashAttention-3 is told about queries, keys and values of 8 bits."""
        import torch

        if self.q.element_size() > 1:
            return {}
        shape = (sequences, self.batch.num_kv_heads)
        queries, caches = (torch.full(shape, scale, device=self.device) for scale in (1.0, self.scale))
        return {"q_descale": queries, "k_descale": caches, "v_descale": caches}

    def longer(self, than: int) -> int:
        """Sequences with more new tokens than that: they come first."""
        return sum(q_len > than for q_len in self.batch.q_lens)

    @cached_property
    def sampled(self) -> list[tuple[int, int]]:
        """(sequence, token) of the first, a middle and the last sequence, their first and last token."""
        last = len(self.batch.q_lens) - 1
        return sorted({(i, j) for i in (0, last // 2, last) for j in (0, self.batch.q_lens[i] - 1)})

    def truth(self):
        """The rows that are looked at, their outputs in float64 and those of torch's own attention."""
        import torch

        rows = [self.starts[i] + j for i, j in self.sampled]
        outs = [self._row(row, i, j) for row, (i, j) in zip(rows, self.sampled, strict=True)]
        return rows, *(torch.stack(x) for x in zip(*outs, strict=True))

    def _row(self, row: int, i: int, j: int):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        b = self.batch
        visible = b.kv_lens[i] - b.q_lens[i] + j + 1
        pages = self.table[i, : -(-visible // b.page_size)].long()
        k, v = (x[pages].flatten(0, 1)[:visible].transpose(0, 1) for x in (self.k, self.v))
        q = self.q[row].view(b.num_kv_heads, b.group, b.head_dim)
        weights = torch.softmax(q.double() @ k.double().transpose(1, 2) * b.head_dim**-0.5, -1)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # cuDNN would compile for each new shape
            peer = sdpa(q[None], k[None], v[None])  # the heads of a group are rows that see the same
        return (weights @ v.double()).flatten(0, 1), peer[0].flatten(0, 1)


@lru_cache(maxsize=1)
def _caches(room: int, dtype: str, device: str):
    """Random numbers, of which every batch takes a view: to fill gigabytes for each would take longer than to time."""
    import torch

    random = torch.Generator(device).manual_seed(1)
    return tuple(torch.empty(room, dtype=getattr(torch, dtype), device=device).normal_(generator=random) for _ in "kv")


# ---------------------------------------------------------------- ours
def ours(s: Ragged, **choices):
    """What pod.plan chooses when nobody names anything."""
    import pod

    plan = pod.plan(s.batch, device=s.device, **choices)
    return lambda: [pod.hybrid_attention(s.q, s.k, s.v, plan, s.table)]


def ours_serial(s: Ragged):
    """Ours in two calls, where the planner draws the line: what it computes as prefill, then what as decode. How much
    longer that takes than `ours` is what fusing brings."""
    from pod.schedule import choose

    border, count = s.longer(choose.roles(s.batch).tokens), len(s.batch.q_lens)
    if border in (0, count):
        raise Same("all is of one kind")
    calls = [_ours_alone(s, *part) for part in ((0, border), (border, count))]
    return lambda: [call() for call in calls]


def _ours_alone(s: Ragged, first: int, last: int):
    import pod

    b, rows = s.batch, slice(s.starts[first], s.starts[last])
    plan = pod.plan(replace(b, q_lens=b.q_lens[first:last], kv_lens=b.kv_lens[first:last]), device=s.device)
    return lambda: pod.hybrid_attention(s.q[rows], s.k, s.v, plan, s.table[first:last])


# ---------------------------------------------------------------- FlashAttention-3
def fa3(s: Ragged, first: int, last: int, varlen: bool = False, ahead: bool = False, **options):
    """One call over the sequences [first, last): a dense one where all bring as many tokens, unless it must be varlen.
    ahead: what it launches a small kernel for in every call is made beforehand, as vLLM does once an iteration."""
    import flash_attn_interface
    import torch

    b = s.batch
    q_lens, q, lens = b.q_lens[first:last], s.q[s.starts[first] : s.starts[last]], s.lens[first:last]
    table = s.table[first:last, : max(b.pages[first:last])].contiguous()
    given = {"causal": True, **options}
    if varlen or len(set(q_lens)) > 1:
        starts = torch.tensor(s.starts[first : last + 1], dtype=torch.int32, device=s.device)
        given |= {"cu_seqlens_q": starts - starts[0]}
    else:
        q = q.view(len(q_lens), q_lens[0], *q.shape[1:])
    if ahead:
        given |= {"scheduler_metadata": _metadata(s, q_lens, lens, table, given)}
    if "cu_seqlens_q" in given:
        given |= {"max_seqlen_q": max(q_lens)}
    given |= s.descales(len(q_lens))

    def call():
        out = flash_attn_interface.flash_attn_with_kvcache(q, s.k, s.v, cache_seqlens=lens, page_table=table, **given)
        return alone(out).view(-1, b.num_q_heads, b.head_dim)

    return call


def _metadata(s: Ragged, q_lens, lens, table, given: dict):
    from flash_attn_interface import get_scheduler_metadata

    b = s.batch
    longest = table.shape[1] * b.page_size  # as the call counts it
    return get_scheduler_metadata(len(q_lens), max(q_lens), longest, b.num_q_heads, b.num_kv_heads, b.head_dim, lens,
                                  qkv_dtype=s.q.dtype, page_size=b.page_size, **given)  # fmt: skip


def fa3_two(s: Ragged, most: int = 1, whole: bool = False, **options):
    """One call for prompts, then one for the decodes: the sequences with at most `most` new tokens. whole: the keys of
    prompts stay in one part. Of ragged prompts it knows only the longest, and cuts as if that one were alone."""
    border, count = s.longer(most), len(s.batch.q_lens)
    if most > 1 and border == s.longer(1):
        raise Same(f"no sequence brings 2 to {most} tokens")
    if whole and border == 0:
        raise Same("no sequence is a prompt")
    prompts = options | {"num_splits": 1} if whole else options
    parts = ((0, border, prompts), (border, count, options))
    calls = [fa3(s, first, last, **chosen) for first, last, chosen in parts if first < last]
    return lambda: [call() for call in calls]


def fa3_one(s: Ragged, **options):
    """One call over all, as vLLM makes it."""
    call = fa3(s, 0, len(s.batch.q_lens), varlen=True, **options)
    return lambda: [call()]


class Same(ValueError):
    """A way that is another one on this batch."""


FA3: dict[str, Callable] = {
    "fa3_two": fa3_two,
    "fa3_two_ahead": partial(fa3_two, ahead=True),
    "fa3_short": partial(fa3_two, most=SHORT),
    "fa3_short_ahead": partial(fa3_two, most=SHORT, ahead=True),
    "fa3_one": fa3_one,
    "fa3_one_ahead": partial(fa3_one, ahead=True),
    "fa3_two_whole": partial(fa3_two, ahead=True, whole=True),
    "fa3_short_whole": partial(fa3_two, most=SHORT, ahead=True, whole=True),
    "fa3_one_whole": partial(fa3_one, ahead=True, num_splits=1),
}


# ---------------------------------------------------------------- FlashAttention-3, each call on SMs of its own
def fa3_green(s: Ragged, sms: int, **options):
    """The two calls at once, the prompts on `sms` SMs and the others on the rest, which the driver keeps apart."""
    import torch

    from pod.lab.measure import green

    border, count = _border(s)
    streams = green.split(sms)
    everywhere = sum(got for _, got in streams)
    sides = [(stream, fa3(s, *part, sm_margin=everywhere - got, **options))
             for (stream, got), part in zip(streams, ((0, border), (border, count)), strict=True)]  # fmt: skip

    def call():
        here, outs = torch.cuda.current_stream(), []
        for stream, side in sides:
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                outs.append(side())
        for stream, _ in sides:
            here.wait_stream(stream)
        return outs

    return call


def _border(s: Ragged) -> tuple[int, int]:
    """Sequences that bring a prompt, and all of them."""
    border, count = s.longer(SHORT), len(s.batch.q_lens)
    if border in (0, count):
        raise ValueError("batch: got one kind of work, allowed are prompts beside decodes or drafts")
    return border, count


# ---------------------------------------------------------------- FlashInfer
def _pages(s: Ragged, first: int, last: int):
    """Where the pages of sequences [first, last) begin, which they are, and how full the last one of each is."""
    import torch

    b = s.batch
    pages = b.pages[first:last]
    starts = torch.tensor([0, *pages]).cumsum(0).int().to(s.device)
    used = torch.cat([row[:n] for row, n in zip(s.table[first:last], pages, strict=True)])
    return starts, used, (s.lens[first:last] - 1) % b.page_size + 1


def _shape(s: Ragged) -> dict:
    b = s.batch
    return {"num_qo_heads": b.num_q_heads, "num_kv_heads": b.num_kv_heads, "head_dim": b.head_dim,
            "page_size": b.page_size, "q_data_type": s.q.dtype}  # fmt: skip


def first_decode(s: Ragged) -> int:
    """The first sequence that decodes; FlashInfer's decodes bring one token."""
    border, count = _border(s)
    if s.longer(1) > border:
        raise ValueError("q_lens: got drafts beside a prompt, allowed are decodes of 1 token")
    return border


def fi_pod(s: Ragged):
    """FlashInfer's POD-Attention for several prompts."""
    import flashinfer
    import torch

    border, count = first_decode(s), len(s.batch.q_lens)
    wrapper, plans = flashinfer.BatchPODWithPagedKVCacheWrapper(workspace(), "NHD"), []
    for first, last in ((0, border), (border, count)):
        starts = torch.tensor(s.starts[first : last + 1], dtype=torch.int32, device=s.device)
        plans += [starts - starts[0], *_pages(s, first, last)]
    wrapper.plan(*plans, **_shape(s))
    q, cache = s.q.split([s.starts[border], len(s.q) - s.starts[border]]), (s.k, s.v)
    return lambda: list(wrapper.run(q[0], cache, q[1], cache, causal_p=True))


def fa3_then_fi(s: Ragged):
    """FlashAttention-3 for the prompts, FlashInfer's decode on tensor cores for the rest."""
    border = first_decode(s)
    calls = [fa3(s, 0, border, ahead=True), fi_decodes(s, border)]
    return lambda: [call() for call in calls]


def fi_decodes(s: Ragged, first: int = 0, caches=None, **scales):
    """FlashInfer's decode on tensor cores of the sequences from `first` on, with other caches if there are some."""
    import flashinfer

    q, caches = s.q[s.starts[first] :], caches or (s.k, s.v)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD", use_tensor_cores=True)
    wrapper.plan(*_pages(s, first, len(s.batch.q_lens)), **_shape(s), **_kind(s, caches))
    return lambda: wrapper.run(q, caches, **scales)


def fi_two(s: Ragged, caches=None, **scales):
    """FlashInfer's prefill, then its decode."""
    border = first_decode(s)
    calls = [fi_prompts(s, border, caches, **scales), fi_decodes(s, border, caches, **scales)]
    return lambda: [call() for call in calls]


def fi_prompts(s: Ragged, border: int, caches=None, **scales):
    """FlashInfer's prefill of the sequences before `border`. Of its prefills only FlashAttention-2's takes caches of 8
    bits beside queries of 16."""
    import flashinfer
    import torch

    caches = caches or (s.k, s.v)
    q, starts = s.q[: s.starts[border]], torch.tensor(s.starts[: border + 1], dtype=torch.int32, device=s.device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend="fa2")
    shape = _shape(s)
    shape["head_dim_qk"] = shape.pop("head_dim")
    wrapper.plan(starts, *_pages(s, 0, border), causal=True, **shape, **_kind(s, caches))
    return lambda: wrapper.run(q, caches, **scales)


def _kind(s: Ragged, caches) -> dict:
    return {} if caches[0].dtype == s.q.dtype else {"kv_data_type": caches[0].dtype}


def fa3_then_xqa(s: Ragged):
    """FlashAttention-3 for the prompts, and what FlashInfer takes for decodes on compute capability 9.0."""
    border = first_decode(s)
    calls = [fa3(s, 0, border, ahead=True), xqa(s, border)]
    return lambda: [call() for call in calls]


def xqa(s: Ragged, first: int = 0, caches=None, scale: float = 1.0):
    """FlashInfer's decode of TensorRT-LLM's making, of the sequences from `first` on. scale: what 1 in a cache is."""
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    b, q, caches = s.batch, s.q[s.starts[first] :], caches or (s.k, s.v)
    table = s.table[first:, : max(b.pages[first:])].contiguous()
    room, lens = workspace().zero_(), s.lens[first:]
    scales = {"bmm1_scale": scale * b.head_dim**-0.5, "bmm2_scale": scale}
    return lambda: xqa_batch_decode_with_kv_cache(q, caches, room, table, lens, max(b.kv_lens[first:]), **scales)


# ---------------------------------------------------------------- a row of a table
def ready(s: Ragged, makers: dict[str, Callable], margin: float = MARGIN,
          limit: float = LIMIT) -> tuple[dict[str, Callable], dict[str, str], dict[str, float]]:  # fmt: skip
    """The calls that are right on this batch, why the others are holes, and the errors over torch's. Right: in the rows
    that are looked at near the truth, in all others near the first maker that is."""
    import torch

    truth, calls, holes, errors, first = s.truth(), {}, {}, {}, None
    for name, make in makers.items():
        try:
            call = make(s)
            call()
            out = torch.cat(call())  # the second one finds what the first has left behind
            error, apart = _share(out, *truth), 0.0 if first is None else _apart(out, first)
        except Same as same:
            holes[name] = f"the same: {same}"
            continue
        except ModuleNotFoundError as missing:
            holes[name] = f"not installed ({missing.name})"
            continue
        except Exception as failure:  # a peer may fail in any way, and ours refuse; the table says how
            holes[name] = f"refused: {type(failure).__name__}: {first_line(failure)}"
            continue
        errors[name] = error
        if error <= margin and apart <= limit:
            calls[name] = call
            first = out if first is None else first
        else:
            holes[name] = f"wrong result (error {error:.2f} times torch's, a row {apart:.1e} apart)"
    return calls, holes, errors


def _share(out, rows, want, peer) -> float:
    """Our error over torch's in the rows that are looked at, each by its own size: rows that see much are small."""
    import torch

    apart = ((x - want).norm(dim=-1) / want.norm(dim=-1) for x in (out[rows], peer))
    error, theirs = (float(x.square().mean().sqrt()) for x in apart)
    return error / max(theirs, torch.finfo(out.dtype).eps / 8)  # of a single visible token the output is exact


def _apart(out, other) -> float:
    """Largest relative distance of a row of a head; inf where a number is none."""
    apart = float(((out - other).float().norm(dim=-1) / other.float().norm(dim=-1)).max())
    return math.inf if math.isnan(apart) else apart


def table_row(s: Ragged, makers: dict[str, Callable], rounds: int, ms: float = 2.0, least: int = 3) -> dict:
    """Milliseconds with p10 and p90 of every maker on one batch, our error over torch's, and the holes by name."""
    calls, holes, errors = ready(s, makers)
    times = timing.shuffled(calls, rounds, ms, least) if calls else {}
    row = {"error": round(errors["ours"], 3) if "ours" in errors else ""}
    for name in makers:
        row |= times[name].columns(name) if name in times else dict.fromkeys((name, f"{name}_p10", f"{name}_p90"), "")
    return row | {"holes": "; ".join(f"{name}: {why}" for name, why in holes.items())}
