// What rungs 6 and 7 do where a tile's keys are cut into parts: whoever comes last makes one result of all.
#pragma once
#include "include/partials.cuh"
#include "include/softmax.cuh"
#include "ladder/ladder.cuh"

// A part's result is O / l and its log-sum-exp, row by row: chapter 01's merge makes one of all. Two columns of a row.
template <int kRows> DEV uint32_t merged(const Problem& p, int slot, int row, int column) {
    constexpr int kPart = kRows * (kD + 1);  // log-sum-exps, then O
    const gptr<const float> lse2 = p.parts + int64_t(slot) * kPart + row;
    const gptr<const float2> o = ptr_cast<const float2>(p.parts + int64_t(slot) * kPart + kRows + row * kD + column);
    float top = kMinusInf, sum = 0, x = 0, y = 0;
    for (int i = 0; i < p.splits; ++i) top = fmaxf(top, float(lse2[i * kPart]));
    for (int i = 0; i < p.splits; ++i) {
        const float weight = ptx::ex2(float(lse2[i * kPart]) - top);
        const float2 part = o[i * kPart / 2];
        x += weight * part.x;
        y += weight * part.y;
        sum += weight;
    }
    return ptx::pack2<T>(x / sum, y / sum);
}
