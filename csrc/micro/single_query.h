// The calls into the kernels of single_query.cu, free of CUDA and torch types.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

// The query in the registers of every thread group, or once in shared memory; two ideas on top of the latter; and the
// first two again with a thread's loads of keys in turn, each waiting for the one before.
enum class Idea : int { registers, shared, table_batch, atomics, registers_in_turn, shared_in_turn };

struct SingleQueryArgs {
    const void *q, *k, *v;      // [sequences, heads, 128]; [pages, heads, 16, 16, 8]; [pages, heads, 128, 16]
    void* out;                  // [sequences, heads, 128]
    const int *table, *lens;    // [sequences, table_stride], [sequences]
    int sequences, heads, pages, table_stride, q_stride, max_len;  // q_stride: elements from a token to the next
    float scale;
    bool half;                  // fp16, else bf16
    Idea idea;
    int zero;                   // 0, which the compiler cannot know
};

struct WriteCacheArgs {
    const void *k, *v;          // [tokens, heads, 128]
    void *k_cache, *v_cache;    // as above
    const int* slots;           // [tokens] page * 16 + place in the page
    int tokens, heads, pages, k_stride, v_stride;  // strides: elements from a token to the next
};

constexpr int kNoCount = -1;
struct Resources {
    int registers = kNoCount, spill_bytes = kNoCount;  // of a thread; the emulator has no such thing
    int smem_bytes = 0, ctas_per_sm = 0;
};
