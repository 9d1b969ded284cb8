// Rung 2: tiles in shared memory. A CTA has 128 rows of one head. Its threads fetch a block of 64 keys and values
// together, each some of it, and then all rows read it from shared memory.
#include "ladder/ladder.cuh"

constexpr int kThreads = 128, kRows = kThreads, kKeys = 64;
constexpr int kChunks = kD / 8, kPanelBytes = kKeys * kD * 2;  // 16-byte pieces of a row; bytes of a block of keys

// Eight products of 16-bit numbers, summed in 32 bits.
DEV float dot(uint4 a, uint4 b) {
    const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 two = ptx::unpack2<T>(x[i]), other = ptx::unpack2<T>(y[i]);
        sum += two.x * other.x + two.y * other.y;
    }
    return sum;
}
// o = o x fade + weight x v, for eight columns.
DEV void add(float* o, float fade, float weight, uint4 v) {
    const uint32_t x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 two = ptx::unpack2<T>(x[i]);
        o[2 * i] = o[2 * i] * fade + weight * two.x;
        o[2 * i + 1] = o[2 * i + 1] * fade + weight * two.y;
    }
}

// `rows` rows, `stride` elements apart, by all threads: neighbours fetch neighbouring pieces.
DEV void copy(sptr<uint4> to, gptr<const T> from, int stride, int rows) {
#pragma unroll 8
    for (int i = threadIdx.x; i < kKeys * kChunks; i += kThreads) {
        const int row = i / kChunks, chunk = i % kChunks;
        if (row < rows) to[i] = ptr_cast<const uint4>(from + int64_t(row) * stride)[chunk];
    }
}

__global__ void __launch_bounds__(kThreads) attention(const __grid_constant__ Problem p) {
    const int first = blockIdx.x * kRows, token = first + threadIdx.x, head = blockIdx.y, sequence = blockIdx.z;
    const int end = p.visible(min(first + kRows, p.tokens) - 1);  // the last row sees most
    const sptr<uint4> keys = ptx::dynamic_smem<uint4>(), values = keys + kKeys * kChunks;

    uint4 q[kD / 8];
    float o[kD] = {};
    float m = -INFINITY, l = 0;
    const gptr<const uint4> query = ptr_cast<const uint4>(p.q + p.row(sequence, min(token, p.tokens - 1), head));
#pragma unroll
    for (int i = 0; i < kD / 8; ++i) q[i] = query[i];

    for (int block = 0; block < end; block += kKeys) {
        const int64_t from = p.key(sequence, block, head / p.group());
        __syncthreads();  // all have read the block before
        copy(keys, p.k + from, p.kv_heads * kD, end - block);
        copy(values, p.v + from, p.kv_heads * kD, end - block);
        __syncthreads();  // and this one is there
        const int seen = token < p.tokens ? min(kKeys, p.visible(token) - block) : 0;
#pragma unroll 1
        for (int key = 0; key < seen; ++key) {
            float s = 0;
#pragma unroll
            for (int i = 0; i < kD / 8; ++i) s += dot(q[i], keys[key * kChunks + i]);
            const float top = fmaxf(m, s * p.scale_log2);
            const float fade = ptx::ex2(m - top), weight = ptx::ex2(s * p.scale_log2 - top);
            l = l * fade + weight;
            m = top;
#pragma unroll
            for (int i = 0; i < kD / 8; ++i) add(o + 8 * i, fade, weight, values[key * kChunks + i]);
        }
    }

    if (token >= p.tokens) return;
    const gptr<uint32_t> out = ptr_cast<uint32_t>(p.out + p.row(sequence, token, head));
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) out[i] = ptx::pack2<T>(o[2 * i] / l, o[2 * i + 1] / l);
}

POD_RUNG(dim3(ceil_div(p.tokens, kRows), p.q_heads, p.sequences), kThreads, 2 * kPanelBytes)
