// Hopper's asynchronous instructions, one small kernel each, and kernels that break their rules.
#include "host.h"
#include "include/ring.cuh"
using namespace ptx;

// Control words at the start of shared memory, operands from kData on.
constexpr uint32_t kBar = emulate::kSharedStart, kData = emulate::kSharedStart + 1024;

DEV void start_barrier(uint32_t bar, int count, bool fence = true) {
    if (threadIdx.x == 0) {
        mbar_init(bar, count);
        if (fence) fence_mbar_init();
    }
    __syncthreads();
}
CUtensorMap map_of(const void* data, int rank, std::array<uint64_t, 5> dims, std::array<uint64_t, 4> strides,
                   std::array<uint32_t, 5> box) {
    CUtensorMap m;
    m.data = static_cast<const char*>(data), m.rank = rank;
    std::copy(dims.begin(), dims.end(), m.dims), std::copy(strides.begin(), strides.end(), m.strides);
    std::copy(box.begin(), box.end(), m.box);
    return m;
}

// x [pages, rows, heads, 64]: the box of 16 rows from `row` on, of one head and page; out: as it lies in shared memory.
__global__ void tma_kernel(CUtensorMap map, gptr<uint4> out, int row, int head, int page) {
    start_barrier(kBar, 1);
    if (threadIdx.x == 0) {
        mbar_arrive_tx(kBar, 16 * 128);
        tma_load_4d(kData, &map, kBar, row, head, page);
    }
    mbar_wait(kBar, 0);
    for (int i = threadIdx.x; i < 128; i += 32) out[i] = ptx::ld_shared_16(kData + i * 16);
}
EXPORT const char* run_tma(uint16_t* x, int pages, int rows, int heads, int row, int head, int page, uint4* out) {
    return outcome([=] {
        const uint64_t line = 128, d[] = {uint64_t(rows), uint64_t(heads), uint64_t(pages)};
        const std::array<uint64_t, 4> strides = {line * d[1], line, line * d[0] * d[1]};
        const CUtensorMap map = map_of(x, 4, {64, d[0], d[1], d[2]}, strides, {64, 16, 1, 1});
        launch<tma_kernel>(0, 1, 32, 4096, map, device_ptr(out, 128, "out"), row, head, page);
    });
}

// Whether such a map can be made.
EXPORT int can_map(const char* data, int rank, const uint64_t* dims, const uint64_t* strides, const uint32_t* box) {
    CUtensorMap map;
    return emulate::make_map(&map, true, data, rank, dims, strides, box);
}

