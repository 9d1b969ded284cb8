"""Attention for the engine: whoever computes it is told the batch once an iteration and is then called in every layer.

    backend.plan(host, device)              # the step of the iteration, on the host and on the device
    out = backend.run(q, k_cache, v_cache)  # q [tokens, q_heads, D], caches [blocks, block_size, kv_heads, D]
    backend.expect(host)                    # after a step of decodes, while the GPU works: the next one is likely so

    fixed = backend.fix(tokens, sequences, longest)  # for CUDA graphs: the same launches for all lengths up to these
    fixed.update(q_lens, kv_lens)                    # lengths on the device, once an iteration
    out = fixed.attend(q, k_cache, v_cache, table, out)

A work list takes a good part of a millisecond to make. Decodes foretell the next list but for who ends or arrives, so
it is made while the GPU is busy with the present one, and only thrown away when the guess was wrong.
"""

from __future__ import annotations

from pod.attention import METHODS
from pod.serving.step import Step

OURS = ("auto", *METHODS)
BACKENDS = ("sdpa", *OURS, "hopper-serial", "fa2", "fa3", "fa3-one", "flashinfer")
# The Hopper kernel once for each half, so that the ratio to `hopper` is what fusing brings; and stream-K for decodes.
IN_TURN = {"hopper-serial": ("hopper", "hopper"), "lean": ("auto", "lean")}
WORKSPACE = 512 << 20  # bytes that FlashInfer asks for
WHOLE_TILES, SHORT_KEYS = 53, 4096  # see FixedFlash._whole: 2/5 of an H200's SMs, and keys so few


def backend(name: str, q_heads: int, kv_heads: int, head_dim: int, block_size: int, dtype, device):
    """The backend of this name for one model. `auto` is our best kernel on a GPU and torch's own attention on a CPU."""
    import torch

    if name not in BACKENDS:
        raise ValueError(f"attention: got {name!r}, allowed are {', '.join(BACKENDS)}")
    if name == "sdpa" or (name == "auto" and torch.device(device).type == "cpu"):
        return Sdpa()
    check_cpu(name, dtype, device)
    sizes = (q_heads, kv_heads, head_dim, block_size, dtype, device)
    if name in ("fa3", "fa3-one"):
        return (FlashAttention3 if name == "fa3" else InOneCall)(*sizes[:-1])
    if name in IN_TURN:
        return InTurn(*(Ours(method, *sizes) for method in IN_TURN[name]))
    return Ours(name, *sizes) if name in OURS else FlashInfer("fa2" if name == "fa2" else "fa3", *sizes)


def check_cpu(name: str, dtype, device) -> None:
    """Refuse what no CPU can compute. Our kernels run there in an emulator, but only in the dtypes that they have."""
    import torch

    narrow = dtype in (torch.float16, torch.bfloat16)
    fits = name in ("auto", "sdpa") or narrow and name in OURS
    if torch.device(device).type == "cpu" and not fits:
        bits = str(dtype).removeprefix("torch.")
        raise ValueError(f"attention: got {name!r} in {bits} on a CPU, allowed there are auto and sdpa"
                         + (", and at toy sizes serial and pod" if narrow else ""))  # fmt: skip


class Backend:
    def plan(self, host: Step, device: Step) -> None:
        raise NotImplementedError

    def run(self, q, k_cache, v_cache):
        raise NotImplementedError

    def expect(self, host: Step) -> None:
        """Whoever plans nothing on the host has nothing to prepare."""

    def can_fix(self, device) -> bool:
        """Whether its launches may be the same for all lengths."""
        return False

    def fix(self, tokens: int, sequences: int, longest: int):
        raise NotImplementedError

    @property
    def alone(self) -> Backend | None:
        """Who is fixed for decodes alone, where a call for prompts would be launched for nothing."""
        return None


