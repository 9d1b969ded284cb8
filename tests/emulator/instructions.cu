// One kernel an instruction. Each only moves registers in and out; test_emulator.py computes what they should hold.
#include "host.h"
#include "include/ptx90.cuh"
using namespace ptx;

// x [32, 8] 16-bit rows; lane l points at row order[l]; out [32 lanes, N]
template <int N, bool kTrans>
__global__ void ldmatrix_kernel(gptr<const uint4> x, gptr<const int> order, gptr<uint32_t> out) {
    const int lane = threadIdx.x;
    sptr<uint4> rows = dynamic_smem<uint4>();
    rows[lane] = x[lane];
    __syncwarp();
    const smem_addr mine = smem_u32(rows + int(order[lane]));
    uint32_t r[N];
    if constexpr (N == 4 && kTrans) ldmatrix_x4_trans(r, mine);
    else if constexpr (N == 4) ldmatrix_x4(r, mine);
    else if constexpr (kTrans) ldmatrix_x2_trans(r, mine);
    else ldmatrix_x2(r, mine);
    for (int i = 0; i < N; ++i) out[lane * N + i] = r[i];
}
EXPORT const char* run_ldmatrix(int n, int trans, uint4* x, int* order, uint32_t* out) {
    return outcome([=] {
        auto go = [=](auto run) { run(input(x, 32, "x"), input(order, 32, "order"), device_ptr(out, 32 * n, "out")); };
        if (n == 4 && trans) go([](auto... a) { launch<ldmatrix_kernel<4, true>>(0, 1, 32, 512, a...); });
        else if (n == 4) go([](auto... a) { launch<ldmatrix_kernel<4, false>>(0, 1, 32, 512, a...); });
        else if (trans) go([](auto... a) { launch<ldmatrix_kernel<2, true>>(0, 1, 32, 512, a...); });
        else go([](auto... a) { launch<ldmatrix_kernel<2, false>>(0, 1, 32, 512, a...); });
    });
}

// a [32, 4], b [32, 2] packed pairs and d [32, 4] floats, by lane
template <class T> __global__ void mma_kernel(gptr<const uint32_t> a, gptr<const uint32_t> b, gptr<float> d) {
    const int lane = threadIdx.x;
    uint32_t fa[4];
    float fd[4];
    for (int i = 0; i < 4; ++i) fa[i] = a[lane * 4 + i], fd[i] = d[lane * 4 + i];
    mma_16816<T>(fd, fa, b[lane * 2], b[lane * 2 + 1]);
    for (int i = 0; i < 4; ++i) d[lane * 4 + i] = fd[i];
}
EXPORT const char* run_mma(int half, uint32_t* a, uint32_t* b, float* d) {
    return outcome([=] {
        auto pa = input(a, 128, "a"), pb = input(b, 64, "b");
        if (half) launch<mma_kernel<__half>>(0, 1, 32, 0, pa, pb, device_ptr(d, 128, "d"));
        else launch<mma_kernel<__nv_bfloat16>>(0, 1, 32, 0, pa, pb, device_ptr(d, 128, "d"));
    });
}

// out [9, 32]: every way in which lanes talk to each other, given x [32]
__global__ void lanes_kernel(gptr<const uint32_t> x, gptr<uint32_t> out) {
    const int lane = threadIdx.x;
    const uint32_t v = x[lane];
    out[lane] = movm_trans(v);
    out[32 + lane] = __shfl_sync(~0u, v, (lane * 7 + 3) % 32);
    out[64 + lane] = __shfl_xor_sync(~0u, v, 5);
    out[96 + lane] = __shfl_up_sync(~0u, v, 3);
    out[128 + lane] = __shfl_down_sync(~0u, v, 3);
    out[160 + lane] = __ballot_sync(~0u, v & 1);
    out[192 + lane] = __any_sync(~0u, v == 5) + 2 * __any_sync(~0u, v == 0xdead);
    out[224 + lane] = __all_sync(~0u, v != 0xdead) + 2 * __all_sync(~0u, v & 1);
    out[256 + lane] = elect_one();
}
EXPORT const char* run_lanes(uint32_t* x, uint32_t* out) {
    return outcome([=] { launch<lanes_kernel>(0, 1, 32, 0, input(x, 32, "x"), device_ptr(out, 288, "out")); });
}

// Two groups of cp.async, one of them with every other copy switched off; out [3, 64] chunks of 16 bytes.
__global__ void cp_async_kernel(gptr<const uint4> x, gptr<uint4> out) {
    const int t = threadIdx.x;
    const smem_addr mine = smem_u32(dynamic_smem<uint4>() + t), other = mine + 64 * 16;
    cp_async_16(mine, x + t);
    cp_async_commit();
    cp_async_16(other, x + 64 + t, t % 2 == 0);
    cp_async_commit();
    cp_async_wait<1>();
    st_global_16(out + t, ld_shared_16(mine));
    cp_async_wait<0>();
    st_global_16(out + 64 + t, ld_shared_16(other));
    __syncthreads();
    st_global_16(out + 128 + t, ld_shared_16(smem_u32(dynamic_smem<uint4>() + (63 - t))));
}
EXPORT const char* run_cp_async(uint4* x, uint4* out) {
    return outcome([=] { launch<cp_async_kernel>(0, 1, 64, 2048, input(x, 128, "x"), device_ptr(out, 192, "out")); });
}

// The arithmetic wrappers, on the host side of the same source: conversions need no warp.
EXPORT void run_pack(int half, int n, const float* x, uint32_t* packed, float* back) {
    for (int i = 0; i < n; ++i) {
        packed[i] = half ? pack2<__half>(x[i], -x[i]) : pack2<__nv_bfloat16>(x[i], -x[i]);
        const float2 pair = half ? unpack2<__half>(packed[i]) : unpack2<__nv_bfloat16>(packed[i]);
        back[2 * i] = pair.x, back[2 * i + 1] = pair.y;
    }
}
EXPORT void run_unpack(int half, const uint32_t* packed, int n, float* back) {
    for (int i = 0; i < n; ++i) {
        const float2 pair = half ? unpack2<__half>(packed[i]) : unpack2<__nv_bfloat16>(packed[i]);
        back[2 * i] = pair.x, back[2 * i + 1] = pair.y;
    }
}
EXPORT void run_ex2(int n, const float* x, float* y) {
    for (int i = 0; i < n; ++i) y[i] = ex2(x[i]);
}