// Copy `bytes` of prepared operands (swizzled or not) to shared memory, and show them to the tensor cores.
DEV void fill(gptr<const uint4> from, int bytes) {
    for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) ptx::st_shared_16(kData + i * 16, from[i]);
    fence_proxy_async();
    __syncthreads();
}
template <int N> DEV void store_fragment(gptr<float> out, const float (&d)[N]) {
    for (int i = 0; i < N; ++i) out[int(threadIdx.x) * N + i] = d[i];
}
// A [64 x 64] and B [128 x 64], K-major, 128-byte swizzle: D = A B^T, then once more on top.
template <class T> __global__ void wgmma_ss_kernel(gptr<const uint4> operands, gptr<float> out) {
    fill(operands, (64 + 128) * 128);
    const uint64_t a = desc_sw128(kData, 1, 1024), b = desc_sw128(kData + 64 * 128, 1, 1024);
    float d[64];
    for (int twice = 0; twice < 2; ++twice) {
        wgmma_fence();
        for (int k = 0; k < 4; ++k) twice + k ? wgmma_ss<T, 1>(d, a + 2 * k, b + 2 * k) : wgmma_ss<T, 0>(d, a, b);
        wgmma_commit();
        wgmma_wait<0>();
    }
    store_fragment(out, d);
}
// A [64 x 16] in registers [128, 4], B [16 x N] as 64-column panels of 16 rows, MN-major, 128-byte swizzle.
template <class T, int N>
__global__ void wgmma_rs_kernel(gptr<const uint4> operands, gptr<const uint32_t> registers, gptr<float> out) {
    fill(operands, N / 64 * 16 * 128);
    const uint32_t* a = (registers + int(threadIdx.x) * 4).p;
    float d[N / 2] = {};
    wgmma_fence();
    wgmma_rs<T>(d, a, desc_sw128(kData, 2048, 1024));
    wgmma_commit();
    wgmma_wait<0>();
    store_fragment(out, d);
}
// kMn 0: A [64 x 64] and B [N x 64], K-major and swizzled, one k16 step.
// kMn 1: A [16 x 64], MN-major and swizzled; B [16 x N] in octets [16 x 8], MN-major and plain.
template <class T, int kMn, int N> __global__ void wgmma_narrow_kernel(gptr<const uint4> operands, gptr<float> out) {
    constexpr int kA = kMn ? 16 * 128 : 64 * 128, kB = kMn ? 16 * 2 * N : N * 128;
    fill(operands, kA + kB);
    const uint64_t b = kMn ? desc_plain(kData + kA, 128, 256) : desc_sw128(kData + kA, 1, 1024);
    float d[N / 2];
    wgmma_fence();
    wgmma_narrow<T, kMn, 0>(d, desc_sw128(kData, 1, 1024), b);
    wgmma_commit();
    wgmma_wait<0>();
    store_fragment(out, d);
}
EXPORT const char* run_wgmma(const char* form, int half, uint4* operands, int bytes, uint32_t* registers, float* out,
                             int floats) {
    return outcome([=] {
        const auto x = input(operands, bytes / 16, "operands");
        const auto a = input(registers, 512, "registers");
        const auto y = device_ptr(out, floats, "out");
        const std::string which = form;
        auto go = [&](auto zero) {
            using T = decltype(zero);
            if (which == "ss") launch<wgmma_ss_kernel<T>>(0, 1, 128, 32768, x, y);
            if (which == "rs128") launch<wgmma_rs_kernel<T, 128>>(0, 1, 128, 32768, x, a, y);
            if (which == "rs64") launch<wgmma_rs_kernel<T, 64>>(0, 1, 128, 32768, x, a, y);
            if (which == "n8") launch<wgmma_narrow_kernel<T, 0, 8>>(0, 1, 128, 32768, x, y);
            if (which == "n8mn") launch<wgmma_narrow_kernel<T, 1, 8>>(0, 1, 128, 32768, x, y);
            if (which == "n16") launch<wgmma_narrow_kernel<T, 0, 16>>(0, 1, 128, 32768, x, y);
            if (which == "n16mn") launch<wgmma_narrow_kernel<T, 1, 16>>(0, 1, 128, 32768, x, y);
        };
        half ? go(__half{}) : go(__nv_bfloat16{});
    });
}

// A producer and a consumer warp over the stages of a Ring. out [rounds, 32].
template <int kStages> __global__ void ring_kernel(gptr<int> out, int rounds) {
    Ring<kStages>& ring = smem_struct<Ring<kStages>>(0);
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) ring.init(1);
    __syncthreads();
    Place<kStages> at;
    for (int i = 0; i < rounds; ++i, at.advance()) {
        const uint32_t stage = kData + at.stage() * 128;
        if (threadIdx.x < 32) {
            ring.acquire(at);
            st_shared_4(stage + lane * 4, i * 100 + lane);
            __syncwarp();
            if (lane == 0) ring.fill(at);
        } else {
            ring.wait(at);
            out[i * 32 + lane] = emulate::load_shared<int>(stage + (31 - lane) * 4, {});
            __syncwarp();
            if (lane == 0) ring.release(at);
        }
    }
}
EXPORT const char* run_ring(int stages, int rounds, int* out) {
    return outcome([=] {
        const gptr<int> to = device_ptr(out, rounds * 32, "out");
        if (stages == 2) launch<ring_kernel<2>>(0, 1, 64, 4096, to, rounds);
        else launch<ring_kernel<3>>(0, 1, 64, 4096, to, rounds);
    });
}

// Warpgroup 0 gives registers away, warpgroup 1 takes them: it has to wait for the first. out: when each went on.
__global__ void registers_kernel(gptr<int> out, gptr<const int> x) {
    if (threadIdx.x < 128) {
        int slow = 0;
        for (int i = 0; i < 10; ++i) slow += x[0], __syncwarp();
        setmaxnreg_dec<24>();
        if (threadIdx.x == 0) out[0] = ptx::globaltimer() + slow;
    } else if (threadIdx.x < 256) {
        setmaxnreg_inc<232>();
        if (threadIdx.x == 128) out[1] = ptx::globaltimer();
    }
}
EXPORT const char* run_registers(int* out, int* x) {
    return outcome([=] { launch<registers_kernel>(0, 1, 512, 0, device_ptr(out, 2, "out"), input(x, 1, "x")); });
}

