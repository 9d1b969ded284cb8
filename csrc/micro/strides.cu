// What the order of loads costs: each warp reads its 4 KB, a word a lane and load. At stride 1 its lanes read side by
// side, at stride 32 each reads a line of its own. Bytes, threads and loads stay the same.
#include "../include/ptx.cuh"

constexpr int kWarp = 32, kEach = 32, kTile = kWarp * kEach;  // words that a lane reads at once, and its warp

// kNear: L1 keeps what a load has brought (.ca); else every load asks L2 (.cg). A warp's tile falls into pieces of
// kStride loads, in each of which a lane reads kStride neighbouring words.
template <int kStride, bool kNear>
__global__ void strided(gptr<const uint32_t> from, int64_t tiles, gptr<uint32_t> sums) {
    const int lane = threadIdx.x % kWarp, thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    for (int64_t tile = thread / kWarp; tile < tiles; tile += gridDim.x * blockDim.x / kWarp) {
        const gptr<const uint32_t> mine = from + tile * kTile + lane * kStride;
        uint32_t x[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const gptr<const uint32_t> at = mine + i / kStride * kStride * kWarp + i % kStride;
            if constexpr (kNear)
                asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(x[i]) : "l"(at));
            else
                asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(x[i]) : "l"(at));
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i) sum += x[i];
    }
    sums[thread] = sum;
}

template <int kStride, bool kNear>
int launched(const void* from, int64_t bytes, int ctas, int threads, void* sums, cudaStream_t stream) {
    strided<kStride, kNear><<<ctas, threads, 0, stream>>>(static_cast<const uint32_t*>(from), bytes / (4 * kTile),
                                                          static_cast<uint32_t*>(sums));
    return cudaGetLastError();
}

#define POD_STRIDE(N)                                                                                                  \
    extern "C" int pod_stride_##N(int near, const void* from, int64_t bytes, int ctas, int threads, void* sums,        \
                                  cudaStream_t stream) {                                                               \
        return (near ? launched<N, true> : launched<N, false>)(from, bytes, ctas, threads, sums, stream);              \
    }
POD_STRIDE(1)
POD_STRIDE(2)
POD_STRIDE(4)
POD_STRIDE(8)
POD_STRIDE(16)
POD_STRIDE(32)