class Sdpa(Backend):
    """torch's own attention, sequence by sequence: slow and plain, on any device and in any dtype."""

    def plan(self, host: Step, device: Step) -> None:
        self.sequences = list(zip(host.q_lens.tolist(), host.kv_lens.tolist(), device.table.long(), strict=True))

    def run(self, q, k_cache, v_cache):
        import torch

        outs, block = [], k_cache.shape[1]
        for rows, (q_len, kv_len, table) in zip(q.split([s[0] for s in self.sequences]), self.sequences, strict=True):
            pages = table[: -(-kv_len // block)]
            k, v = (cache[pages].flatten(0, 1)[:kv_len].transpose(0, 1) for cache in (k_cache, v_cache))
            seen = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril(kv_len - q_len)
            out = torch.nn.functional.scaled_dot_product_attention(rows.transpose(0, 1)[None], k[None], v[None], seen,
                                                                   enable_gqa=True)  # fmt: skip
            outs.append(out[0].transpose(0, 1))
        return torch.cat(outs)


class Ours(Backend):
    """pod.hybrid_attention with a method of ours; one work list serves all layers."""

    def __init__(self, method: str, q_heads: int, kv_heads: int, head_dim: int, block_size: int, dtype, device):
        import pod

        self.method = method
        self.heads, self.options = (q_heads, kv_heads, head_dim), (block_size, dtype, device, method)
        pod.build(*self.heads, *self.options)
        self.lengths, self.made = None, None  # of the newest plan

    def plan(self, host: Step, device: Step) -> None:
        self.plan_lengths(host.q_lens, host.kv_lens, device.table)

    def expect(self, host: Step) -> None:
        self._make(host.q_lens.tolist(), (host.kv_lens + 1).tolist())

    def plan_lengths(self, q_lens, kv_lens, table) -> None:
        self.table = table
        self._make(q_lens.tolist(), kv_lens.tolist())

    def _make(self, *lengths: list[int]) -> None:
        from pod.attention import plan

        if lengths != self.lengths:
            self.lengths, self.made = lengths, plan(*lengths, *self.heads, *self.options)

    def run(self, q, k_cache, v_cache):
        from pod.attention import hybrid_attention

        return hybrid_attention(q, k_cache, v_cache, self.made, self.table)

    def can_fix(self, device) -> bool:
        from pod.kernels import sm90

        return self.method in ("auto", "hopper") and sm90.available(device)

    def fix(self, tokens: int, sequences: int, longest: int) -> Fixed:
        from pod.attention import workspace

        return Fixed(workspace(tokens, sequences, longest, *self.heads, *self.options[:-1]))


class Fixed:
    """A workspace plans on the GPU."""

    def __init__(self, work):
        self.work, self.update = work, work.update

    def attend(self, q, k_cache, v_cache, table, out):
        from pod.attention import hybrid_attention

        return hybrid_attention(q, k_cache, v_cache, self.work, table, out=out)


class Halves(Backend):
    """Prefill and decode in two calls, one after the other. `parts` holds (first row, last row, call)."""

    def plan(self, host: Step, device: Step) -> None:
        chunks, sequences = host.chunks, len(host.q_lens)
        rows = int(host.q_lens[:chunks].sum())
        self.parts = []
        if chunks:
            self.parts.append((0, rows, self.prefill(host, device, slice(0, chunks))))
        if chunks < sequences:
            self.parts.append((rows, len(host.tokens), self.decode(host, device, slice(chunks, sequences))))

    def run(self, q, k_cache, v_cache):
        import torch

        outs = [call(q[first:last], k_cache, v_cache) for first, last, call in self.parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs)


class InTurn(Halves):
    """Two methods of ours, one for the prefill and one for the decodes."""

    def __init__(self, prefills: Ours, decodes: Ours):
        self.prefills, self.decodes = prefills, decodes

    def prefill(self, host: Step, device: Step, which: slice):
        return self._half(self.prefills, host, device, which)

    def decode(self, host: Step, device: Step, which: slice):
        return self._half(self.decodes, host, device, which)

    def expect(self, host: Step) -> None:
        self.decodes.expect(host)

    def can_fix(self, device) -> bool:
        return self.prefills.can_fix(device) and self.decodes.can_fix(device)

    def fix(self, tokens: int, sequences: int, longest: int) -> FixedInTurn:
        sizes = (self.prefills.heads, self.prefills.options)
        halves = (self.prefills.fix(tokens, sequences, longest), self.decodes.fix(sequences, sequences, longest))
        return FixedInTurn(*halves, tokens, sequences, *sizes)

    @property
    def alone(self) -> Ours:
        return self.decodes

    def _half(self, half: Ours, host: Step, device: Step, which: slice):
        half.plan_lengths(host.q_lens[which], host.kv_lens[which], device.table[which])
        return half.run


def chunks_of(q_lens):
    """Which sequences are a prefill, on the device: up to the last that brings several tokens."""
    return (q_lens > 1).int().flip(0).cummax(0).values.flip(0)


class FixedInTurn:
    """Two workspaces. A work list counts rows from the first sequence that has any, so the decodes' rows, which begin
    where the chunks end, are gathered and put back: some 4 us a layer."""

    def __init__(self, prefills: Fixed, decodes: Fixed, tokens: int, sequences: int, heads, options):
        import torch

        (q_heads, _, head_dim), (_, dtype, device, _) = heads, options
        self.prefills, self.decodes, self.tokens = prefills, decodes, tokens
        made = torch.zeros(tokens + 2 * sequences, q_heads, head_dim, dtype=dtype, device=device)
        self.out, self.decoded = made.split((tokens + sequences, sequences))  # of no decode are the last rows
        self.order = torch.arange(sequences, device=device)

    def update(self, q_lens, kv_lens) -> None:
        chunks = q_lens * chunks_of(q_lens)
        self.prefills.update(chunks, kv_lens)
        self.decodes.update(q_lens - chunks, kv_lens)
        self.rows = chunks.sum() + self.order

    def attend(self, q, k_cache, v_cache, table, out):
        self.prefills.attend(q, k_cache, v_cache, table, self.out[: self.tokens])
        mine = q[self.rows.clamp(max=self.tokens - 1)]
        self.out.index_copy_(0, self.rows, self.decodes.attend(mine, k_cache, v_cache, table, self.decoded))
        return self.out[: self.tokens]


class FlashAttention3(Halves):
    """FlashAttention-3 as two calls: what an H200 offers without us."""

    def __init__(self, *sizes):
        import flash_attn_interface

        self.call, self.sizes = flash_attn_interface.flash_attn_with_kvcache, sizes

    def can_fix(self, device) -> bool:
        return True

    def fix(self, tokens: int, sequences: int, longest: int) -> FixedFlash:
        return FixedFlash((tokens, 1), self.sizes, longest)

    @property
    def alone(self) -> Backend | None:
        return ByOne(*self.sizes)

    def prefill(self, host: Step, device: Step, which: slice):
        import torch

        starts = torch.nn.functional.pad(device.q_lens[which].cumsum(0, dtype=torch.int32), (1, 0))
        lengths = {"cu_seqlens_q": starts, "max_seqlen_q": int(host.q_lens[which].max())}
        return self._bound(device, which, **lengths)

    def decode(self, host: Step, device: Step, which: slice):
        call = self._bound(device, which)
        return lambda q, k_cache, v_cache: call(q[:, None], k_cache, v_cache)[:, 0]

    def _bound(self, device: Step, which: slice, **more):
        lengths = {"cache_seqlens": device.kv_lens[which], "page_table": device.table[which], "causal": True, **more}

        def call(q, k_cache, v_cache):
            out = self.call(q, k_cache, v_cache, **lengths)
            return out[0] if isinstance(out, tuple) else out

        return call


class InOneCall(FlashAttention3):
    """FlashAttention-3 as one call for all sequences, as vLLM makes it."""

    def plan(self, host: Step, device: Step) -> None:
        self.parts = [(0, len(host.tokens), self.prefill(host, device, slice(None)))]

    def fix(self, tokens: int, sequences: int, longest: int) -> FixedFlash:
        return FixedFlash((tokens,), self.sizes, longest)


class ByOne(InOneCall):
    """No sequence brings more than one token, and the call knows it."""

    def fix(self, tokens: int, sequences: int, longest: int) -> FixedFlash:
        return FixedFlash((1,), self.sizes, longest)

    @property
    def alone(self) -> None:
        return None


class FixedFlash:
    """FlashAttention-3 for any lengths: calls over all sequences, of which each computes its own. `most` has a call's
    most tokens of a sequence. Their schedule, a small kernel a call, is made once for all layers, as vLLM does."""

    def __init__(self, most: tuple[int, ...], sizes, longest: int):
        import torch

        self.most, self.sizes, self.longest = most, sizes, longest
        self.kernels = torch.ops.flash_attn_3

    def update(self, q_lens, kv_lens) -> None:
        import torch

        starts = torch.nn.functional.pad(q_lens.cumsum(0, dtype=torch.int32), (1, 0))
        chunks = q_lens * chunks_of(q_lens)
        used = (None,) if len(self.most) == 1 else (chunks, q_lens - chunks)
        self.calls = [self._planned(most, {"cu_seqlens_q": starts, "seqused_q": mine}, kv_lens)
                      for most, mine in zip(self.most, used, strict=True)]  # fmt: skip

    def _planned(self, most: int, rows: dict, kv_lens) -> dict:
        q_heads, kv_heads, head_dim, block, dtype = self.sizes
        longest = -(-self.longest // block) * block  # as a call counts it, by the width of the table
        rows = rows | {"is_causal": True, "num_splits": int(self._whole(most, longest))}
        made = self.kernels.get_scheduler_metadata(len(kv_lens), most, longest, q_heads, kv_heads, head_dim, head_dim,
                                                   dtype, kv_lens, page_size=block, **rows)  # fmt: skip
        return {"max_seqlen_q": most, "seqused_k": kv_lens, "scheduler_metadata": made, **rows}

    def _whole(self, most: int, longest: int) -> bool:
        """Whether the call for prompts should leave all keys in one part (0: as it likes). Of ragged sequences it knows
        only the longest and cuts keys as if that one were alone; on 54 shapes whole keys were up to 1.44 times as fast
        and 2 % slower at most."""
        tiles = most * self.sizes[0] / 128
        prompts_alone = len(self.most) > 1 and most > 1
        return prompts_alone and (tiles >= WHOLE_TILES or longest <= SHORT_KEYS)

    def attend(self, q, k_cache, v_cache, table, out):
        for planned in self.calls:
            self.kernels.fwd(q, k_cache, v_cache, out=out, page_table=table, **planned)
        return out


class FlashInfer(Halves):
    """FlashInfer's paged prefill, with the kernels of FlashAttention-2 or -3, then its paged decode."""

    def __init__(self, kernels: str, q_heads: int, kv_heads: int, head_dim: int, block_size: int, dtype, device):
        import flashinfer
        import torch

        room = [torch.empty(WORKSPACE, dtype=torch.uint8, device=device) for _ in range(2)]
        self.prefills = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room[0], "NHD", backend=kernels)
        self.decodes = flashinfer.BatchDecodeWithPagedKVCacheWrapper(room[1], "NHD", use_tensor_cores=True)
        self.block, self.dtype = block_size, dtype
        self.heads = {"num_qo_heads": q_heads, "num_kv_heads": kv_heads, "page_size": block_size}
        self.head_dim = head_dim

    def prefill(self, host: Step, device: Step, which: slice):
        starts = _starts(host.q_lens[which])
        self.prefills.plan(starts, *self._pages(host, which), head_dim_qk=self.head_dim, causal=True,
                           q_data_type=self.dtype, **self.heads)  # fmt: skip
        return lambda q, k_cache, v_cache: self.prefills.run(q, (k_cache, v_cache))

    def decode(self, host: Step, device: Step, which: slice):
        self.decodes.plan(*self._pages(host, which), head_dim=self.head_dim, q_data_type=self.dtype, **self.heads)
        return lambda q, k_cache, v_cache: self.decodes.run(q, (k_cache, v_cache))

    def _pages(self, host: Step, which: slice):
        """First page of each sequence, all pages in a row, and how full the last page of each is."""
        import numpy as np
        import torch

        lens = host.kv_lens[which]
        used = -(-lens // self.block)
        pages = np.concatenate([row[:n] for row, n in zip(host.table[which], used, strict=True)])
        last = (lens - 1) % self.block + 1
        return _starts(used), *(torch.from_numpy(x.astype(np.int32)) for x in (pages, last))


def _starts(lengths):
    import numpy as np
    import torch

    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
