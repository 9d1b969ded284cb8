// What each instruction of attention costs in energy: one kind of work on every SM until it is done, so that the GPU's
// energy counter can price it. The suite joules-prices calls these; they compute nothing of use.
#include "../include/ptx90.cuh"
#include "../include/tensor_map.cuh"
#include <cstddef>

constexpr int kPanelRows = 128;
constexpr uint32_t kRowBytes = 128, kPanelBytes = kPanelRows * kRowBytes;  // a swizzled panel: rows of 64 columns

// So that nothing is optimised away: no sum is this one.
template <class X> DEV void keep(X x, int* out) {
    if (x == X(0x12345678)) *out = 1;
}

// ---------------------------------------------------------------- copies: one thread an SM, panels by TMA
namespace cluster {
DEV uint32_t rank() {
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
DEV void meet() { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
// One arrival at the barrier of that CTA.
DEV void arrive(uint32_t bar, uint32_t cta) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(bar), "r"(cta) : "memory");
}
// A box into the same place of both CTAs, each of which hears of it at its own barrier.
DEV void load_both(uint32_t dst, const CUtensorMap* m, uint32_t bar, int row, int panel) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6;"
                 ::"r"(dst), "l"(reinterpret_cast<uint64_t>(m)), "r"(bar), "r"(0), "r"(row), "r"(panel),
                 "h"(uint16_t(3)) : "memory");
}
}  // namespace cluster

DEV void load(uint32_t dst, const CUtensorMap* m, uint32_t bar, int row, int panel, bool once) {
    constexpr uint64_t kEvictFirst = 0x12F0000000000000;
    if (once)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1, {%3, %4, %5}], [%2], %6;"
                     ::"r"(dst), "l"(reinterpret_cast<uint64_t>(m)), "r"(bar), "r"(0), "r"(row), "r"(panel),
                     "l"(kEvictFirst) : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5}], [%2];"
                     ::"r"(dst), "l"(reinterpret_cast<uint64_t>(m)), "r"(bar), "r"(0), "r"(row), "r"(panel)
                     : "memory");
}

constexpr int kStages = 8;  // panels under way: 128 KB an SM
struct Barriers {
    uint64_t full[kStages], empty[kStages];
};

// Each CTA, or each pair of them, takes `copies` panels in turn with the others. A CTA of a pair reads half of each and
// sends it to both, when both have their stage free.
template <int kCtas> __global__ void __launch_bounds__(32)
copy(const __grid_constant__ CUtensorMap map, int tiles, int panels, int copies, bool once) {
    __shared__ Barriers bars;
    const smem_addr to = ptx::smem_u32(ptx::dynamic_smem<unsigned char>());
    const smem_addr full = ptx::smem_u32(bars.full), empty = ptx::smem_u32(bars.empty);
    const uint32_t mine = kCtas == 2 ? cluster::rank() : 0;
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            ptx::mbar_init(full + 8 * s, 1);
            ptx::mbar_init(empty + 8 * s, kCtas);
        }
        ptx::fence_mbar_init();
    }
    if constexpr (kCtas == 2) cluster::meet();
    if (threadIdx.x == 0) {
        int tile = blockIdx.x / kCtas % tiles;
        for (int i = 0; i < copies + kStages; ++i) {
            const int s = i % kStages, round = i / kStages;
            const smem_addr there = full + 8 * s, dst = to + s * kPanelBytes;
            if (round > 0) ptx::mbar_wait(there, (round - 1) & 1);
            if (i >= copies) continue;  // the last ones are on their way
            if (kCtas == 2 && round > 0) {
                for (uint32_t cta = 0; cta < kCtas; ++cta) cluster::arrive(empty + 8 * s, cta);
                ptx::mbar_wait(empty + 8 * s, (round - 1) & 1);
            }
            ptx::mbar_arrive_tx(there, kPanelBytes);
            const int row = tile / panels * kPanelRows, panel = tile % panels;
            if constexpr (kCtas == 2) {
                constexpr int kHalf = kPanelRows / 2;
                cluster::load_both(dst + mine * kHalf * kRowBytes, &map, there, row + mine * kHalf, panel);
            } else {
                load(dst, &map, there, row, panel, once);
            }
            tile += gridDim.x / kCtas;
            if (tile >= tiles) tile -= tiles;
        }
    }
    if constexpr (kCtas == 2) cluster::meet();  // no CTA ends while another still sends to it
}