// bar_any: any[round][thread] of a vote in which only thread `round` says yes, and round 2 nobody.
__global__ void any_kernel(gptr<int> out) {
    for (int round = 0; round < 3; ++round)
        out[round * 64 + threadIdx.x] = named_barrier_any(5, 64, round < 2 && int(threadIdx.x) == round * 40);
}
EXPORT const char* run_any(int* out) {
    return outcome([=] { launch<any_kernel>(0, 1, 64, 0, device_ptr(out, 192, "out")); });
}

// ---------------------------------------------------------------- broken rules, at the line marked BAD <name>
struct Args {
    CUtensorMap map;  // 16 rows of 64 columns
    gptr<float> out;
};
// One TMA copy of two 8-row matrices to kData, and a wait for it.
DEV void copy(const Args& p, uint32_t bar, uint32_t phase) {
    if (threadIdx.x == 0) {
        mbar_arrive_tx(bar, 2048);
        tma_load_4d(kData, &p.map, bar, 0, 0, 0);
    }
    mbar_wait(bar, phase);
}
DEV void product(float (&d)[4] AT) {
    wgmma_narrow<__half, 0, 0>(d, desc_sw128(kData, 1, 1024), desc_sw128(kData, 1, 1024), at);
}

template <bool kWrong> __global__ void tma_not_awaited(Args p) {
    start_barrier(kBar, 1);
    if (threadIdx.x == 0) mbar_arrive_tx(kBar, 2048), tma_load_4d(kData, &p.map, kBar, 0, 0, 0);
    if (!kWrong) mbar_wait(kBar, 0);
    p.out[threadIdx.x] = ptx::ld_shared_16(kData + threadIdx.x * 16).x;  // BAD tma_not_awaited
    mbar_wait(kBar, 0);
}
template <bool kWrong> __global__ void waited_for_the_wrong_phase(Args p) {
    start_barrier(kBar, 1);
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) mbar_arrive_tx(kBar, 2048), tma_load_4d(kData, &p.map, kBar, 0, 0, 0);
        mbar_wait(kBar, kWrong ? 0 : i);
        p.out[threadIdx.x] = ptx::ld_shared_16(kData + threadIdx.x * 16).x;  // BAD waited_for_the_wrong_phase
        __syncthreads();
    }
    mbar_wait(kBar, 1);
}
template <bool kWrong> __global__ void tma_refills_too_early(Args p) {
    start_barrier(kBar, 1);
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) {
            mbar_arrive_tx(kBar, 2048);
            tma_load_4d(kData, &p.map, kBar, 0, 0, 0);  // BAD tma_refills_too_early
        }
        mbar_wait(kBar, i);
        p.out[threadIdx.x] = ptx::ld_shared_16(kData + threadIdx.x * 16).x;
        if (!kWrong) __syncthreads();
    }
}
template <bool kWrong> __global__ void mbarrier_not_fenced(Args p) {
    start_barrier(kBar, 1, !kWrong);
    if (threadIdx.x == 0) {
        mbar_arrive_tx(kBar, 2048);
        tma_load_4d(kData, &p.map, kBar, 0, 0, 0);  // BAD mbarrier_not_fenced
    }
    mbar_wait(kBar, 0);
}
template <bool kWrong> __global__ void mbarrier_not_initialised(Args) {
    start_barrier(kBar, 128);
    mbar_arrive(kBar + 8 * kWrong);  // BAD mbarrier_not_initialised
}
template <bool kWrong> __global__ void one_arrival_too_many(Args p) {
    start_barrier(kBar, 1);
    if (threadIdx.x == 0) {
        mbar_arrive_tx(kBar, 2048);
        if (kWrong) mbar_arrive(kBar);  // BAD one_arrival_too_many
        tma_load_4d(kData, &p.map, kBar, 0, 0, 0);
    }
    mbar_wait(kBar, 0);
}
template <bool kWrong> __global__ void too_few_bytes_announced(Args p) {
    start_barrier(kBar, 1);
    if (threadIdx.x == 0) {
        mbar_arrive_tx(kBar, kWrong ? 4096 : 2048);
        tma_load_4d(kData, &p.map, kBar, 0, 0, 0);
    }
    mbar_wait(kBar, 0);  // BAD too_few_bytes_announced
}
template <bool kWrong> __global__ void no_proxy_fence(Args p) {
    start_barrier(kBar, 1);
    for (int i = threadIdx.x; i < 512; i += 128) st_shared_16(kData + i * 16, uint4{});
    if (!kWrong) fence_proxy_async();
    __syncthreads();
    float d[4];
    wgmma_fence();
    product(d);  // BAD no_proxy_fence
    wgmma_commit();
    wgmma_wait<0>();
    p.out[threadIdx.x] = d[0];
}
template <bool kWrong> __global__ void proxy_fence_after_the_barrier(Args p) {
    start_barrier(kBar, 1);
    for (int i = threadIdx.x; i < 512; i += 128) st_shared_16(kData + i * 16, uint4{});
    if (!kWrong) fence_proxy_async();
    __syncthreads();
    if (kWrong) fence_proxy_async();
    float d[4];
    wgmma_fence();
    product(d);  // BAD proxy_fence_after_the_barrier
    wgmma_commit();
    wgmma_wait<0>();
    p.out[threadIdx.x] = d[0];
}
template <bool kWrong> __global__ void no_wgmma_fence(Args p) {
    for (int i = threadIdx.x; i < 512; i += 128) st_shared_16(kData + i * 16, uint4{});
    fence_proxy_async();
    __syncthreads();
    float d[4];
    if (!kWrong) wgmma_fence();
    product(d);  // BAD no_wgmma_fence
    wgmma_commit();
    wgmma_wait<0>();
    p.out[threadIdx.x] = d[0];
}
// The operands are handed back before the product that reads them is through.
template <bool kWrong> __global__ void freed_before_the_product_is_done(Args p) {
    for (int i = threadIdx.x; i < 512; i += 128) st_shared_16(kData + i * 16, uint4{});
    fence_proxy_async();
    __syncthreads();
    float d[4];
    wgmma_fence();
    product(d);  // BAD freed_before_the_product_is_done
    wgmma_commit();
    if (!kWrong) wgmma_wait<0>();
    __syncthreads();
    if (threadIdx.x < 32) st_shared_16(kData + threadIdx.x * 16, uint4{});
    if (kWrong) wgmma_wait<0>();
    p.out[threadIdx.x] = d[0];
}
// Members of a struct in shared memory.
struct Note {
    shared<int> sum;
    shared<int[4][32]> lines;
};
template <bool kWrong> __global__ void member_without_barrier(Args p) {
    Note& note = smem_struct<Note>(0);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    note.lines[warp][lane] = 3;
    if (!kWrong) __syncthreads();
    p.out[threadIdx.x] = note.lines[3 - warp][lane];  // BAD member_without_barrier
}
template <bool kWrong> __global__ void member_written_by_two(Args p) {
    Note& note = smem_struct<Note>(0);
    __syncthreads();  // BAD member_written_by_two
    if (threadIdx.x % 32 == 0 && (kWrong || threadIdx.x == 0)) note.sum = 1;
    __syncthreads();
    p.out[threadIdx.x] = note.sum;
}
template <bool kWrong> __global__ void member_past_the_end(Args) {
    Note& note = smem_struct<Note>(0);
    note.lines[threadIdx.x / 32 + kWrong][threadIdx.x % 32] = 1;  // BAD member_past_the_end
}
template <bool kWrong> __global__ void registers_that_nobody_gives(Args) {
    if (threadIdx.x < 128 && !kWrong) setmaxnreg_dec<96>();
    if (threadIdx.x >= 384) setmaxnreg_inc<160>();  // BAD registers_that_nobody_gives
}

