// The instructions that only Hopper (sm_90a) has, as ptx.cuh has the others: mbarriers, TMA copies, wgmma, setmaxnreg.
#pragma once
#include "ptx.cuh"
#ifdef POD_EMULATE
#include "../emulate/hopper.h"
#else
#include <cuda.h>
#endif

namespace ptx {

// ---------------------------------------------------------------- mbarrier
// Initialise: `count` arrivals complete a phase.
DEV void mbar_init(uint32_t bar, uint32_t count AT) {
    GPU(asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");)
    CPU(emulate::mbar_init(bar, count, at);)
}
// Make the initialised barriers visible to the copy engine (async proxy).
DEV void fence_mbar_init(AT_ONLY) {
    GPU(asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");)
    CPU(emulate::fence_mbar_init(at);)
}
// One arrival.
DEV void mbar_arrive(uint32_t bar AT) {
    GPU(asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");)
    CPU(emulate::mbar_arrive(bar, 0, at);)
}
// One arrival that also announces `bytes` of copy traffic.
DEV void mbar_arrive_tx(uint32_t bar, uint32_t bytes AT) {
    GPU(asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");)
    CPU(emulate::mbar_arrive(bar, bytes, at);)
}
// Wait until the phase with this parity has completed (the hardware suspends the thread between tries).
DEV void mbar_wait(uint32_t bar, uint32_t parity AT) {
    GPU(asm volatile(
        "{\n.reg .pred p;\n"
        "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra DONE;\nbra WAIT;\nDONE:\n}\n" ::"r"(bar), "r"(parity) : "memory");)
    CPU(emulate::mbar_wait(bar, parity, at);)
}

// ---------------------------------------------------------------- TMA
DEV void prefetch_tmap([[maybe_unused]] const CUtensorMap* m) {
    GPU(asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(m)) : "memory");)
}
// Boxes, global -> shared, completing on an mbarrier. Every map starts with 64 columns (c0 = 0).
DEV void tma_load_4d(uint32_t dst, const CUtensorMap* m, uint32_t bar, int c1, int c2, int c3 AT) {
    GPU(asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst), "l"(reinterpret_cast<uint64_t>(m)), "r"(bar),
        "r"(0), "r"(c1), "r"(c2), "r"(c3) : "memory");)
    CPU(emulate::tma_load(dst, m, bar, {0, c1, c2, c3}, at);)
}
DEV void tma_load_5d(uint32_t dst, const CUtensorMap* m, uint32_t bar, int c1, int c2, int c3, int c4 AT) {
    GPU(asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(dst), "l"(reinterpret_cast<uint64_t>(m)), "r"(bar),
        "r"(0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");)
    CPU(emulate::tma_load(dst, m, bar, {0, c1, c2, c3, c4}, at);)
}

// Bring the line to L2; nobody waits for it.
template <class T> DEV void prefetch_l2([[maybe_unused]] gptr<T> p) {
    GPU(asm volatile("prefetch.global.L2 [%0];" ::"l"(p));)
}
// ---------------------------------------------------------------- roles, barriers, order
// Read anew by each role, so that no register is kept alive from before the roles part.
DEV int lane_id() {
    GPU(int lane; asm volatile("mov.u32 %0, %laneid;" : "=r"(lane)); return lane;)
    CPU(return threadIdx.x % 32;)
}
DEV int thread_id() {
    GPU(int thread; asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread)); return thread;)
    CPU(return threadIdx.x;)
}
// The same number, though the compiler does not know it: what is computed from it is computed here, and not kept from
// before.
DEV int anew(int x) {
    GPU(asm volatile("" : "+r"(x));)
    return x;
}
// True in exactly one lane of a converged warp; unlike a lane test, the compiler knows that it is one lane.
DEV bool elect_one(AT_ONLY) {
    GPU(uint32_t r;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(r));
    return r;)
    CPU(return emulate::elect(at);)
}
// Where a warp is whole because the instruction before took all its lanes, their loads have been issued, in order:
// nobody who is told afterwards can overwrite what they read. No instruction; the PTX manual would want a __syncwarp.
DEV void converged(AT_ONLY) { CPU(emulate::syncwarp(at);) }
// Give registers back to / take them from the CTA's pool (whole warpgroup).
template <int N> DEV void setmaxnreg_dec(AT_ONLY) {
    GPU(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));)
    CPU(emulate::setmaxnreg(N, false, at);)
}
template <int N> DEV void setmaxnreg_inc(AT_ONLY) {
    GPU(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));)
    CPU(emulate::setmaxnreg(N, true, at);)
}
// Order earlier ordinary shared-memory writes before later async-proxy (TMA, wgmma) accesses.
DEV void fence_proxy_async(AT_ONLY) {
    GPU(asm volatile("fence.proxy.async.shared::cta;" ::: "memory");)
    CPU(emulate::fence_proxy_async(at);)
}
// ---------------------------------------------------------------- wgmma
// Order register accesses before the next wgmma.
DEV void wgmma_fence(AT_ONLY) {
    GPU(asm volatile("wgmma.fence.sync.aligned;" ::: "memory");)
    CPU(emulate::wgmma_fence(at);)
}
// Close a group of wgmma.
DEV void wgmma_commit(AT_ONLY) {
    GPU(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");)
    CPU(emulate::wgmma_commit(at);)
}
// Wait until at most N groups are pending.
template <int N> DEV void wgmma_wait(AT_ONLY) {
    GPU(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");)
    CPU(emulate::wgmma_wait(N, at);)
}
// Tell the compiler that an accumulator may have changed here (it cannot see the asynchronous write).
template <int N> DEV void touch([[maybe_unused]] float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) { GPU(asm volatile("" : "+f"(d[i])::"memory");) }
}

// Operand descriptor, 128-byte swizzle. K-major: rows are 128 B apart, 8-row groups `sbo` apart, `lbo` unused.
// MN-major: 64-element panels `lbo` apart, groups of 8 k-rows `sbo` apart.
DEV uint64_t desc_sw128(uint32_t addr, uint32_t lbo, uint32_t sbo) {
    return uint64_t((addr & 0x3FFFF) >> 4) | uint64_t(lbo >> 4) << 16 | uint64_t(sbo >> 4) << 32 | 1ull << 62;
}
// Operand descriptor, no swizzle, MN-major with 8 elements (16 B) a k-row: groups of 8 k-rows `lbo` apart, of 8
// elements `sbo`.
DEV uint64_t desc_plain(uint32_t addr, uint32_t lbo, uint32_t sbo) {
    return uint64_t((addr & 0x3FFFF) >> 4) | uint64_t(lbo >> 4) << 16 | uint64_t(sbo >> 4) << 32;
}

#define F8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
                 "+f"(d[i + 6]), "+f"(d[i + 7])
#define ACC32(d) F8(d, 0), F8(d, 8), F8(d, 16), F8(d, 24)
#define ACC64(d) ACC32(d), F8(d, 32), F8(d, 40), F8(d, 48), F8(d, 56)
#define LIST8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LIST32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LIST64 LIST32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
                      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// D[64x128] (+)= A[64x16] B[16x128], both K-major in shared memory. ACC = 0 overwrites D.
template <typename T, int ACC> DEV void wgmma_ss(float (&d)[64], uint64_t a, uint64_t b AT) {
#define POD_SS(TYPE)                                                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                           \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE           \
                 " {" LIST64 "}, %64, %65, p, 1, 1, 0, 0;\n}\n" : ACC64(d) : "l"(a), "l"(b), "n"(ACC))
    GPU(if constexpr (std::is_same<T, __half>::value) POD_SS("f16"); else POD_SS("bf16");)
    CPU((emulate::wgmma<T, 128>(d, nullptr, {a, false}, {b, false}, ACC, at));)
#undef POD_SS
}
// D[64x128] += A[64x16] B[16x128]; A in registers, B MN-major in shared memory.
template <typename T> DEV void wgmma_rs(float (&d)[64], const uint32_t* a, uint64_t b AT) {
#define POD_RS(TYPE)                                                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                             \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE           \
                 " {" LIST64 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1;\n}\n"              \
                 : ACC64(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
    GPU(if constexpr (std::is_same<T, __half>::value) POD_RS("f16"); else POD_RS("bf16");)
    CPU((emulate::wgmma<T, 128>(d, a, {0, false}, {b, true}, true, at));)
