// Rung 6: grouped heads and split keys. The query heads that share a KV head become rows of one tile, token by token,
// so that its keys are read once; and where tiles are fewer than SMs, a tile's keys are cut into parts. The CTA that
// comes last merges them.
#include "ladder/parts.cuh"

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
    const int tile = blockIdx.x / p.splits, part = blockIdx.x % p.splits, kv_head = blockIdx.y, sequence = blockIdx.z;
    const int first = tile * kRows, rows = min(kRows, p.tokens * p.group() - first);
    const auto token = [&](int r) { return (first + r) / p.group(); };
    const auto at = [&](int r) { return p.row(sequence, token(r), kv_head * p.group() + (first + r) % p.group()); };
    const int blocks = (p.visible(token(rows - 1)) + kKeys - 1) / kKeys, each = (blocks + p.splits - 1) / p.splits;
    const int begin = part * each * kKeys, end = min(p.visible(token(rows - 1)), begin + each * kKeys);
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

    copy<kRows>(queries, rows, [&](int r) { return p.q + at(r); });
    ptx::cp_async_commit();
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(begin + i * kKeys);
    ptx::cp_async_wait<kStages - 1>();  // the oldest of the groups, the queries, is there
    __syncthreads();
    uint32_t q[kD / 16][4];
#pragma unroll
    for (int d = 0; d < kD / 16; ++d)
        ptx::ldmatrix_x4(q[d], queries + place(warp * 16 + lane % 16, 2 * d + lane / 16));
    float o[kD / 8][4] = {};
    RowState<1> state;
    state.clear();

    for (int block = begin; block < end; block += kKeys) {
        ptx::cp_async_wait<kStages - 2>();
        __syncthreads();  // this block is there for all, and all have read the one before
        fetch(block + (kStages - 1) * kKeys);
        const smem_addr keys = stage(block), values = keys + kPanelBytes;
        if (warp * 16 >= rows) continue;  // a warp without rows only copies
        float s[1][kKeys / 8][4] = {};
        float fade[1][2];
        scores(s, q, keys, lane);
        if (block + kKeys > p.visible(token(0)))  // the first row sees fewest
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int row = warp * 16 + e / 2 * 8 + lane / 4, column = j * 8 + lane % 4 * 2 + e % 2;
                    if (block + column >= p.visible(token(row))) s[0][j][e] = kMinusInf;
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
    const int group = (sequence * p.kv_heads + kv_head) * (gridDim.x / p.splits) + tile, slot = group * p.splits;
    const gptr<float> parts = p.parts + int64_t(slot + part) * kRows * (kD + 1);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = warp * 16 + h * 8 + lane / 4;
        if (row >= rows) continue;
        const gptr<uint32_t> out = ptr_cast<uint32_t>(p.out + at(row));
        const gptr<float2> mine = ptr_cast<float2>(parts + kRows + row * kD);
        if (p.splits > 1 && lane % 4 == 0) parts[row] = lse2[0][h];
#pragma unroll
        for (int j = 0; j < kD / 8; ++j) {
            const float2 two = make_float2(o[j][2 * h] * inverse[0][h], o[j][2 * h + 1] * inverse[0][h]);
            if (p.splits > 1) mine[j * 4 + lane % 4] = two;
            else out[j * 4 + lane % 4] = ptx::pack2<T>(two.x, two.y);
        }
    }
    if (p.splits == 1) return;
    __syncthreads();  // all of this part is stored
    const bool last = threadIdx.x == 0 && last_to_arrive(p.arrived + group, p.splits);
    if (!ptx::named_barrier_any(1, kThreads, last)) return;
    for (int i = threadIdx.x * 2; i < rows * kD; i += kThreads * 2)
        ptr_cast<uint32_t>(p.out + at(i / kD) + i % kD)[0] = merged<kRows>(p, slot, i / kD, i % kD);
}

POD_RUNG(dim3(ceil_div(p.tokens * p.group(), kRows) * p.splits, p.kv_heads, p.sequences), kThreads, kSmem)