#define KERNELS(X)                                                                                               \
    X(tma_not_awaited) X(waited_for_the_wrong_phase) X(tma_refills_too_early) X(mbarrier_not_fenced)             \
    X(mbarrier_not_initialised) X(one_arrival_too_many) X(too_few_bytes_announced) X(no_proxy_fence)             \
    X(proxy_fence_after_the_barrier) X(no_wgmma_fence) X(freed_before_the_product_is_done)                       \
    X(member_without_barrier) X(member_written_by_two) X(member_past_the_end) X(registers_that_nobody_gives)

EXPORT const char* run_check(const char* name, int wrong, uint16_t* x, float* out) {
    return outcome([=] {
        const Args p{map_of(x, 4, {64, 16, 1, 1}, {128, 2048, 2048}, {64, 16, 1, 1}), device_ptr(out, 128, "out")};
        const std::string which = name;
        const int threads = which == "registers_that_nobody_gives" ? 512 : 128;
#define TRY(kernel)                                                                       \
    if (which == #kernel && wrong) return launch<kernel<true>>(0, 1, threads, 16384, p); \
    if (which == #kernel) return launch<kernel<false>>(0, 1, threads, 16384, p);
        KERNELS(TRY)
        throw std::runtime_error("no such kernel: " + which);
    });
}
