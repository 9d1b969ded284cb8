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

RUNGS = (
    _one("wide", "products of 8 columns, where the rows of decode fit", True, "pod/schedule/work.py",
         "DECODE_ROWS = (8, 16)", "DECODE_ROWS = (16,)"),
    _one("greedy", "yielding the tensor cores to decode", True, "pod/schedule/choose.py",
         "return 0 < (10 * blocks << FRACTION) < tiles * self.tile * self.sms", "return False"),
    _one("by_length", "an order of tiles that keeps K and V in L2", True, "pod/schedule/prefill.py",
         "if longest * side.kv_heads <= room:", "if True:"),
    Rung("halves", "P V in two halves", False, (HALVES,)),
    _one("promoted", "promotion to 128 bytes in L2", False, "csrc/sm90/hybrid.cu",
         "CU_TENSOR_MAP_L2_PROMOTION_L2_256B", "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"),
    Rung("first_out", "evict-first for decode's keys and values", False, (FIRST_OUT, USE_FIRST_OUT)),
    _one("asleep", "waits with a time hint", False, PTX,
         '''"WAIT:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n"''',
         '''"WAIT:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\\n"'''),
)  # fmt: skip
