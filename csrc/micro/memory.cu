// How long one load waits and how many bytes a second arrive, place by place: registers, shared memory, L1, L2, DRAM. The
// suite memory-map calls these; they compute nothing of use.
#include "../include/ptx.cuh"

constexpr int kLine = 128;  // bytes of a cache line, the step of the chase: no load finds what another has brought

// How long `step`, repeated, takes: cycles of this SM and nanoseconds. The last place reached goes out, too: an assembler
// leaves out what nobody asks for, also where C++ says volatile.
template <class P, class Step> __device__ void timed(int times, gptr<int64_t> out, P& at, Step step) {
    const int64_t ns = ptx::globaltimer(), cycles = clock64();
#pragma unroll 16
    for (int i = 0; i < times; ++i) step();
    out[0] = clock64() - cycles, out[1] = ptx::globaltimer() - ns, out[2] = int64_t(at);
}
// One thread goes from line to line: at address p lies the address of the next. Once round first, so that what fits is there.
__global__ void chase(uint64_t p, int lines, int hops, gptr<int64_t> out) {
    const auto hop = [&] { asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(p)); };
    for (int i = 0; i < lines; ++i) hop();
    timed(hops, out, p, hop);
}
__global__ void chase_shared(int lines, int hops, gptr<int64_t> out) {
    uint32_t p = ptx::smem_u32(ptx::dynamic_smem<uint32_t>());
    for (int i = 0; i < lines; ++i) ptx::st_shared_4(p + i * kLine, p + (i + 1) % lines * kLine);
    timed(hops, out, p, [&] { asm volatile("ld.shared.u32 %0, [%0];" : "+r"(p)); });
}
// A chain of multiply-adds: each needs the register that the one before has written.
__global__ void chase_registers(int hops, float factor, gptr<int64_t> out) {
    float x = factor;
    timed(hops, out, x, [&] { asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x) : "f"(factor)); });
}

// 16 bytes, `how`: .ca may answer from L1, .cg asks L2.
#define POD_LOAD(how, v, p) \
    asm volatile("ld.global." how ".v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p))

// The CTAs take turns at all groups of kAhead x their threads x 16 bytes, `rounds` times, past L1. Of each group a thread asks
// for all its kAhead vectors before it uses one: with fewer under way, DRAM waits for the threads.
template <int kAhead> __global__ void stream(gptr<const uint4> from, int64_t groups, int rounds, gptr<int> out) {
    uint32_t sum = 0;
    for (int r = 0; r < rounds; ++r)
        for (int64_t g = blockIdx.x; g < groups; g += gridDim.x) {
            uint4 v[kAhead];
#pragma unroll
            for (int i = 0; i < kAhead; ++i) POD_LOAD("cg", v[i], from + (g * kAhead + i) * blockDim.x + threadIdx.x);
#pragma unroll
            for (int i = 0; i < kAhead; ++i) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
        }
    if (sum == 0x12345678) *out = 1;
}
// Each CTA reads its own shared memory, or again and again the same bytes out of L1. They are zeros, but only when it runs:
// where the next load goes depends on the one before, so that none can be left out. The other warps fill the wait.
__global__ void stream_shared(int rounds, uint32_t zero, gptr<int> out) {
    const smem_addr mine = ptx::smem_u32(ptx::dynamic_smem<uint4>()) + threadIdx.x * 16;
    ptx::st_shared_16(mine, {zero, zero, zero, zero});
    smem_addr at = mine;
#pragma unroll 8
    for (int r = 0; r < rounds; ++r) {
        const uint4 v = ptx::ld_shared_16(at);
        at = mine + (v.x ^ v.y ^ v.z ^ v.w);
    }
    if (at != mine) *out = 1;
}
__global__ void stream_l1(gptr<const uint4> from, int rounds, gptr<int> out) {
    const uint4 *const mine = from + blockIdx.x * blockDim.x + threadIdx.x, *at = mine;
#pragma unroll 8
    for (int r = 0; r < rounds; ++r) {
        uint4 v;
        POD_LOAD("ca", v, at);
        at = mine + (v.x ^ v.y ^ v.z ^ v.w);
    }
    if (at != mine) *out = 1;
}
// Eight independent chains of multiply-adds a thread.
__global__ void stream_registers(int rounds, float factor, gptr<int> out) {
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = factor + i;
#pragma unroll 16
    for (int r = 0; r < rounds; ++r)
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = x[i] * factor + x[i];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += x[i];
    if (sum == 1.5f) *out = 1;
}

static int launched() { return cudaGetLastError(); }
static int allow(const void* kernel, int smem) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
}

extern "C" int pod_chase(uint64_t first, int lines, int hops, int64_t* out, cudaStream_t s) {
    return chase<<<1, 1, 0, s>>>(first, lines, hops, out), launched();
}
extern "C" int pod_chase_shared(int lines, int hops, int64_t* out, cudaStream_t s) {
    allow(reinterpret_cast<const void*>(chase_shared), lines * kLine);
    return chase_shared<<<1, 1, lines * kLine, s>>>(lines, hops, out), launched();
}
extern "C" int pod_chase_registers(int hops, int64_t* out, cudaStream_t s) {
    return chase_registers<<<1, 1, 0, s>>>(hops, 0.999f, out), launched();
}
extern "C" int pod_stream(const void* from, int64_t bytes, int rounds, int ctas, int threads, int* out, cudaStream_t s) {
    constexpr int kAhead = 8;
    const auto* const vectors = static_cast<const uint4*>(from);
    return stream<kAhead><<<ctas, threads, 0, s>>>(vectors, bytes / (16 * kAhead * threads), rounds, out), launched();
}
extern "C" int pod_stream_shared(int rounds, int ctas, int threads, int* out, cudaStream_t s) {
    return stream_shared<<<ctas, threads, threads * 16, s>>>(rounds, 0, out), launched();
}
extern "C" int pod_stream_l1(const void* from, int rounds, int ctas, int threads, int* out, cudaStream_t s) {
    return stream_l1<<<ctas, threads, 0, s>>>(static_cast<const uint4*>(from), rounds, out), launched();
}
extern "C" int pod_stream_registers(int rounds, int ctas, int threads, int* out, cudaStream_t s) {
    return stream_registers<<<ctas, threads, 0, s>>>(rounds, 0.999f, out), launched();
}
