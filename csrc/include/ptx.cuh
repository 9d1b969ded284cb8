// One wrapper per PTX instruction that CUDA C++ has no word for: its GPU form and its emulated form side by side.
// Where CUDA C++ has a word (__syncthreads, __syncwarp, __shfl_xor_sync, __any_sync, atomicAdd ...) kernels use that
// word, and the emulator understands it. memory.cuh says how kernels touch memory.
#pragma once
#include "memory.cuh"
#include <type_traits>

// GPU(...) is compiled by nvcc only, CPU(...) for the emulator only. AT, the last parameter, is the caller's place in
// the source, for the emulator's reports, and PASS_AT hands it on; on the GPU both are nothing.
#ifdef __CUDACC__
#define GPU(...) __VA_ARGS__
#else
#define GPU(...)
#endif
#ifdef POD_EMULATE
#define CPU(...) __VA_ARGS__
#define AT_ONLY emulate::Where at = emulate::Where::here()
#define AT , AT_ONLY
#define PASS_AT , at
#else
#define CPU(...)
#define AT_ONLY
#define AT
#define PASS_AT
#endif

namespace ptx {

// ---------------------------------------------------------------- shared memory
// Start of the CTA's dynamic shared memory, 1024-byte aligned.
template <class T = uint32_t> DEV sptr<T> dynamic_smem() {
    GPU(extern __shared__ __align__(1024) unsigned char pod_dynamic_smem[];
        return reinterpret_cast<T*>(pod_dynamic_smem);)
    CPU(return emulate::dynamic_smem<T>();)
}
// The 32-bit address that PTX wants, of what an sptr points to, or of a struct's member in shared memory.
template <class T> DEV smem_addr smem_u32(sptr<T> p) {
    GPU(return static_cast<smem_addr>(__cvta_generic_to_shared(p));)
    CPU(return p.address();)
}
CPU(inline smem_addr smem_u32(const void* p) { return emulate::address_of(p); })
// A struct with members of type `shared`, `byte` bytes from the start of the CTA's dynamic shared memory.
template <class T> DEV T& smem_struct(uint32_t byte) {
    GPU(return *reinterpret_cast<T*>(dynamic_smem<uint8_t>() + byte);)
    CPU(return *reinterpret_cast<T*>(emulate::plain_smem() + byte);)
}
// 16 bytes, shared memory <-> registers: V is uint4 or float4.
template <class V = uint4> DEV V ld_shared_16(smem_addr a AT) {
    GPU(uint4 v; asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                              : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
        return reinterpret_cast<const V&>(v);)
    CPU(return emulate::load_shared<V>(a, at);)
}
template <class V = uint4> DEV void st_shared_16(smem_addr a, const std::common_type_t<V>& x AT) {
    GPU(const uint4 v = reinterpret_cast<const uint4&>(x);
        asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");)
    CPU(emulate::store_shared<V>(a, x, at);)
}
// 4 bytes, registers -> shared memory.
DEV void st_shared_4(smem_addr a, uint32_t v AT) {
    GPU(asm volatile("st.shared.b32 [%0], %1;" ::"r"(a), "r"(v) : "memory");)
    CPU(emulate::store_shared(a, v, at);)
}

// ---------------------------------------------------------------- global memory
// 16 bytes, global memory <-> registers.
template <class T> DEV uint4 ld_global_16(gptr<T> p AT) {
    GPU(uint4 v; asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
                              : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory"); return v;)
    CPU(return emulate::load_global<uint4>(p, at);)
}
template <class T> DEV void st_global_16(gptr<T> p, uint4 v AT) {
    GPU(asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");)
    CPU(emulate::store_global(p, v, at);)
}
// A ticket: the old value of a counter. Publishes this thread's earlier writes (release).
DEV int atomic_add_release(gptr<int> p, int v AT) {
    GPU(int old; asm volatile("atom.add.release.gpu.global.s32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
        return old;)
    CPU(return emulate::atomic_add(p, v, emulate::kRelease, at);)
}
// The same, and sees what earlier ticket holders published (acquire).
DEV int atomic_add_acq_rel(gptr<int> p, int v AT) {
    GPU(int old; asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
        return old;)
    CPU(return emulate::atomic_add(p, v, emulate::kAcqRel, at);)
}
// After a ticket: sees what earlier ticket holders published. Before one: publishes.
DEV void fence_acq_rel(AT_ONLY) {
    GPU(asm volatile("fence.acq_rel.gpu;" ::: "memory");)
    CPU(emulate::fence(at);)
}

// ---------------------------------------------------------------- asynchronous copies, global -> shared
// 16 bytes that arrive some time before cp_async_wait returns. keep = false writes zeros and reads nothing. kOnce:
// nobody reads them again, so L2 may give them up before all others.
template <bool kOnce = false, class T> DEV void cp_async_16(smem_addr to, gptr<T> from, bool keep = true AT) {
    GPU(const int bytes = keep ? 16 : 0;
        constexpr uint64_t kEvictFirst = 0x12F0000000000000;  // the policy that createpolicy makes for L2::evict_first
        if constexpr (kOnce) asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;"
                                          ::"r"(to), "l"(from), "r"(bytes), "l"(kEvictFirst) : "memory");
        else asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                          ::"r"(to), "l"(from), "r"(bytes) : "memory");)
    CPU(emulate::cp_async(to, from, 16, keep, at);)
}
// Close a group of copies.
DEV void cp_async_commit(AT_ONLY) {
    GPU(asm volatile("cp.async.commit_group;" ::: "memory");)
    CPU(emulate::cp_async_commit(at);)
}
// Wait until at most N of this thread's groups are still under way. Other threads' copies need a barrier on top.
template <int N> DEV void cp_async_wait(AT_ONLY) {
    GPU(asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");)
    CPU(emulate::cp_async_wait(N, at);)
}

// ---------------------------------------------------------------- tensor cores
// 8x8 matrices of 16-bit elements, one row address a lane: lanes 8i .. 8i+7 point at the rows of matrix i. Lane l gets
// elements (row l / 4, columns 2 (l % 4) and + 1) of each; with trans, of its transpose.
DEV void ldmatrix_x4(uint32_t (&r)[4], smem_addr row AT) {
    GPU(asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");)
    CPU(emulate::ldmatrix<4, false>(r, row, at);)
}
DEV void ldmatrix_x4_trans(uint32_t (&r)[4], smem_addr row AT) {
    GPU(asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");)
    CPU(emulate::ldmatrix<4, true>(r, row, at);)
}
DEV void ldmatrix_x2(uint32_t (&r)[2], smem_addr row AT) {
    GPU(asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");)
    CPU(emulate::ldmatrix<2, false>(r, row, at);)
}
DEV void ldmatrix_x2_trans(uint32_t (&r)[2], smem_addr row AT) {
    GPU(asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");)
    CPU(emulate::ldmatrix<2, true>(r, row, at);)
}
// Transpose one 8x8 matrix of 16-bit elements held by the warp.
DEV uint32_t movm_trans(uint32_t x AT) {
    GPU(uint32_t y; asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x)); return y;)
    CPU(return emulate::movmatrix(x, at);)
}
// D[16x8] += A[16x16] B[16x8], fp32 sums of T (__half or __nv_bfloat16). With g = lane / 4 and c = 2 (lane % 4):
// a[0] = A[g][c, c+1], a[1] = A[g+8][c, c+1], a[2] = A[g][c+8, c+9], a[3] = A[g+8][c+8, c+9];
// b0 = B[c, c+1][g], b1 = B[c+8, c+9][g]; d[0], d[1] = D[g][c, c+1], d[2], d[3] = D[g+8][c, c+1].
template <class T> DEV void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 AT) {
#define POD_MMA(TYPE)                                                                                                  \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, " \
                 "{%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    GPU(if constexpr (std::is_same<T, __half>::value) POD_MMA("f16"); else POD_MMA("bf16");)
    CPU(emulate::mma_16816<T>(d, a, b0, b1, at);)
#undef POD_MMA
}

// ---------------------------------------------------------------- barriers, roles, place and time
// Named barrier 1..15 of `threads` threads (a multiple of 32): wait, announce only, or wait and learn whether any of
// them said true.
DEV void named_barrier_sync(int id, int threads AT) {
    GPU(asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");)
    CPU(emulate::barrier(id, threads, true, at);)
}
DEV void named_barrier_arrive(int id, int threads AT) {
    GPU(asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");)
    CPU(emulate::barrier(id, threads, false, at);)
}
DEV bool named_barrier_any(int id, int threads, bool mine AT) {
    GPU(uint32_t r;
        asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\n"
                     "bar.red.or.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}"
                     : "=r"(r) : "r"(uint32_t(mine)), "r"(id), "r"(threads) : "memory");
        return r;)
    CPU(return emulate::barrier(id, threads, true, at, mine);)
}
// The SM this CTA runs on, and an upper bound of the numbers that smid can return.
DEV uint32_t smid() {
    GPU(uint32_t r; asm volatile("mov.u32 %0, %%smid;" : "=r"(r)); return r;)
    CPU(return emulate::smid();)
}
DEV uint32_t nsmid() {
    GPU(uint32_t r; asm volatile("mov.u32 %0, %%nsmid;" : "=r"(r)); return r;)
    CPU(return emulate::nsmid();)
}
// Nanoseconds, the same clock on all SMs.
DEV uint64_t globaltimer() {
    GPU(uint64_t r; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(r)); return r;)
    CPU(return emulate::globaltimer();)
}

// ---------------------------------------------------------------- arithmetic
// Hide where a value comes from, so that the compiler computes what follows from it again instead of keeping it in
// registers.
DEV int opaque(int x) {
    GPU(asm volatile("" : "+r"(x));)
    return x;
}
// 1 / x on the special-function unit, to the last bit but one; rcp(inf) = 0.
DEV float rcp(float x) {
    GPU(float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;)
    CPU(return 1.f / x;)
}
// 2^x on the special-function unit, denormals to zero; ex2(-inf) = 0.
DEV float ex2(float x) {
    GPU(float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;)
    CPU(return emulate::ex2(x);)
}
// A float -> T.
template <class T> DEV T from_float(float x) {
    if constexpr (std::is_same<T, __half>::value) return __float2half_rn(x);
    else return __float2bfloat16_rn(x);
}
// Two floats -> a packed pair of T, `lo` in the low half; and back.
template <class T> DEV uint32_t pack2(float lo, float hi) {
    GPU(uint32_t r;
        if constexpr (std::is_same<T, __half>::value) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
        else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
        return r;)
    CPU(return emulate::pack2<T>(lo, hi);)
}
template <class T> DEV float2 unpack2(uint32_t x) {
    GPU(if constexpr (std::is_same<T, __half>::value) return __half22float2(reinterpret_cast<const __half2&>(x));
        else return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x));)
    CPU(return emulate::unpack2<T>(x);)
}

}  // namespace ptx