#undef POD_RS
}
// The same with 64 columns.
template <typename T> DEV void wgmma_rs(float (&d)[32], const uint32_t* a, uint64_t b AT) {
#define POD_RS(TYPE)                                                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                             \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE            \
                 " {" LIST32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}\n"              \
                 : ACC32(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
    GPU(if constexpr (std::is_same<T, __half>::value) POD_RS("f16"); else POD_RS("bf16");)
    CPU((emulate::wgmma<T, 64>(d, a, {0, false}, {b, true}, true, at));)
#undef POD_RS
}
// D[64xN] (+)= A[64x16] B[16xN] of few columns, 8 or 16, both in shared memory. MN = 1: both MN-major, else both
// K-major.
template <typename T, int MN, int ACC> DEV void wgmma_narrow(float (&d)[4], uint64_t a, uint64_t b AT) {
#define POD_NARROW(TYPE)                                                                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"                            \
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE             \
                 " {%0,%1,%2,%3}, %4, %5, p, 1, 1, %7, %7;\n}\n"                        \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b), "n"(ACC), "n"(MN))
    GPU(if constexpr (std::is_same<T, __half>::value) POD_NARROW("f16"); else POD_NARROW("bf16");)
    CPU((emulate::wgmma<T, 8>(d, nullptr, {a, MN}, {b, MN}, ACC, at));)
