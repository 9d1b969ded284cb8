// What the tensor cores leave to decode: one warpgroup multiplies keys by queries as fast as keys come, beside none,
// one or two warpgroups that multiply without end and touch no memory but the SM's own. They compute nothing of use.
#include "../include/ring.cuh"

using T = __nv_bfloat16;
constexpr int kStages = 8, kSteps = 8, kCheck = 4;            // of the ring; of a product of 128 columns; rounds
constexpr uint32_t kKeys = 64 * 256, kRows = 64 * 256;        // bytes: 64 rows of 128 columns, in two swizzled panels
constexpr uint32_t kColumns = 128 * 256, kQueries = 8 * 256;  // 128 rows, and 8
constexpr uint32_t kAtRows = kStages * kKeys, kAtColumns = kAtRows + 2 * kRows, kAtQueries = kAtColumns + kColumns;
constexpr uint32_t kSmem = kAtQueries + kQueries + 1024;
constexpr uint32_t kOnes = 0x3F803F80;                        // two numbers

struct Control {
    Ring<kStages> keys;
    volatile int done, stop[2][2];  // decode is through; and what a warpgroup has seen of that, in odd and even rounds
};

DEV uint32_t step(int i, uint32_t bytes) { return (i / 4 * (bytes / 2) + i % 4 * 32) >> 4; }

DEV void fetch(smem_addr to, gptr<const unsigned char> from, smem_addr full) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(kKeys), "r"(full) : "memory");
}

// 64 x 128 x 128, over and over, until decode is through. Returns how often.
DEV int multiply(smem_addr base, Control& control, int group, int* sink) {
    const uint64_t rows = ptx::desc_sw128(base + kAtRows + group * kRows, 1, 1024);
    const uint64_t columns = ptx::desc_sw128(base + kAtColumns, 1, 1024);
    float s[64] = {};
    int rounds = 0;
#pragma unroll 1
    for (bool stop = false; !stop; ++rounds) {
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kSteps; ++i) ptx::wgmma_ss<T, 1>(s, rows + step(i, kRows), columns + step(i, kColumns));
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();  // so that the next is asked for before this one is through
        if (rounds % kCheck != 0) continue;
        volatile int& seen = control.stop[group][rounds / kCheck % 2];  // all four warps must see the same
        if (threadIdx.x % 128 == 0) seen = control.done;
        ptx::named_barrier_sync(1 + group, 128);
        stop = seen;
    }
    ptx::wgmma_wait<0>();
    ptx::touch(s);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 64; ++i) sum += s[i];
    if (sum == -1) *sink = 1;  // never: so that nothing is optimised away
    return rounds;
}

// `tiles` of 64 keys for each CTA: from its own part of DRAM, or its first kStages tiles again and again.
template <bool kResident> __global__ void __launch_bounds__(512, 1)
beside(gptr<const unsigned char> from, int tiles, unsigned long long* sum, int64_t* cycles, int* rounds, int* sink) {
    const int role = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), lane = threadIdx.x % 32;
    const smem_addr base = ptx::smem_u32(ptx::dynamic_smem<unsigned char>());
    __shared__ Control control;
    for (uint32_t at = kAtRows + threadIdx.x * 16; at < kAtQueries; at += blockDim.x * 16)
        ptx::st_shared_16(base + at, uint4{});
    if (threadIdx.x < kQueries / 16)
        ptx::st_shared_16(base + kAtQueries + threadIdx.x * 16, uint4{kOnes, kOnes, kOnes, kOnes});
    if (threadIdx.x == 0) {
        control.keys.init(4);  // readers are warps
        control.done = 0;
        ptx::fence_mbar_init();
    }
    ptx::fence_proxy_async();
    __syncthreads();
    if (role == 0) {
        if (threadIdx.x != 0) return;
        from += int64_t(blockIdx.x) * tiles * kKeys;
        Place<kStages> place;
        for (int i = 0; i < (kResident ? kStages : tiles); ++i, place.advance()) {
            control.keys.acquire(place);
            control.keys.expect(place, kKeys);
            fetch(base + place.stage() * kKeys, from + int64_t(i) * kKeys, control.keys.filled(place));
        }
        return;
    }
    if (role > 1) {
        const int made = multiply(base, control, role - 2, sink);
        if (threadIdx.x % 128 == 0) rounds[blockIdx.x * 2 + role - 2] = made;
        return;
    }
    const uint64_t queries = ptx::desc_sw128(base + kAtQueries, 1, 1024);
    float d[4] = {};
    Place<kStages> place, last;
    if constexpr (kResident)
        for (Place<kStages> at; at.uses < kStages; at.advance()) control.keys.wait(at);
    const int64_t start = clock64();
#pragma unroll 1
    for (int i = 0; i < tiles; ++i, place.advance()) {
        if constexpr (!kResident) control.keys.wait(place);
        const uint64_t keys = ptx::desc_sw128(base + place.stage() * kKeys, 1, 1024);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < kSteps; ++k)
            ptx::wgmma_narrow<T, 0, 1>(d, keys + step(k, kKeys), queries + step(k, kQueries));
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();  // the tile before is through
        if (kResident || i == 0) continue;
        if (lane == 0) control.keys.release(last);
        last.advance();
    }
    ptx::wgmma_wait<0>();
    ptx::touch(d);
    if (threadIdx.x % 128 == 0) {
        cycles[blockIdx.x] = clock64() - start;
        control.done = 1;
    }
    atomicAdd(sum, static_cast<unsigned long long>(d[0] + d[1] + d[2] + d[3]));
}

// ---------------------------------------------------------------- host
extern "C" int pod_beside(int resident, int groups, const void* from, int tiles, int ctas, void* sum, void* cycles,
                          void* rounds, void* sink, cudaStream_t stream) {
    const auto kernel = resident ? beside<true> : beside<false>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
    kernel<<<ctas, 128 * (2 + groups), kSmem, stream>>>(
        static_cast<const unsigned char*>(from), tiles, static_cast<unsigned long long*>(sum),
        static_cast<int64_t*>(cycles), static_cast<int*>(rounds), static_cast<int*>(sink));
    return cudaGetLastError();
}
