// q, K, V and the page table, and where they lie: the same record for every family, filled in one place (operators.h).
#pragma once
#include <cstddef>
#include <cstdint>

// Strides count elements; the last dimension is dense. Without a table, a page is a sequence's row of the cache.
struct Inputs {
    const void *q, *k, *v;      // q [tokens, Hq, D]; K and V [pages, page_tokens, Hkv, D]
    const int* table;           // [sequences, table_stride] page ids, or null
    int64_t q_token, q_head, kv_page, kv_token, kv_head, table_stride;
    int tokens, num_q_heads, num_kv_heads, head_dim, pages, page_tokens;
};
