"""Decode as the paper's FlashAttention-2 does it: tiles of 64 rows by four warps, two CTAs on an SM, keys cut by
FlashDecoding's rule. Torch's has 128 rows there, and its own version for pages, which has 64, wants FlashAttention-3.

It is our tile code with FlashAttention-2's grid, so a stand-in: what it shares with the paper's baseline is how many
CTAs there are, how many rows each computes for the few that are needed, and how many run at once.
"""

from functools import partial
from itertools import product

from pod.batch import HEAD_DIMS, HybridBatch
from pod.kernels import build, sm80
from pod.kernels.build import DTYPES, Family
from pod.kernels.launch import Kernel, Plan, fake
from pod.lab.measure.peers import Setting, fa2_prefill, on_two_streams
from pod.schedule import choose, prefill
from pod.schedule.work import Pack, Schedule, Shape, empty, sides

ROWS, KEYS, BLOCK = 64, 64, 128  # of a tile; of a step of ours; of a step of FlashAttention-2, which its rule counts
SHAPE = Shape(ROWS, KEYS, 16, 16, 4)
TILE = """template <class T, int kHeadDim> struct FlashShape : Shape<T, kHeadDim, 2> {
    using Whole = Shape<T, kHeadDim, 2>;
    static constexpr int kSlots = ring_slots(Whole::kRoom - 64 * kHeadDim * 2, 64 * kHeadDim * 2);
    using Prefill = Tile<T, kHeadDim, 4, 1, 64, kSlots>;
    template <class Binding> static constexpr int smem() { return Prefill::kSmem; }
};
template <class T, int kHeadDim> void launch_flash(const HybridArgs& a, Stream stream) {
    if (a.binding == Binding::prefill) launch_bound<FlashShape<T, kHeadDim>, OnlyPrefill, false, T>(a, stream);
}
"""


def _kinds() -> dict[str, tuple[str, str]]:
    lines = {}
    for dtype, head_dim in product(DTYPES, HEAD_DIMS):
        name = sm80.kind(dtype, head_dim)
        call = f"{{ launch_flash<{DTYPES[dtype]}, {head_dim}>(a, stream); }}"
        in_kernels = f"void launch_flash2_{name}(const HybridArgs& a, Stream stream) {call}"
        once = f"#ifndef POD_FLASH2\n#define POD_FLASH2\n{TILE}#endif\n"  # several kinds may share a build
        lines[name] = (f"POD_OPERATOR(flash2_{name}, 8, 32)", once + in_kernels)
    return lines


FAMILY = Family("flash2", bindings="bindings.cpp", kernels="sm80/hybrid.cu", fake=fake(8), kinds=_kinds())
KERNEL = Kernel(FAMILY, lambda s, trace: sm80.kind(s.batch.dtype, s.batch.head_dim), sm80.lay_out)


def as_rows(batch: HybridBatch) -> HybridBatch:
    """Decodes whose query heads of a KV head are rows of one tile: a chunk without a mask, as FlashAttention-2 sees
    them. A head that shares nothing comes twice, since one row alone would be a decode of ours."""
    rows = max(2, batch.group)
    lengths = [rows] * len(batch.kv_lens), [max(rows, n) for n in batch.kv_lens]
    return HybridBatch(*lengths, batch.num_kv_heads, batch.num_kv_heads, batch.head_dim, None, batch.dtype, False)


def decide(batch: HybridBatch, sms: int, causal: bool = False) -> Schedule:
    """A CTA a request and KV head, or a part of one."""
    chunks, _ = sides(batch)
    tiles = prefill.longest_first(prefill.tiles(chunks, Pack(ROWS, 1), False))
    splits = choose.vanilla_splits(len(tiles.end), -(-max(batch.kv_lens) // BLOCK), 2 * sms)
    return Schedule(batch, False, sms, "serial", SHAPE, prefill.cut(tiles, splits, KEYS), empty(), 2)


def decode_call(s: Setting):
    import torch

    decodes, device = s.batch.decode, torch.device(s.device)
    batch, n, d = as_rows(decodes), len(decodes.kv_lens), decodes.head_dim
    rows = s.q_decode.view(n, decodes.num_kv_heads, decodes.group, d).transpose(1, 2)
    q = rows.repeat_interleave(batch.q_lens[0] // decodes.group, 1).reshape(-1, decodes.num_kv_heads, d)
    plan = Plan(batch, "serial", device, KERNEL, partial(decide, batch, build.sm_count(device)))

    def call():
        out = plan.run(q, s.k[s.first :], s.v[s.first :], causal=False).view(n, -1, decodes.num_kv_heads, d)
        return out[:, : decodes.group].transpose(1, 2).reshape(n, decodes.num_q_heads, d)

    return call


def decode(s: Setting):
    call = decode_call(s)
    return lambda: (None, call())


def serial(s: Setting):
    """The prefill of torch's FlashAttention-2, whose tile is the paper's, then this decode."""
    first, second = fa2_prefill(s), decode_call(s)
    return lambda: (first()[0], second())


def streams(s: Setting):
    first, second = fa2_prefill(s), decode_call(s)
    return on_two_streams(lambda: first()[0], second)
