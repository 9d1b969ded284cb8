"""What was built into the Hopper kernel, or tried, for fewer joules: each as a change to the sources as they are."""

from dataclasses import dataclass

from pod.lab.mutate import Mistake

PREFILL, DECODE, PTX = "csrc/sm90/prefill.cuh", "csrc/sm90/decode.cuh", "csrc/include/ptx90.cuh"


@dataclass(frozen=True)
class Rung:
    """name: as a column. words: what the picture calls it. kept: it is in the kernel, and the change takes it out."""

    name: str
    words: str
    kept: bool
    changes: tuple[Mistake, ...]


def _one(name: str, words: str, kept: bool, file: str, old: str, new: str) -> Rung:
    return Rung(name, words, kept, (Mistake(name, file, old, new),))


# Both products ask for 64 of the 128 columns at a time, so that decode's come in between.
HALVES = Mistake(
    "halves", PREFILL,
    "for (int k = 0; k < kKeys / 16; k++) ptx::wgmma_rs<T>(o, p + 4 * k, v + ((k * kStep) >> 4));",
    """for (int half = 0; half < 2; half++)
#pragma unroll
        for (int k = 0; k < kKeys / 16; k++) {
            const uint64_t at = v + ((k * kStep + half * Smem<D, kPage>::kPanelStep) >> 4);
            if constexpr (D == 128) ptx::wgmma_rs<T>(*reinterpret_cast<float(*)[32]>(o + 32 * half), p + 4 * k, at);
            else if (half == 0) ptx::wgmma_rs<T>(o, p + 4 * k, at);
        }""",
)  # fmt: skip
# Decode's loads with the policy that createpolicy makes of evict_first.
FIRST_OUT = Mistake(
    "first_out", PTX,
    "// Bring the line to L2; nobody waits for it.",
    """DEV void tma_load_once(uint32_t dst, const CUtensorMap* m, uint32_t bar, int c1, int c2, int c3, int c4 AT) {
    GPU(asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(dst), "l"(reinterpret_cast<uint64_t>(m)), "r"(bar),
        "r"(0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(0x12F0000000000000ull) : "memory");)
    CPU(emulate::tma_load(dst, m, bar, {0, c1, c2, c3, c4}, at);)
}
// Bring the line to L2; nobody waits for it.""",
)  # fmt: skip
USE_FIRST_OUT = Mistake(
    "first_out", DECODE,
    "ptx::tma_load_5d(dst + i * kPage * S::kRow, map, filled, first, panel, head, page);",
    "ptx::tma_load_once(dst + i * kPage * S::kRow, map, filled, first, panel, head, page);",
)  # fmt: skip