// ---------------------------------------------------------------- products
constexpr int kDepth = 128;                                      // columns of both operands: two panels, eight steps
constexpr uint32_t kRowsA = 64, kBytesA = kRowsA * kDepth * 2;   // of a warpgroup

#define LIST4 "%0,%1,%2,%3"
#define LIST128 LIST64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
                       ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
                       ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
                       ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define ACC8(d) F8(d, 0)
#define ACC4(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define ACC128(d) ACC64(d), F8(d, 64), F8(d, 72), F8(d, 80), F8(d, 88), F8(d, 96), F8(d, 104), F8(d, 112), F8(d, 120)
// D[64xN] (+)= A[64x16] B[16xN], all K-major; A in shared memory or in registers. X0 to X5: the numbers of the operands
// behind D.
#define POD_PRODUCT(N, LIST, ACC, X0, X1, X2, X3, X4, X5)                                                             \
    template <int kAdd> DEV void product(float (&d)[N / 2], uint64_t a, uint64_t b) {                                 \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" X2 ", 0;\n"                                                 \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16"                                       \
                     " {" LIST "}, %" X0 ", %" X1 ", p, 1, 1, 0, 0;\n}\n"                                             \
                     : ACC(d) : "l"(a), "l"(b), "n"(kAdd));                                                           \
    }                                                                                                                 \
    template <int kAdd> DEV void product(float (&d)[N / 2], const uint32_t* a, uint64_t b) {                          \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" X5 ", 0;\n"                                                 \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16"                                       \
                     " {" LIST "}, {%" X0 ",%" X1 ",%" X2 ",%" X3 "}, %" X4 ", p, 1, 1, 0;\n}\n"                      \
                     : ACC(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd));                       \
    }
POD_PRODUCT(8, LIST4, ACC4, "4", "5", "6", "7", "8", "9")
POD_PRODUCT(16, LIST8, ACC8, "8", "9", "10", "11", "12", "13")
POD_PRODUCT(64, LIST32, ACC32, "32", "33", "34", "35", "36", "37")
POD_PRODUCT(128, LIST64, ACC64, "64", "65", "66", "67", "68", "69")
POD_PRODUCT(256, LIST128, ACC128, "128", "129", "130", "131", "132", "133")

// Enough warpgroups to keep the tensor cores busy, and as many tiles of B as there is room for: what stands still
// toggles no wire.
template <int N> struct Products {
    static constexpr int kGroups = N <= 64 ? 4 : 2, kTiles = N == 256 ? 2 : 4, kThreads = kGroups * 128;
    static constexpr uint32_t kBytesB = N * kDepth * 2, kB = kGroups * kBytesA, kBytes = kB + kTiles * kBytesB;
};

template <int N, bool kRegisters> __global__ void __launch_bounds__(Products<N>::kThreads, 1)
multiply(gptr<const uint4> data, int rounds, int* out) {
    using S = Products<N>;
    const smem_addr base = ptx::smem_u32(ptx::dynamic_smem<unsigned char>());
    for (uint32_t at = threadIdx.x; at < S::kBytes / 16; at += S::kThreads)
        ptx::st_shared_16(base + at * 16, data[at]);
    ptx::fence_proxy_async();
    __syncthreads();
    const int group = threadIdx.x / 128;
    const auto a_of = [&](int i) { return ptx::desc_sw128(base + (group + i) % S::kGroups * kBytesA, 1, 1024); };
    const auto b_of = [&](int i) { return ptx::desc_sw128(base + S::kB + i % S::kTiles * S::kBytesB, 1, 1024); };
    uint32_t a[kDepth / 4];
    if constexpr (kRegisters)
        for (int i = 0; i < kDepth / 4; ++i) a[i] = data[threadIdx.x + i * S::kThreads].x;
    float d[N / 2];
#pragma unroll 1
    for (int i = 0; i < rounds; ++i) {
        const uint64_t rows = a_of(i), columns = b_of(i);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) {
            const uint32_t step_a = (k / 4 * kRowsA * kRowBytes + k % 4 * 32) >> 4;
            const uint64_t b = columns + ((k / 4 * N * kRowBytes + k % 4 * 32) >> 4);
            if constexpr (kRegisters) k ? product<1>(d, a + 4 * k, b) : product<0>(d, a, b);
            else k ? product<1>(d, rows + step_a, b) : product<0>(d, rows, b);
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::touch(d);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum += d[i];
    keep(sum, out);
}

// ---------------------------------------------------------------- reading shared memory, and arithmetic
constexpr int kThreads = 512, kValues = 16;

// Where the next load goes depends on the one before, so that none can be left out, nor a word of it; `zero` is known
// only at run time. The other warps fill the wait.
__global__ void __launch_bounds__(kThreads, 1)
read_shared(gptr<const uint4> data, int rounds, uint32_t zero, int* out) {
    const smem_addr mine = ptx::smem_u32(ptx::dynamic_smem<uint4>()) + threadIdx.x * 16;
    for (int i = 0; i < kValues; ++i) ptx::st_shared_16(mine + i * kThreads * 16, data[i * kThreads + threadIdx.x]);
    smem_addr at = mine;
#pragma unroll 1
    for (int r = 0; r < rounds; ++r)
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
            const uint4 v = ptx::ld_shared_16(at + i * kThreads * 16);
            at = mine + ((v.x ^ v.y ^ v.z ^ v.w) & zero);
        }
    keep(at, out);
}

