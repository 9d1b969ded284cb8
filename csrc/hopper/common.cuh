// What both sides of the Hopper kernel share: where a sequence's KV lies, and the record of one piece of work.
#pragma once
#include "ptx90.cuh"

namespace pod90 {

constexpr float kLn2 = 0.6931471805599453f;

// KV is [pages, page, Hk, D]; a contiguous cache is a paged one with one page a sequence and no table.
struct KvLayout {
    const int* table;         // [sequences, stride] page ids; null when contiguous
    int stride, page_shift;   // tokens a page = 1 << page_shift (31: contiguous)
};

// One piece of work: query rows against a range of KV tiles. Made by pod/schedule/hopper.py, three int4 each.
struct Work {
    int q_row;                // prefill: first row of q; decode: q row x Hq + first head of the group
    int rows;                 // prefill: query rows (<= 128); decode: query heads (<= 8)
    int head;                 // prefill: query head; decode: KV head
    int seq;                  // batch index, or row of the page table
    int pos0;                 // prefill: context position of the first row; decode: first head inside its group
    int kv_len;               // tokens of the sequence
    int begin, end;           // KV tiles of this part (128 tokens in prefill, 64 in decode)
    int part, parts;          // which part of how many; parts = 1: the result goes straight out
    int slot, group;          // first of the group's partial slots; the group's arrival counter
};
static_assert(sizeof(Work) == 48, "three int4");

// Where `kRows` tokens of one head begin: looked up before a stage is free, so that the copy itself starts at once.
// With small pages, lane i holds the id of the i-th page. A page past the end repeats the last valid one, so that no table
// entry beyond the sequence is ever used.
struct Source { int first, page; };
template <int kRows>
DEV Source find(const KvLayout& kv, int seq, int row, int kv_len, int lane) {
    if (!kv.table) return {row, seq};
    const int page = min((row >> kv.page_shift) + lane, (kv_len - 1) >> kv.page_shift), lanes = max(1, kRows >> kv.page_shift);
    return {row & ((1 << kv.page_shift) - 1), lane < lanes ? __ldg(kv.table + size_t(seq) * kv.stride + page) : 0};
}

// Copy `kRows` tokens of one head, 64 columns (a swizzled panel), to `dst`. Called by a whole warp.
template <int kRows>
DEV void load_panel(const CUtensorMap* map, uint32_t dst, uint32_t bar, const KvLayout& kv, const Source& from, int panel, int head) {
    if (kRows >> kv.page_shift <= 1) {
        const int page = __shfl_sync(~0u, from.page, 0);
        if (elect_one()) tma_load_5d(dst, map, bar, from.first, panel, head, page);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < kRows >> kv.page_shift; i++) {               // one box a page
        const int page = __shfl_sync(~0u, from.page, i);
        if (elect_one()) tma_load_5d(dst + (i << kv.page_shift) * 128, map, bar, 0, panel, head, page);
    }
}

}  // namespace pod90
