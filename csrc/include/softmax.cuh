// Online softmax in registers. A thread holds rows g and g + 8 of each 16-row tile (g = lane / 4), of these the columns
// that mma_16816 gives it; the four lanes of a quad hold the whole row.
#pragma once
#include "ptx.cuh"

constexpr float kMinusInf = -INFINITY;
constexpr float kLn2 = 0.6931471805599453f;

DEV float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
DEV float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// The state (m, l) of a thread's rows: m in raw scores, l summed over this thread's columns only, until the end.
template <int kTiles> struct RowState {
    float m[kTiles][2], l[kTiles][2];

    DEV void clear() {
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
            for (int h = 0; h < 2; ++h) {
                m[r][h] = kMinusInf;
                l[r][h] = 0;
            }
    }

    // Scores s become probabilities under the new maximum; what was summed before must be multiplied by `fade`.
    // Scale and base change of the exponential are folded into one multiply-add: 2^(s * scale_log2 - m * scale_log2).
    template <int kCols> DEV void update(float (&s)[kTiles][kCols][4], float (&fade)[kTiles][2], float scale_log2) {
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float top = m[r][h];
#pragma unroll
                for (int j = 0; j < kCols; ++j) top = fmaxf(top, fmaxf(s[r][j][2 * h], s[r][j][2 * h + 1]));
                top = quad_max(top);
                // A row that has seen no key yet keeps weight 0, where -inf - -inf would make NaN.
                const float base = top == kMinusInf ? 0.f : top * scale_log2;
                fade[r][h] = ptx::ex2(m[r][h] * scale_log2 - base);
                float sum = l[r][h] * fade[r][h];
#pragma unroll
                for (int j = 0; j < kCols; ++j)
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; ++e) {
                        s[r][j][e] = ptx::ex2(fmaf(s[r][j][e], scale_log2, -base));
                        sum += s[r][j][e];
                    }
                m[r][h] = top;
                l[r][h] = sum;
            }
    }

    // 1 / l and the log-sum-exp in powers of two. No key seen: 0 and -inf.
    DEV void finish(float (&inverse)[kTiles][2], float (&lse2)[kTiles][2], float scale_log2) {
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float sum = quad_sum(l[r][h]);
                inverse[r][h] = sum > 0 ? 1.f / sum : 0.f;
                lse2[r][h] = sum > 0 ? m[r][h] * scale_log2 + log2f(sum) : kMinusInf;
            }
    }
};