enum class Op : int { fma, exponential, packed };

// x -> b - x goes to and fro between two numbers; so does x -> 2^(-a x), for a over 4. Packed: two bf16 a register.
template <Op kOp> __global__ void __launch_bounds__(kThreads, 1)
compute(gptr<const float> data, int rounds, float minus_one, int* out) {
    constexpr int kStep = kThreads;
    float x[kValues], b[kValues];
    uint32_t pair[kValues], factor[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
        const float random = fabsf(data[i * kStep + threadIdx.x]);
        x[i] = random;
        b[i] = 8 + random;
        pair[i] = ptx::pack2<__nv_bfloat16>(random, random / 2);
        factor[i] = ptx::pack2<__nv_bfloat16>(-b[i], -b[i] - 1);
    }
#pragma unroll 1
    for (int r = 0; r < rounds; ++r)
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
            if constexpr (kOp == Op::fma) x[i] = fmaf(x[i], minus_one, b[i]);
            if constexpr (kOp == Op::exponential) x[i] = ptx::ex2(fmaf(x[i], minus_one * b[i], 0.f));
            if constexpr (kOp == Op::packed)
                asm volatile("{\n.reg .b32 t;\nfma.rn.bf16x2 t, %0, %1, %2;\nex2.approx.ftz.bf16x2 %0, t;\n}"
                             : "+r"(pair[i]) : "r"(factor[i]), "r"(0));
        }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) sum += x[i] + __uint_as_float(pair[i]);
    keep(sum, out);
}

// ---------------------------------------------------------------- waiting
enum class Wait : int { test, try_, hinted, barrier, alone };

// One try of a wait for the barrier's first phase; `try_` lets the hardware suspend the thread for as long as it likes,
// `hinted` for up to a millisecond.
template <Wait kWait> DEV bool completed(uint32_t bar) {
    uint32_t done;
    if constexpr (kWait == Wait::test)
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0;\n"
                     "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar) : "memory");
    else if constexpr (kWait == Wait::try_)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
                     "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar) : "memory");
    else
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0, %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar), "r"(1000000) : "memory");
    return done;
}

// The first warp sleeps for `ns` nanoseconds, the others wait for it: each thread at an mbarrier, or all at a named
// barrier; alone, there are no others. Tries: of all warps, counted by one lane each.
template <Wait kWait> __global__ void __launch_bounds__(kThreads, 1) wait_for(int64_t ns, unsigned long long* tries) {
    __shared__ uint64_t bar;
    const smem_addr there = ptx::smem_u32(&bar);
    if (threadIdx.x == 0) ptx::mbar_init(there, 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        for (const int64_t end = ptx::globaltimer() + ns; int64_t(ptx::globaltimer()) < end;) __nanosleep(20000);
        if (threadIdx.x == 0) ptx::mbar_arrive(there);
    } else if constexpr (kWait != Wait::barrier && kWait != Wait::alone) {
        unsigned long long tried = 1;
        while (!completed<kWait>(there)) ++tried;
        if (threadIdx.x % 32 == 0) atomicAdd(tries, tried);
    }
    if constexpr (kWait == Wait::barrier) ptx::named_barrier_sync(1, blockDim.x);
}

