// What the five Hopper rungs share: how wgmma finds its operands in shared memory, and the maps of Q, K and V.
#pragma once
#include "ladder/ladder.cuh"
#include "include/ring.cuh"
#include "include/softmax.cuh"
#include "include/tensor_map.cuh"

// wgmma and TMA know rows of 128 bytes, swizzled as in rung 5. So rows of 256 bytes lie in two panels of 64 columns.
constexpr uint32_t kPanel = 128 * 128;   // 128 rows of 64 columns
constexpr uint32_t kTile = 2 * kPanel;   // 128 rows of Q, K or V

// ---------------------------------------------------------------- host
struct Maps {
    CUtensorMap q, k, v;
};
// Strides count bytes, of all dimensions but the first. Q: (64 columns, heads, tokens, panels), a box is the rows of a
// tile. K and V: (64 columns, tokens, panels, heads, sequences), a box is 128 tokens; past the context it brings zeros.
inline Maps maps_of(const Call& c) {
    const cuuint64_t q_heads = c.q_heads, kv_heads = c.kv_heads, tokens = cuuint64_t(c.sequences) * c.tokens;
    const cuuint64_t context = c.context, head = kD * 2;
    const cuuint64_t q_dims[4] = {64, q_heads, tokens, 2}, q_strides[3] = {head, q_heads * head, 128};
    const cuuint64_t kv_dims[5] = {64, context, 2, kv_heads, cuuint64_t(c.sequences)};
    const cuuint64_t kv_strides[4] = {kv_heads * head, 128, head, context * kv_heads * head};
    const cuuint32_t group = c.q_heads / c.kv_heads, q_box[4] = {64, group, 128 / group, 1};
    const cuuint32_t kv_box[5] = {64, 128, 1, 1, 1};
    if (group & (group - 1)) throw std::runtime_error("q_heads: a power of two of them may share a KV head");
    Maps m = {};
    if (!make_map(&m.q, false, c.q, 4, q_dims, q_strides, q_box) ||
        !make_map(&m.k, false, c.k, 5, kv_dims, kv_strides, kv_box) ||
        !make_map(&m.v, false, c.v, 5, kv_dims, kv_strides, kv_box))
        throw std::runtime_error("no tensor map could be made");
    return m;
}
