// Rung 1: one thread a row. A thread holds one query and its output in registers, goes through the keys one by one, and
// keeps chapter 01's state: the maximum, the sum, the weighted values.
#include "ladder/ladder.cuh"

constexpr int kThreads = 128;

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

__global__ void __launch_bounds__(kThreads) attention(const __grid_constant__ Problem p) {
    const int row = blockIdx.x * kThreads + threadIdx.x;  // of [sequences, q_heads, tokens]
    const int token = row % p.tokens, head = row / p.tokens % p.q_heads, sequence = row / p.tokens / p.q_heads;
    if (sequence >= p.sequences) return;

    uint4 q[kD / 8];
    float o[kD] = {};
    float m = -INFINITY, l = 0;
    const gptr<const uint4> query = ptr_cast<const uint4>(p.q + p.row(sequence, token, head));
#pragma unroll
    for (int i = 0; i < kD / 8; ++i) q[i] = query[i];

#pragma unroll 1
    for (int key = 0; key < p.visible(token); ++key) {
        const gptr<const uint4> k = ptr_cast<const uint4>(p.k + p.key(sequence, key, head / p.group()));
        const gptr<const uint4> v = ptr_cast<const uint4>(p.v + p.key(sequence, key, head / p.group()));
        float s = 0;
#pragma unroll
        for (int i = 0; i < kD / 8; ++i) s += dot(q[i], k[i]);
        const float top = fmaxf(m, s * p.scale_log2);
        const float fade = ptx::ex2(m - top), weight = ptx::ex2(s * p.scale_log2 - top);
        l = l * fade + weight;
        m = top;
#pragma unroll
        for (int i = 0; i < kD / 8; ++i) add(o + 8 * i, fade, weight, v[i]);
    }

    const gptr<uint32_t> out = ptr_cast<uint32_t>(p.out + p.row(sequence, token, head));
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) out[i] = ptx::pack2<T>(o[2 * i] / l, o[2 * i + 1] / l);
}

POD_RUNG(dim3(ceil_div(p.sequences * p.q_heads * p.tokens, kThreads)), kThreads, 0)