// ---------------------------------------------------------------- host
template <class... Params, class... Args>
static int launch(void (*kernel)(Params...), int pair, int ctas, int threads, int smem, cudaStream_t stream,
                  const Args&... args) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {unsigned(pair), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(ctas);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = smem;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

// `bytes` as rows of `row_bytes`, these as panels of 128 bytes.
static bool map_rows(CUtensorMap* map, const void* data, int64_t bytes, int row_bytes, int box_rows, int promotion) {
    const cuuint64_t dims[3] = {64, cuuint64_t(bytes / row_bytes), cuuint64_t(row_bytes / kRowBytes)};
    const cuuint64_t strides[2] = {cuuint64_t(row_bytes), kRowBytes};
    const cuuint32_t box[3] = {64, cuuint32_t(box_rows), 1};
    const auto l2 = promotion == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
    return make_map(map, false, data, 3, dims, strides, box, 2, l2);
}

extern "C" int pod_copy(const void* data, int64_t bytes, int row_bytes, int promotion, int once, int pair, int copies,
                        int ctas, cudaStream_t s) {
    CUtensorMap map;
    if (!map_rows(&map, data, bytes, row_bytes, kPanelRows / pair, promotion)) return cudaErrorNotSupported;
    const int tiles = bytes / kPanelBytes, panels = row_bytes / kRowBytes, smem = kStages * kPanelBytes;
    if (pair == 2) return launch(copy<2>, 2, ctas, 32, smem, s, map, tiles, panels, copies, bool(once));
    return launch(copy<1>, 1, ctas, 32, smem, s, map, tiles, panels, copies, bool(once));
}

template <int N> static int launch_multiply(const void* data, int registers, int rounds, int ctas, int* out,
                                            cudaStream_t s) {
    using P = Products<N>;
    const auto from = static_cast<const uint4*>(data);
    return launch(registers ? multiply<N, true> : multiply<N, false>, 1, ctas, P::kThreads, P::kBytes, s, from, rounds,
                  out);
}
extern "C" int pod_multiply(const void* data, int n, int registers, int rounds, int ctas, int* out, cudaStream_t s) {
    switch (n) {
        case 8: return launch_multiply<8>(data, registers, rounds, ctas, out, s);
        case 16: return launch_multiply<16>(data, registers, rounds, ctas, out, s);
        case 64: return launch_multiply<64>(data, registers, rounds, ctas, out, s);
        case 128: return launch_multiply<128>(data, registers, rounds, ctas, out, s);
        case 256: return launch_multiply<256>(data, registers, rounds, ctas, out, s);
    }
    return cudaErrorInvalidValue;
}
// Products of a CTA in one round: its warpgroups.
extern "C" int pod_groups(int n) { return n <= 64 ? 4 : 2; }

extern "C" int pod_read_shared(const void* data, int rounds, int ctas, int* out, cudaStream_t s) {
    constexpr int kBytes = kThreads * kValues * 16;
    return launch(read_shared, 1, ctas, kThreads, kBytes, s, static_cast<const uint4*>(data), rounds, 0, out);
}
extern "C" int pod_compute(const void* data, int op, int rounds, int ctas, int* out, cudaStream_t s) {
    constexpr void (*kKernels[])(gptr<const float>, int, float, int*) = {
        compute<Op::fma>, compute<Op::exponential>, compute<Op::packed>};
    return launch(kKernels[op], 1, ctas, kThreads, 0, s, static_cast<const float*>(data), rounds, -1.f, out);
}
extern "C" int pod_wait(int how, int64_t ns, int ctas, unsigned long long* tries, cudaStream_t s) {
    constexpr void (*kKernels[])(int64_t, unsigned long long*) = {
        wait_for<Wait::test>, wait_for<Wait::try_>, wait_for<Wait::hinted>, wait_for<Wait::barrier>,
        wait_for<Wait::alone>};
    const int threads = Wait(how) == Wait::alone ? 32 : kThreads;
    return launch(kKernels[how], 1, ctas, threads, 0, s, ns, tries);
}