# Two SMs share prefill's keys and values: a CTA of a pair copies half of each block into both, when both have room, and
# of two neighbouring tiles, which read the same blocks, each computes one. The first of the pair draws for both.
HYBRID, RING = "csrc/sm90/hybrid.cu", "csrc/include/ring.cuh"
PAIRED = (
    Mistake(
        "paired", PTX,
        "// Bring the line to L2; nobody waits for it.",
        """DEV uint32_t cluster_rank() {
    GPU(uint32_t r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r;)
    CPU(return 0;)
}
DEV void cluster_meet() {
    GPU(asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");)
}
// One arrival at the barrier of that CTA.
DEV void mbar_arrive_in([[maybe_unused]] uint32_t bar, [[maybe_unused]] uint32_t cta) {
    GPU(asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                     "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }"
                     ::"r"(bar), "r"(cta) : "memory");)
}
// A number for that CTA, and four bytes at its barrier.
DEV void tell([[maybe_unused]] uint32_t to, [[maybe_unused]] int value, [[maybe_unused]] uint32_t bar,
              [[maybe_unused]] uint32_t cta) {
    GPU(asm volatile("{ .reg .b32 there, heard; mapa.shared::cluster.u32 there, %0, %3; "
                     "mapa.shared::cluster.u32 heard, %2, %3; "
                     "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %1, [heard]; }"
                     ::"r"(to), "r"(value), "r"(bar), "r"(cta) : "memory");)
}
// A box into the same place of both CTAs, each of which hears of it at its own barrier.
DEV void tma_load_both(uint32_t dst, const CUtensorMap* m, uint32_t bar, int c1, int c2, int c3, int c4 AT) {
    GPU(asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(dst), "l"(reinterpret_cast<uint64_t>(m)), "r"(bar),
        "r"(0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(uint16_t(3)) : "memory");)
    CPU(emulate::tma_load(dst, m, bar, {0, c1, c2, c3, c4}, at);)
}
// Bring the line to L2; nobody waits for it.""",
    ),
    Mistake(
        "paired", RING,
        "    DEV void release(Place p AT) { ptx::mbar_arrive(emptied(p) PASS_AT); }",
        """    DEV void release(Place p AT) { ptx::mbar_arrive(emptied(p) PASS_AT); }
    DEV void release_in(Place p, uint32_t cta) { ptx::mbar_arrive_in(emptied(p), cta); }""",
    ),
    Mistake(
        "paired", PREFILL,
        "    uint64_t tail;       // mbarrier:",
        """    uint64_t told[2];    // mbarriers: the first CTA of a pair has said which tiles are next
    int drawn[2];
    uint64_t tail;       // mbarrier:""",
        also=(
            ("        k.init(4 * kGroups);\n        v.init(4 * kGroups);",
             """        k.init(8 * kGroups);
        v.init(8 * kGroups);
        for (uint64_t& bar : told) ptx::mbar_init(ptx::smem_u32(&bar), 1);"""),
            ("            for_pages<kKeys, kPage>(from, [&](int i, int slab, int first) {",
             """            const int half = ptx::cluster_rank() * (kKeys / 2 / kPage);
            const Source mine = {from.first, from.page, from.lane0 + half};
            for_pages<kKeys / 2, kPage>(mine, [&](int i, int slab, int first) {"""),
            ("                ptx::tma_load_5d(dst + i * kPage * D * 2, map,",
             "                ptx::tma_load_both(dst + (half + i) * kPage * D * 2, map,"),
            ("""            for (int panel = 0; panel < D / 64; panel++)
                load_block(map, dst + panel * kPanel, copied, from, panel, kv_head);""",
             """            for (int panel = ptx::cluster_rank(); panel < D / 64; panel += 2) {
                const int page = __shfl_sync(~0u, from.page, from.lane0);
                const smem_addr to = dst + panel * kPanel;
                if (ptx::elect_one()) ptx::tma_load_both(to, map, copied, from.first, panel, kv_head, page);
                __syncwarp();
            }"""),
            ("    DEV void run() {\n        for (int unit = blockIdx.x;; tile.advance()) {",
             """    DEV int next_pair() {
        const int slot = tile.odd();
        const smem_addr bar = ptx::smem_u32(&c.told[slot]);
        int pair = 0;
        if (ptx::cluster_rank() == 0) {
            pair = draw(p.queue, lane);
            if (lane == 0) ptx::tell(ptx::smem_u32(&c.drawn[slot]), pair, bar, 1);
        } else {
            if (lane == 0) ptx::mbar_arrive_tx(bar, 4);
            ptx::mbar_wait(bar, tile.uses / 2 % 2);
            pair = *static_cast<volatile int*>(&c.drawn[slot]);
        }
        __syncwarp();
        return pair;
    }
    DEV void run() {
        for (int unit = blockIdx.x;; tile.advance()) {"""),
            ("            unit = draw(p.queue, lane) + gridDim.x;",
             "            unit = 2 * (next_pair() + gridDim.x / 2) + ptx::cluster_rank();"),
            ("    const auto free_k = [&](Place<2> at) { if (lane == 0) c.k.release(at); };",
             "    const auto free_k = [&](Place<2> at) { if (lane < 2) c.k.release_in(at, lane); };"),
            ("    const auto free_v = [&](Place<2> at) { if (lane == 0) c.v.release(at); };",
             "    const auto free_v = [&](Place<2> at) { if (lane < 2) c.v.release_in(at, lane); };"),
        ),
    ),
    Mistake(
        "paired", HYBRID,
        "__global__ void __launch_bounds__(kThreads, 1)\nhybrid90(",
        "__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)\nhybrid90(",
        also=(
            ("    __syncthreads();\n", "    __syncthreads();\n    ptx::cluster_meet();\n"),
            ("        stamp(trace, 4, 1);\n    }\n}",
             "        stamp(trace, 4, 1);\n    }\n    ptx::cluster_meet();  // who ends hears nothing\n}"),
        ),
    ),
)  # fmt: skip

RUNGS = (
    _one("wide", "products of 8 columns, where the rows of decode fit", True, "pod/schedule/work.py",
         "DECODE_ROWS = (8, 16)", "DECODE_ROWS = (16,)"),
    _one("greedy", "yielding the tensor cores to decode", True, "pod/schedule/choose.py",
         "return 0 < (10 * blocks << FRACTION) < tiles * self.tile * self.sms", "return False"),
    _one("by_length", "an order of tiles that keeps K and V in L2", True, "pod/schedule/prefill.py",
         "if longest * side.kv_heads <= room:", "if True:"),
    Rung("halves", "P V in two halves", False, (HALVES,)),
    _one("promoted", "promotion to 128 bytes in L2", False, "csrc/include/tensor_map.cuh",
         "CU_TENSOR_MAP_L2_PROMOTION_L2_256B", "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"),
    Rung("first_out", "evict-first for decode's keys and values", False, (FIRST_OUT, USE_FIRST_OUT)),
    _one("asleep", "a time hint for waits", False, PTX,
         '''"WAIT:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n"''',
         '''"WAIT:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\\n"'''),
    Rung("paired", "pairs of SMs that share prefill's keys and values", False, PAIRED),
)  # fmt: skip
