// Hopper's rung 3: roles. One warpgroup only produces: it asks for keys as soon as a stage is free, and gives its
// registers to the two that consume. No barrier joins all any more, so one of them may multiply while the other
// computes exponentials.
#include "ladder/hopper.cuh"

constexpr int kGroups = 2, kThreads = (1 + kGroups) * 128, kRows = kGroups * 64, kKeys = 128;
constexpr int kStages = 2, kStageBytes = 2 * kTile, kSmem = kTile + kStages * kStageBytes + 1024;

struct Control {
    Ring<kStages> kv;
    Ring<1> q;
};

// S = Q K^T: 64 rows by 128 keys, 16 columns at a time.
DEV void scores(float (&s)[64], uint64_t q, uint64_t k) {
    ptx::wgmma_fence();
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
        const int step = (d / 4 * int(kPanel) + d % 4 * 32) >> 4;
        d == 0 ? ptx::wgmma_ss<T, 0>(s, q + step, k + step) : ptx::wgmma_ss<T, 1>(s, q + step, k + step);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::touch(s);
}
// O += P V, 16 keys at a time. The lanes hold the scores as the next product wants its left operand.
DEV void accumulate(float (&o)[64], const float (&s)[64], uint64_t v) {
    uint32_t p[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = ptx::pack2<T>(s[2 * i], s[2 * i + 1]);
    ptx::wgmma_fence();
#pragma unroll
    for (int t = 0; t < kKeys / 16; ++t) ptx::wgmma_rs<T>(o, p + 4 * t, v + (t * 2048 >> 4));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::touch(o);
}

__global__ void __launch_bounds__(kThreads, 1) attention(const __grid_constant__ Problem p,
                                                      const __grid_constant__ Maps maps) {
    const int role = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    const int kv_head = blockIdx.y, sequence = blockIdx.z;
    const int first = blockIdx.x * kRows, rows = min(kRows, p.tokens * p.group() - first);
    const auto token = [&](int r) { return (first + r) / p.group(); };
    const auto at = [&](int r) { return p.row(sequence, token(r), kv_head * p.group() + (first + r) % p.group()); };
    const int end = p.visible(token(rows - 1));
    const smem_addr queries = ptx::smem_u32(ptx::dynamic_smem());
    const auto stage = [&](Place<kStages> at) { return queries + kTile + at.stage() * kStageBytes; };
    Control& control = ptx::smem_struct<Control>(kTile + kStages * kStageBytes);
    const auto fetch = [&](int block, Place<kStages> to) {
        control.kv.acquire(to);
        control.kv.expect(to, kStageBytes);
        for (int panel = 0; panel < 2; ++panel) {
            const smem_addr keys = stage(to) + panel * kPanel, full = control.kv.filled(to);
            ptx::tma_load_5d(keys, &maps.k, full, block, panel, kv_head, sequence);
            ptx::tma_load_5d(keys + kTile, &maps.v, full, block, panel, kv_head, sequence);
        }
    };

    if (threadIdx.x == 0) {
        control.kv.init(4 * kGroups);  // readers are warps
        control.q.init(1);
        ptx::fence_mbar_init();
    }
    __syncthreads();  // the mbarriers are there
    if (role == 0) {
        ptx::setmaxnreg_dec<24>();
        if (threadIdx.x != 0) return;
        control.q.expect({}, kTile);
        for (int panel = 0; panel < 2; ++panel)
            ptx::tma_load_4d(queries + panel * kPanel, &maps.q, control.q.filled({}), kv_head * p.group(),
                             sequence * p.tokens + token(0), panel);
        Place<kStages> place;
        for (int block = 0; block < end; block += kKeys, place.advance()) fetch(block, place);
        return;
    }
    ptx::setmaxnreg_inc<240>();
    control.q.wait({});
    const uint64_t q = ptx::desc_sw128(queries + warp / 4 * 64 * 128, 1, 1024);
    float o[64] = {};
    RowState<1> state;
    state.clear();

    Place<kStages> place;
    for (int block = 0; block < end; block += kKeys, place.advance()) {
        control.kv.wait(place);
        float s[1][16][4], fade[1][2];
        float(&flat)[64] = reinterpret_cast<float(&)[64]>(s);
        scores(flat, q, ptx::desc_sw128(stage(place), 1, 1024));
        if (block + kKeys > p.visible(token(0)))  // the first row sees fewest
#pragma unroll
            for (int i = 0; i < 64; ++i) {
                const int row = warp * 16 + i % 4 / 2 * 8 + lane / 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
                if (block + column >= p.visible(token(row))) flat[i] = kMinusInf;
            }
        state.update(s, fade, p.scale_log2);
#pragma unroll
        for (int i = 0; i < 64; ++i) o[i] *= fade[0][i % 4 / 2];
        accumulate(o, flat, ptx::desc_sw128(stage(place) + kTile, kPanel, 1024));
        if (lane == 0) control.kv.release(place);
    }

    float inverse[1][2], lse2[1][2];
    state.finish(inverse, lse2, p.scale_log2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = warp * 16 + h * 8 + lane / 4;
        if (row >= rows) continue;
        const gptr<uint32_t> out = ptr_cast<uint32_t>(p.out + at(row));
#pragma unroll
        for (int j = 0; j < kD / 8; ++j)
            out[j * 4 + lane % 4] =
                ptx::pack2<T>(o[4 * j + 2 * h] * inverse[0][h], o[4 * j + 2 * h + 1] * inverse[0][h]);
    }
}

POD_RUNG(dim3(ceil_div(p.tokens * p.group(), kRows), p.kv_heads, p.sequences), kThreads, kSmem, maps_of(*call))
