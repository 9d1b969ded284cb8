// What tensor cores and memory give when nothing else is in the way. The calibration of pod/simulate/gpusim.py times
// these two kernels; they compute nothing of use.
#include "../include/ptx.cuh"

constexpr int kThreads = 128, kCopies = 2, kGroup = kThreads * kCopies * 16;  // bytes that a CTA asks for at a time

// Each CTA reads `groups` groups of 4 KB, at most kAhead of them under way: by Little's law it gets kAhead * 4 KB
// each time that memory answers, and no more. Its own memory has `own` groups, which it reads again and again.
template <int kAhead> __global__ void read(gptr<const unsigned char> from, int own, int groups) {
    from += blockIdx.x * size_t(own) * kGroup + threadIdx.x * 16;
    const smem_addr to = ptx::smem_u32(ptx::dynamic_smem<unsigned char>()) + threadIdx.x * 16;
    for (int g = 0; g < groups; ++g) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const int offset = i * kThreads * 16;
            ptx::cp_async_16(to + g % kAhead * kGroup + offset, from + size_t(g % own) * kGroup + offset);
        }
        ptx::cp_async_commit();
        ptx::cp_async_wait<kAhead - 1>();
    }
    ptx::cp_async_wait<0>();
}

// Each warp keeps eight independent products of 16 x 8 x 16 going. The clock of the first CTA's SM tells how many
// cycles that took, whatever the clock rate was.
__global__ void multiply(gptr<int64_t> cycles, int rounds) {
    const int64_t start = clock64();
    float d[8][4] = {};
    const uint32_t a[4] = {threadIdx.x, threadIdx.x, 0, 0};
    for (int i = 0; i < rounds; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) ptx::mma_16816<__nv_bfloat16>(d[j], a, threadIdx.x, 0);
    float sum = 0;
    for (int j = 0; j < 8; ++j) sum += d[j][0] + d[j][1] + d[j][2] + d[j][3];
    if (blockIdx.x == 0 && threadIdx.x == 0) *cycles = clock64() - start + (sum == 1);  // so nothing is optimised away
}

template <int kAhead> int launch_read(const void* from, int own, int groups, int ctas, cudaStream_t stream) {
    cudaFuncSetAttribute(read<kAhead>, cudaFuncAttributeMaxDynamicSharedMemorySize, kAhead * kGroup);
    read<kAhead><<<ctas, kThreads, kAhead * kGroup, stream>>>(static_cast<const unsigned char*>(from), own, groups);
    return cudaGetLastError();
}

extern "C" int pod_read(const void* from, int own, int groups, int ahead, int ctas, cudaStream_t stream) {
    switch (ahead) {
        case 1: return launch_read<1>(from, own, groups, ctas, stream);
        case 2: return launch_read<2>(from, own, groups, ctas, stream);
        case 4: return launch_read<4>(from, own, groups, ctas, stream);
        case 8: return launch_read<8>(from, own, groups, ctas, stream);
        case 16: return launch_read<16>(from, own, groups, ctas, stream);
    }
    return cudaErrorInvalidValue;
}
extern "C" int pod_multiply(void* cycles, int rounds, int warps, int ctas, cudaStream_t stream) {
    multiply<<<ctas, warps * 32, 0, stream>>>(static_cast<int64_t*>(cycles), rounds);
    return cudaGetLastError();
}
