"""Plans that the GPU makes itself, from lengths in its own memory, into the same place again and again.

A launch is the same whatever the lengths, so one CUDA graph serves all later iterations: `update`, captured or not,
refills the lists in place. The kernel is csrc/sm90/plan.cu; pod/schedule, with the roles and the pack that a
workspace is made for, is its specification.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pod.batch import HybridBatch, shown
from pod.kernels import build, sm90
from pod.kernels.launch import LINE, Header, Placed, Plan, is_capturing
from pod.schedule import choose, decide, prefill
from pod.schedule.decode import MOST_PARTS, alike_for
from pod.schedule.work import PERSISTENT, Pack, Schedule, empty, sides

CTAS, THREADS = 32, 512
MOST_SEQUENCES, LONGEST = 4096, 1 << 24  # a key of the order in which tiles are drawn has 12 and 24 bits for them
MOST_SMEM, OTHER_TABLES = 227 << 10, 17 << 10


class Limits(NamedTuple):
    """What a plan on the device may be for, and what it weighs: `Limits` of csrc/sm90/plan.h."""

    tokens: int
    sequences: int
    kv_len: int
    sms: int
    num_kv_heads: int
    group: int
    causal: int
    decode_tokens: int
    alike: int
    pack_tokens: int
    pack_heads: int
    prefill_works: int
    decode_works: int
    prefill_counters: int
    decode_counters: int
    l2_keys: int
    pad: int
    least: int
    tile_ticks: int
    runs: int
    ctas: int
    threads: int
    window: int


class Room(NamedTuple):
    """What lists and partial results of any lengths within the limits may take."""

    runs: int  # of tiles of prefill
    pieces: int
    slots: int  # partial results of prefill
    groups: int


def room(batch: HybridBatch, sms: int, roles: choose.Roles, pack: Pack) -> Room:
    """`batch`: the fullest. No part is shorter than half of an SM's share (choose.prefill_lengths)."""
    tokens, sequences = sum(batch.q_lens), len(batch.q_lens)
    chunks = min(sequences, tokens // (roles.tokens + 1))
    passes = batch.num_kv_heads * -(-batch.group // pack.heads)
    tiles = (tokens // pack.tokens + chunks) * passes
    borders = batch.causal + (batch.window is not None)  # of a tile's keys that come to another block
    runs = chunks + borders * (tokens // PERSISTENT.prefill_keys + chunks)
    return Room(max(runs, 1), tiles + 3 * sms, min(5 * sms, tiles * MOST_PARTS), min(3 * sms, tiles))


def limits(batch: HybridBatch, sms: int, roles: choose.Roles, pack: Pack) -> Limits:
    tokens, sequences, longest = sum(batch.q_lens), len(batch.q_lens), max(batch.kv_lens)
    heads, ticks, space = batch.num_kv_heads, choose.ticks(batch.head_dim, sms), room(batch, sms, roles, pack)
    return Limits(
        tokens, sequences, longest, sms, heads, batch.group, int(batch.causal),
        roles.tokens, alike_for(heads, sms), *pack,
        prefill_works=space.pieces, decode_works=sequences * heads + sms if roles.tokens else 0,
        prefill_counters=sm90.counters_for(MOST_PARTS, "prefill"), decode_counters=sm90.counters_for(sms, "decode"),
        l2_keys=prefill.L2_SHARE // (batch.head_dim * 4), pad=choose.pad(choose.width(batch)), least=choose.MIN_TILES,
        tile_ticks=ticks.tile, runs=space.runs, ctas=CTAS, threads=THREADS,
        window=batch.window or 0,
    )  # fmt: skip


def ints(limits: Limits) -> int:
    """Of the lists."""
    return 4 + 12 * (limits.prefill_works + limits.sms + limits.decode_works) + 2 * limits.sms + 1


def header(batch: HybridBatch, limits: Limits, roles: choose.Roles, pack: Pack) -> Header:
    space = room(batch, limits.sms, roles, pack)
    return Header(
        method=decide.METHODS.index("cta"), sms=limits.sms, causal=limits.causal,
        prefill_works=limits.prefill_works + limits.sms, decode_works=limits.decode_works, pieces=2 * limits.sms,
        prefill_groups=space.groups * limits.prefill_counters, decode_groups=limits.sms * limits.decode_counters,
        prefill_slots=space.slots, decode_slots=2 * limits.sms, prefill_rows=PERSISTENT.prefill_rows,
        pack_tokens=pack.tokens, pack_heads=pack.heads, decode_rows=roles.rows, window=limits.window,
        trace_rows=limits.sms,
    )  # fmt: skip


def fullest(tokens: int, sequences: int, kv_len: int, **shape) -> HybridBatch:
    """A batch of these limits: as few sequences as can bring all tokens, and others that bring none."""
    if min(tokens, sequences, kv_len) < 1 or sequences > MOST_SEQUENCES or kv_len > LONGEST:
        raise ValueError(f"workspace: got {tokens} tokens of {sequences} sequences of up to {kv_len}, allowed are up "
                         f"to {MOST_SEQUENCES} sequences of up to {LONGEST}")  # fmt: skip
    if tokens > sequences * kv_len:
        raise ValueError(f"tokens: got {tokens}, allowed are up to sequences x kv_len = {sequences * kv_len}")
    q_lens = np.clip(tokens - kv_len * np.arange(sequences), 0, kv_len)
    kv_lens = q_lens.copy()
    kv_lens[0] = kv_len
    return HybridBatch(q_lens.tolist(), kv_lens.tolist(), **shape)


class Workspace(Plan):
    """A plan whose lengths may change: see pod.workspace.

    Like any plan it is not kept alive by a CUDA graph: keep it as long as the graph. Updates and runs follow each
    other, on whatever streams they are; what is captured, the graph orders.
    """

    def __init__(self, batch: HybridBatch, device, roles: choose.Roles, pack: Pack, sms: int):
        """`batch`: the fullest."""
        self.roles, self.pack, self.limits = roles, pack, limits(batch, sms, roles, pack)
        check_room(self.limits)
        self._make = build.operator(sm90.PLANNER, "", device)
        super().__init__(batch, "hopper", device, sm90.kernel_for(batch), self._no_work)
        self.allowed.debug = False  # which pages are used is known on the device alone
        self.operator()

    def __repr__(self) -> str:
        most = self.limits
        return f"Workspace({most.tokens} tokens, {most.sequences} sequences of {most.kv_len}, {self.device})"

    def _no_work(self, causal: bool) -> Schedule:
        shape = replace(PERSISTENT, decode_rows=self.roles.rows)
        return Schedule(self.batch, causal, self.limits.sms, "hopper", shape, empty(), empty(), pack=self.pack)

    def placed(self, causal: bool | None = None) -> Placed:
        if causal not in (None, self.batch.causal):
            raise ValueError(f"causal: got {causal}, allowed by the workspace is {self.batch.causal}")
        if not self._placed:
            self._placed[self.batch.causal] = self._place()
        return self._placed[self.batch.causal]

    def _place(self) -> Placed:
        """Lists without any work; zeroed counters; room for partial results."""
        import torch

        made = header(self.batch, self.limits, self.roles, self.pack)
        counters, floats = sm90.memory(made, self.batch.head_dim)
        sizes = (-(-ints(self.limits) // LINE) * LINE, counters)
        lists = torch.zeros(sum(sizes), dtype=torch.int32, device=self.device)
        partials = torch.empty(max(1, floats), dtype=torch.float32, device=self.device)
        torch.cuda.synchronize(self.device)  # any stream may use them, a captured one as well
        return Placed(self._no_work(self.batch.causal), list(made), *lists.split(sizes), partials)

    def update(self, q_lens, kv_lens) -> None:
        """Plan for these lengths, on the current stream: what runs after it has them, what runs before it not.

        Tensors on the GPU are read by the GPU when its turn comes, and nobody waits; what is over the limits is cut off
        there. Anything else is checked, copied up, and cannot be captured.
        """
        lens = self._lengths(q_lens, kv_lens)
        work = self.placed()
        with work.turn:
            work.follow()
            self._make(*lens, work.lists, self.limits)

    def _lengths(self, *lens) -> tuple:
        import torch

        if not all(isinstance(x, torch.Tensor) and x.device == self.device for x in lens):
            return self._upload(*(x.tolist() if hasattr(x, "tolist") else x for x in lens))
        for name, x in zip(("q_lens", "kv_lens"), lens, strict=True):
            if x.dtype not in (torch.int32, torch.int64) or x.dim() != 1 or not 0 < len(x) <= self.limits.sequences:
                raise ValueError(f"{name}: got {x.dtype} of shape {tuple(x.shape)}, allowed are int32 and int64 of up "
                                 f"to {self.limits.sequences} sequences")  # fmt: skip
        if len(lens[0]) != len(lens[1]):
            raise ValueError(f"kv_lens: got {len(lens[1])} lengths, allowed is {len(lens[0])}, one a q_len")
        most = torch.iinfo(torch.int32).max  # 2**32 + 5 is over every limit, and not 5
        return tuple((x.clamp(-most, most) if x.dtype == torch.int64 else x).to(torch.int32).contiguous() for x in lens)

    def _upload(self, q_lens, kv_lens) -> tuple:
        import torch

        batch, most = replace(self.batch, q_lens=q_lens, kv_lens=kv_lens), self.limits
        (new, seen), sequences = batch.lens, len(batch.q_lens)
        got = (int(new.sum()), sequences, int(seen.max()))
        if any(n > limit for n, limit in zip(got, most, strict=False)):
            raise ValueError(f"q_lens: got {got[0]} tokens of {got[1]} sequences of up to {got[2]}, allowed by the "
                             f"workspace are {most.tokens}, {most.sequences} and {most.kv_len}")  # fmt: skip
        if is_capturing(torch.cuda.current_stream(self.device)):
            raise RuntimeError("update: got lengths on the host in a stream that captures a CUDA graph, allowed are "
                               f"tensors on {self.device}")  # fmt: skip
        lens = torch.from_numpy(np.array(batch.lens, np.int32)).pin_memory()
        return lens.to(self.device, non_blocking=True).unbind()


def check_room(limits: Limits) -> None:
    bytes_ = 16 * limits.runs + 24 * (limits.sequences + 1) + OTHER_TABLES  # table_bytes of csrc/sm90/plan.cu
    if bytes_ > MOST_SMEM:
        raise ValueError(f"workspace: got {limits.sequences} sequences and {limits.tokens} tokens, allowed are fewer: "
                         "their plan would not fit into shared memory")  # fmt: skip
    tiles = limits.sequences * (limits.kv_len // PERSISTENT.decode_keys + limits.pad + 1) * limits.num_kv_heads
    if max(tiles, limits.sequences * limits.tokens) >= 1 << 31:  # whatever lengths come, sums of them fit 32 bits
        raise ValueError(f"workspace: got {limits.tokens} tokens of {limits.sequences} sequences of up to "
                         f"{limits.kv_len}, allowed are fewer: sums of lengths would not fit 32 bits")  # fmt: skip


def make_workspace(batch: HybridBatch, device, draft: int, sm_margin: int) -> Workspace:
    """`batch`: the fullest."""
    sm90.check_device(device)
    sms = build.sm_count(device)
    if isinstance(sm_margin, bool) or not isinstance(sm_margin, int) or not 0 <= sm_margin < sms:
        raise ValueError(f"sm_margin: got {shown(sm_margin)}, allowed are 0 to {sms - 1}")
    return Workspace(batch, device, roles_for(batch.group, draft), pack_for(batch), sms - sm_margin)


def roles_for(group: int, draft: int) -> choose.Roles:
    """The fewest rows that hold `draft` tokens of a sequence, or else as many tokens as can be decode."""
    possible = choose.possible_roles(group)
    return next((r for r in possible if r.tokens >= draft), max(possible, key=lambda r: r.tokens))


def pack_for(batch: HybridBatch) -> Pack:
    """The best for a chunk as long as can be."""
    chunk, _ = sides(replace(batch, q_lens=[max(batch.q_lens)], kv_lens=[max(batch.kv_lens)]), tokens=0)
    return choose.prefill_pack(chunk, PERSISTENT.prefill_rows)
