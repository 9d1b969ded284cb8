// Rung 7: two CTAs an SM. While one waits at its barrier or computes exponentials, the other multiplies. Half of the
// warps, each with twice the rows, and a ring of two stages: so two fit. And a piece of K or V that a warp has read now
// serves 32 rows.
#include "ladder/parts.cuh"

constexpr int kWarps = 4, kTiles = 2, kThreads = kWarps * 32, kWarpRows = kTiles * 16, kRows = kWarps * kWarpRows;
constexpr int kKeys = 64, kCtas = 2;
constexpr int kRowBytes = kD * 2, kChunks = kRowBytes / 16;  // 16-byte pieces of a row
constexpr int kQueryBytes = kRows * kRowBytes, kPanelBytes = kKeys * kRowBytes;
constexpr int kStages = 2, kStageBytes = 2 * kPanelBytes, kSmem = kQueryBytes + kStages * kStageBytes;

// Byte of 16-byte piece c of row r in shared memory.
DEV int place(int r, int c) { return r * kRowBytes + (c ^ r % 8) * 16; }

// kCount rows by all threads; at(r) is where row r begins. From `rows` on they become zeros, whatever lies there.
template <int kCount, class At> DEV void copy(smem_addr to, int rows, At at) {
    const int thread = ptx::opaque(threadIdx.x), row = thread / kChunks, chunk = thread % kChunks;
#pragma unroll
    for (int r = row; r < kCount; r += kThreads / kChunks)
        ptx::cp_async_16(to + place(r, chunk), at(r) + chunk * 8, r < rows);
}

// S += Q K^T, 32 rows by kKeys keys.
DEV void scores(float (&s)[kTiles][kKeys / 8][4], smem_addr queries, smem_addr keys, int lane) {
#pragma unroll 2
    for (int d = 0; d < kD / 16; ++d) {
        uint32_t q[kTiles][4];  // anew for each block: there are no registers to keep them
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
            ptx::ldmatrix_x4(q[r], queries + place(r * 16 + lane % 16, 2 * d + lane / 16));
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
            uint32_t b[4];
            ptx::ldmatrix_x4(b, keys + place(j * 16 + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
#pragma unroll
            for (int r = 0; r < kTiles; ++r) {
                ptx::mma_16816<T>(s[r][2 * j], q[r], b[0], b[1]);
                ptx::mma_16816<T>(s[r][2 * j + 1], q[r], b[2], b[3]);
            }
        }
    }
}
// O += P V. The lanes hold the scores exactly as the next product wants its left operand.
DEV void accumulate(float (&o)[kTiles][kD / 8][4], const float (&p)[kTiles][kKeys / 8][4], smem_addr values, int lane) {
#pragma unroll
    for (int t = 0; t < kKeys / 16; ++t) {
        uint32_t a[kTiles][4];
#pragma unroll
        for (int i = 0; i < 4 * kTiles; ++i) {
            const float(&four)[4] = p[i / 4][2 * t + i % 4 / 2];
            a[i / 4][i % 4] = ptx::pack2<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
        }
#pragma unroll
        for (int j = 0; j < kD / 16; ++j) {
            uint32_t b[4];
            ptx::ldmatrix_x4_trans(b, values + place(t * 16 + lane % 16, 2 * j + lane / 16));
#pragma unroll
            for (int r = 0; r < kTiles; ++r) {
                ptx::mma_16816<T>(o[r][2 * j], a[r], b[0], b[1]);
                ptx::mma_16816<T>(o[r][2 * j + 1], a[r], b[2], b[3]);
            }
        }
    }
}

__global__ void __launch_bounds__(kThreads, kCtas) attention(const __grid_constant__ Problem p) {
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
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(begin + i * kKeys);
    float o[kTiles][kD / 8][4] = {};
    RowState<kTiles> state;
    state.clear();

    for (int block = begin; block < end; block += kKeys) {
        ptx::cp_async_wait<kStages - 2>();
        __syncthreads();  // this block is there for all, and all have read the one before
        fetch(block + (kStages - 1) * kKeys);
        const smem_addr keys = stage(block), values = keys + kPanelBytes;
        if (warp * kWarpRows >= rows) continue;  // a warp without rows only copies
        float s[kTiles][kKeys / 8][4] = {};
        float fade[kTiles][2];
        scores(s, queries + warp * kWarpRows * kRowBytes, keys, lane);
        if (block + kKeys > p.visible(token(0)))  // the first row sees fewest
#pragma unroll
            for (int r = 0; r < kTiles * 2; ++r) {
                const int seen = p.visible(token(warp * kWarpRows + r * 8 + lane / 4)) - block - lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (j * 8 + e >= seen) s[r / 2][j][r % 2 * 2 + e] = kMinusInf;
            }
        state.update(s, fade, p.scale_log2);
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
#pragma unroll
            for (int j = 0; j < kD / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) o[r][j][e] *= fade[r][e / 2];
        accumulate(o, s, values, lane);
    }

    float inverse[kTiles][2], lse2[kTiles][2];
    state.finish(inverse, lse2, p.scale_log2);
    const int group = (sequence * p.kv_heads + kv_head) * (gridDim.x / p.splits) + tile, slot = group * p.splits;
    const gptr<float> parts = p.parts + int64_t(slot + part) * kRows * (kD + 1);
#pragma unroll
    for (int r = 0; r < kTiles * 2; ++r) {
        const int h = r % 2, row = warp * kWarpRows + r * 8 + lane / 4;
        if (row >= rows) continue;
        const gptr<uint32_t> out = ptr_cast<uint32_t>(p.out + at(row));
        const gptr<float2> mine = ptr_cast<float2>(parts + kRows + row * kD);
        if (p.splits > 1 && lane % 4 == 0) parts[row] = lse2[r / 2][h];
#pragma unroll
        for (int j = 0; j < kD / 8; ++j) {
            const float(&four)[4] = o[r / 2][j];
            const float2 two = make_float2(four[2 * h] * inverse[r / 2][h], four[2 * h + 1] * inverse[r / 2][h]);
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