#undef POD_NARROW
}
template <typename T, int MN, int ACC> DEV void wgmma_narrow(float (&d)[8], uint64_t a, uint64_t b AT) {
#define POD_NARROW(TYPE)                                                                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"                           \
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE            \
                 " {" LIST8 "}, %8, %9, p, 1, 1, %11, %11;\n}\n"                        \
                 : F8(d, 0) : "l"(a), "l"(b), "n"(ACC), "n"(MN))
    GPU(if constexpr (std::is_same<T, __half>::value) POD_NARROW("f16"); else POD_NARROW("bf16");)
    CPU((emulate::wgmma<T, 16>(d, nullptr, {a, MN}, {b, MN}, ACC, at));)
#undef POD_NARROW
}
// The same with A in registers. MN = 1: B MN-major, else K-major.
template <typename T, int MN, int ACC> DEV void wgmma_narrow(float (&d)[4], const uint32_t* a, uint64_t b AT) {
#define POD_NARROW(TYPE)                                                                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n"                            \
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE             \
                 " {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, 1, 1, %10;\n}\n"                \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ACC), "n"(MN))
    GPU(if constexpr (std::is_same<T, __half>::value) POD_NARROW("f16"); else POD_NARROW("bf16");)
    CPU((emulate::wgmma<T, 8>(d, a, {0, false}, {b, MN}, ACC, at));)
#undef POD_NARROW
}
template <typename T, int MN, int ACC> DEV void wgmma_narrow(float (&d)[8], const uint32_t* a, uint64_t b AT) {
#define POD_NARROW(TYPE)                                                                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"                           \
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE            \
                 " {" LIST8 "}, {%8,%9,%10,%11}, %12, p, 1, 1, %14;\n}\n"               \
                 : F8(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ACC), "n"(MN))
    GPU(if constexpr (std::is_same<T, __half>::value) POD_NARROW("f16"); else POD_NARROW("bf16");)
    CPU((emulate::wgmma<T, 16>(d, a, {0, false}, {b, MN}, ACC, at));)
#undef POD_NARROW
}

// ---------------------------------------------------------------- 8 bits
// Four e4m3 -> two packed pairs of halves, exactly.
DEV void widen(uint32_t x, uint32_t& low, uint32_t& high) {
    GPU(asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\n"
            "cvt.rn.f16x2.e4m3x2 %0, a;\ncvt.rn.f16x2.e4m3x2 %1, b;\n}" : "=r"(low), "=r"(high) : "r"(x));)
    CPU(low = emulate::widen(x), high = emulate::widen(x >> 16);)
}
// The bytes of a word in the order 0, 2, 1, 3.
DEV uint32_t even_bytes_first(uint32_t x) {
    GPU(return __byte_perm(x, 0, 0x3120);)
    CPU(return (x & 0xff0000ff) | (x >> 8 & 0xff00) | (x << 8 & 0xff0000);)
}

}  // namespace ptx
