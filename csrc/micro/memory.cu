// How long one load waits and how many bytes a second arrive, place by place: registers, shared memory, L1, L2, DRAM. The
// suite memory-map calls these; they compute nothing of use.
#include "../include/ptx.cuh"

constexpr int kLine = 128;  // bytes of a cache line, the step of the chase: no load finds what another has brought

// How long `step`, repeated, takes: cycles of this SM and nanoseconds. Volatile instructions keep their order around it.
template <class Step> __device__ void timed(int times, gptr<int64_t> out, Step step) {
    const int64_t ns = ptx::globaltimer(), cycles = clock64();
#pragma unroll 16
    for (int i = 0; i < times; ++i) step();
    out[0] = clock64() - cycles, out[1] = ptx::globaltimer() - ns;
}
// One thread goes from line to line: at address p lies the address of the next. Once round first, so that what fits is there.
__global__ void chase(uint64_t p, int lines, int hops, gptr<int64_t> out) {
    const auto hop = [&] { asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(p)); };
    for (int i = 0; i < lines; ++i) hop();
    timed(hops, out, hop);
}
__global__ void chase_shared(int lines, int hops, gptr<int64_t> out) {
    uint32_t p = ptx::smem_u32(ptx::dynamic_smem<uint32_t>());
    for (int i = 0; i < lines; ++i) ptx::st_shared_4(p + i * kLine, p + (i + 1) % lines * kLine);
    timed(hops, out, [&] { asm volatile("ld.shared.u32 %0, [%0];" : "+r"(p)); });
}
// A chain of multiply-adds: each needs the register that the one before has written.
__global__ void chase_registers(int hops, float factor, gptr<int64_t> out) {
    float x = factor;
    timed(hops, out, [&] { asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x) : "f"(factor)); });
}

// 16 bytes, `how`: .ca may answer from L1, .cg asks L2.
#define POD_LOAD(how, v, p) \
    asm volatile("ld.global." how ".v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p))

// All threads of the grid read all `vectors` of 16 bytes together, `rounds` times, past L1.
__global__ void stream(gptr<const uint4> from, int64_t vectors, int rounds, gptr<int> out) {
    const int64_t first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x, step = int64_t(gridDim.x) * blockDim.x;
    uint32_t sum = 0;
    for (int r = 0; r < rounds; ++r)
#pragma unroll 8
        for (int64_t i = first; i < vectors; i += step) {
            uint4 v;
            POD_LOAD("cg", v, from + i);
            sum += v.x ^ v.y ^ v.z ^ v.w;
        }
    if (sum == 0x12345678) *out = 1;
}
// Each CTA reads its own shared memory, or again and again the same 32 bytes a thread out of L1.
__global__ void stream_shared(int rounds, gptr<int> out) {
    const smem_addr mine = ptx::smem_u32(ptx::dynamic_smem<uint4>()) + threadIdx.x * 16;
    uint32_t sum = 0;
#pragma unroll 8
    for (int r = 0; r < rounds; ++r) {
        const uint4 v = ptx::ld_shared_16(mine + r % 2 * blockDim.x * 16);
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678) *out = 1;
}
__global__ void stream_l1(gptr<const uint4> from, int rounds, gptr<int> out) {
    const uint4* mine = from + blockIdx.x * 2 * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
#pragma unroll 8
    for (int r = 0; r < rounds; ++r) {
        uint4 v;
        POD_LOAD("ca", v, mine + r % 2 * blockDim.x);
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678) *out = 1;
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
    return stream<<<ctas, threads, 0, s>>>(static_cast<const uint4*>(from), bytes / 16, rounds, out), launched();
}
extern "C" int pod_stream_shared(int rounds, int ctas, int threads, int* out, cudaStream_t s) {
    return stream_shared<<<ctas, threads, 2 * threads * 16, s>>>(rounds, out), launched();
}
extern "C" int pod_stream_l1(const void* from, int rounds, int ctas, int threads, int* out, cudaStream_t s) {
    return stream_l1<<<ctas, threads, 0, s>>>(static_cast<const uint4*>(from), rounds, out), launched();
}
extern "C" int pod_stream_registers(int rounds, int ctas, int threads, int* out, cudaStream_t s) {
    return stream_registers<<<ctas, threads, 0, s>>>(rounds, 0.999f, out), launched();
}
