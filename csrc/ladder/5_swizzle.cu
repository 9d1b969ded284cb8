// Rung 5: swizzle. `ldmatrix` reads eight rows below each other at once; stored plainly, all eight pieces lie in the
// same four of the 32 banks of shared memory and wait for each other. An exclusive-or with the row's number spreads
// them.
#include "ladder/ladder.cuh"
#include "include/softmax.cuh"

constexpr int kWarps = 8, kThreads = kWarps * 32, kRows = kWarps * 16, kKeys = 64;
constexpr int kRowBytes = kD * 2, kChunks = kRowBytes / 16;  // 16-byte pieces of a row
constexpr int kQueryBytes = kRows * kRowBytes, kPanelBytes = kKeys * kRowBytes;
constexpr int kStages = 3, kStageBytes = 2 * kPanelBytes, kSmem = kQueryBytes + kStages * kStageBytes;

// Byte of 16-byte piece c of row r in shared memory.
DEV int place(int r, int c) { return r * kRowBytes + (c ^ r % 8) * 16; }

// kCount rows by all threads; at(r) is where row r begins. From `rows` on they become zeros, whatever lies there.
template <int kCount, class At> DEV void copy(smem_addr to, int rows, At at) {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
#pragma unroll
    for (int r = row; r < kCount; r += kThreads / kChunks)
        ptx::cp_async_16(to + place(r, chunk), at(r) + chunk * 8, r < rows);
}

// S += Q K^T, 16 rows by kKeys keys.
DEV void scores(float (&s)[1][kKeys / 8][4], const uint32_t (&q)[kD / 16][4], smem_addr keys, int lane) {
#pragma unroll
    for (int d = 0; d < kD / 16; ++d)
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
            uint32_t b[4];
            ptx::ldmatrix_x4(b, keys + place(j * 16 + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
            ptx::mma_16816<T>(s[0][2 * j], q[d], b[0], b[1]);
            ptx::mma_16816<T>(s[0][2 * j + 1], q[d], b[2], b[3]);
        }
}
// O += P V. The lanes hold the scores exactly as the next product wants its left operand.
DEV void accumulate(float (&o)[kD / 8][4], const float (&p)[1][kKeys / 8][4], smem_addr values, int lane) {
#pragma unroll
    for (int t = 0; t < kKeys / 16; ++t) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float(&four)[4] = p[0][2 * t + i / 2];
            a[i] = ptx::pack2<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
        }
#pragma unroll
        for (int j = 0; j < kD / 16; ++j) {
            uint32_t b[4];
            ptx::ldmatrix_x4_trans(b, values + place(t * 16 + lane % 16, 2 * j + lane / 16));
            ptx::mma_16816<T>(o[2 * j], a, b[0], b[1]);
            ptx::mma_16816<T>(o[2 * j + 1], a, b[2], b[3]);
        }
    }
}

__global__ void __launch_bounds__(kThreads) attention(const __grid_constant__ Problem p) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = blockIdx.x * kRows, head = blockIdx.y, sequence = blockIdx.z, kv_head = head / p.group();
    const int rows = min(kRows, p.tokens - first), end = p.visible(first + rows - 1);
    const smem_addr queries = ptx::smem_u32(ptx::dynamic_smem());
    const auto stage = [&](int block) { return queries + kQueryBytes + block / kKeys % kStages * kStageBytes; };
    const auto fetch = [&](int block) {  // past the end an empty group, so that the count goes on
        if (block < end) {
            copy<kKeys>(stage(block), end - block, [&](int r) { return p.k + p.key(sequence, block + r, kv_head); });
            copy<kKeys>(stage(block) + kPanelBytes, end - block,
                        [&](int r) { return p.v + p.key(sequence, block + r, kv_head); });
        }
        ptx::cp_async_commit();
    };

    copy<kRows>(queries, rows, [&](int r) { return p.q + p.row(sequence, first + r, head); });
    ptx::cp_async_commit();
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i * kKeys);
    ptx::cp_async_wait<kStages - 1>();  // the oldest of the groups, the queries, is there
    __syncthreads();
    uint32_t q[kD / 16][4];
#pragma unroll
    for (int d = 0; d < kD / 16; ++d)
        ptx::ldmatrix_x4(q[d], queries + place(warp * 16 + lane % 16, 2 * d + lane / 16));
    float o[kD / 8][4] = {};
    RowState<1> state;
    state.clear();

    for (int block = 0; block < end; block += kKeys) {
        ptx::cp_async_wait<kStages - 2>();
        __syncthreads();  // this block is there for all, and all have read the one before
        fetch(block + (kStages - 1) * kKeys);
        const smem_addr keys = stage(block), values = keys + kPanelBytes;
        float s[1][kKeys / 8][4] = {};
        float fade[1][2];
        scores(s, q, keys, lane);
        if (block + kKeys > p.visible(first))  // the first row sees fewest
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int row = warp * 16 + e / 2 * 8 + lane / 4, column = j * 8 + lane % 4 * 2 + e % 2;
                    if (block + column >= p.visible(first + row)) s[0][j][e] = kMinusInf;
                }
        state.update(s, fade, p.scale_log2);
#pragma unroll
        for (int j = 0; j < kD / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) o[j][e] *= fade[0][e / 2];
        accumulate(o, s, values, lane);
    }

    float inverse[1][2], lse2[1][2];
    state.finish(inverse, lse2, p.scale_log2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = warp * 16 + h * 8 + lane / 4;
        if (row >= rows) continue;
        const gptr<uint32_t> out = ptr_cast<uint32_t>(p.out + p.row(sequence, first + row, head));
#pragma unroll
        for (int j = 0; j < kD / 8; ++j)
            out[j * 4 + lane % 4] = ptx::pack2<T>(o[j][2 * h] * inverse[0][h], o[j][2 * h + 1] * inverse[0][h]);
    }
}

POD_RUNG(dim3(ceil_div(p.tokens, kRows), p.q_heads, p.sequences), kThreads, kSmem)
