// From the host's launch record to what the kernels of hybrid.cu and lean.cu take.
#pragma once
#include "hybrid.h"
#include "merge.cuh"

constexpr int kWorkInts = sizeof(Work) / 4;

template <class T> Tensors<T> tensors(const HybridArgs& a, int head_dim) {
    return {
        .q = device_ptr(static_cast<const T*>(a.q), a.q_size, "q"),
        .k = device_ptr(static_cast<const T*>(a.k), a.kv_size, "k_cache"),
        .v = device_ptr(static_cast<const T*>(a.v), a.kv_size, "v_cache"),
        .out = device_ptr(static_cast<T*>(a.out), a.out_size, "out"),
        .lse = device_ptr(a.lse, a.out_size / head_dim, "lse"),
        .table = device_ptr(a.table, a.table_size, "block_table"),
        .kv_page = a.kv_page,
        .q_token = int(a.q_token),
        .q_head = int(a.q_head),
        .kv_token = int(a.kv_token),
        .kv_head = int(a.kv_head),
        .num_q_heads = a.num_q_heads,
        .group = a.num_q_heads / a.num_kv_heads,
        .table_stride = int(a.table_stride),
        .page_shift = a.page_shift,
        .scale_log2 = a.scale_log2,
        .pages = unsigned(a.pages),
    };
}

template <class Tile> Partials partials(float* at, int slots, int* arrived, int groups) {
    const size_t rows = size_t(slots) * Tile::kRows;
    return {
        .o = device_ptr(at, rows * Tile::kD, "partial outputs"),
        .lse2 = device_ptr(at + rows * Tile::kD, rows, "partial log-sum-exps"),
        .arrived = device_ptr(arrived, groups, "arrival counters"),
    };
}
