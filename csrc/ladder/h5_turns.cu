// Hopper's rung 5: turns. The two warpgroups take turns at the tensor cores: whose turn it is asks for both of its
// products and passes the turn on, so that one's softmax runs under the other's products.
#include "ladder/hopper.cuh"

constexpr int kGroups = 2, kThreads = (1 + kGroups) * 128, kRows = kGroups * 64, kKeys = 128;
constexpr int kStages = 2, kSmem = (1 + 2 * kStages) * kTile + 1024;

struct Control {
    Ring<kStages> k, v;
    Ring<1> q;
};

// Asks for S = Q K^T: 64 rows by 128 keys, 16 columns at a time.
DEV void scores(float (&s)[64], uint64_t q, uint64_t k) {
    ptx::wgmma_fence();
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
        const int step = (d / 4 * int(kPanel) + d % 4 * 32) >> 4;
        d == 0 ? ptx::wgmma_ss<T, 0>(s, q + step, k + step) : ptx::wgmma_ss<T, 1>(s, q + step, k + step);
    }
    ptx::wgmma_commit();
}
// Asks for O += P V, 16 keys at a time.
DEV void accumulate(float (&o)[64], const uint32_t (&p)[32], uint64_t v) {
    ptx::wgmma_fence();
#pragma unroll
    for (int t = 0; t < kKeys / 16; ++t) ptx::wgmma_rs<T>(o, p + 4 * t, v + (t * 2048 >> 4));
    ptx::wgmma_commit();
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
    const auto keys = [&](Place<kStages> at) { return queries + (1 + at.stage()) * kTile; };
    const auto values = [&](Place<kStages> at) { return queries + (1 + kStages + at.stage()) * kTile; };
    Control& control = ptx::smem_struct<Control>((1 + 2 * kStages) * kTile);
    const auto fetch = [&](Ring<kStages>& ring, const CUtensorMap& map, smem_addr to, int block, Place<kStages> at) {
        ring.acquire(at);
        ring.expect(at, kTile);
        for (int panel = 0; panel < 2; ++panel)
            ptx::tma_load_5d(to + panel * kPanel, &map, ring.filled(at), block, panel, kv_head, sequence);
    };

    if (threadIdx.x == 0) {
        control.k.init(4 * kGroups);  // readers are warps
        control.v.init(4 * kGroups);
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
        for (int block = 0; block < end; block += kKeys, place.advance()) {
            fetch(control.k, maps.k, keys(place), block, place);
            fetch(control.v, maps.v, values(place), block, place);
        }
        return;
    }
    ptx::setmaxnreg_inc<240>();
    control.q.wait({});
    const uint64_t q = ptx::desc_sw128(queries + warp / 4 * 64 * 128, 1, 1024);
    float s[1][16][4], fade[1][2];
    float(&flat)[64] = reinterpret_cast<float(&)[64]>(s);
    float o[64] = {};
    uint32_t weights[32];
    RowState<1> state;
    state.clear();
    const auto softmax = [&](int block) {
        if (block + kKeys > p.visible(token(0)))  // the first row sees fewest
#pragma unroll
            for (int i = 0; i < 64; ++i) {
                const int row = warp * 16 + i % 4 / 2 * 8 + lane / 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
                if (block + column >= p.visible(token(row))) flat[i] = kMinusInf;
            }
        state.update(s, fade, p.scale_log2);
    };
    const auto pack = [&] {  // the lanes hold the scores as the next product wants its left operand
#pragma unroll
        for (int i = 0; i < 32; ++i) weights[i] = ptx::pack2<T>(flat[2 * i], flat[2 * i + 1]);
    };

    const Turn<kGroups> turn(role - 1);
    Place<kStages> place;
    control.k.wait(place);
    scores(flat, q, ptx::desc_sw128(keys(place), 1, 1024));
    ptx::wgmma_wait<0>();
    ptx::touch(flat);
    if (lane == 0) control.k.release(place);
    softmax(0);
    pack();
    for (int block = kKeys; block < end; block += kKeys, place.advance()) {
        control.k.wait(place.next());
        turn.take();
        scores(flat, q, ptx::desc_sw128(keys(place.next()), 1, 1024));
        control.v.wait(place);
        accumulate(o, weights, ptx::desc_sw128(values(place), kPanel, 1024));
        turn.pass();
        ptx::wgmma_wait<1>();  // the scores are there, P V may go on
        ptx::touch(flat);
        if (lane == 0) control.k.release(place.next());
        softmax(block);
        ptx::wgmma_wait<0>();  // P V is through
        ptx::touch(o);
        if (lane == 0) control.v.release(place);
        pack();
#pragma unroll
        for (int i = 0; i < 64; ++i) o[i] *= fade[0][i % 4 / 2];
    }
    control.v.wait(place);
    accumulate(o, weights, ptx::desc_sw128(values(place), kPanel, 1024));
    ptx::wgmma_wait<0>();
    ptx::touch(o);

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
