// The one call into the Hopper kernel, free of CUDA and torch types, so that bindings and benchmarks share it.
#pragma once
#include "include/inputs.h"

struct Pod90Launch : Inputs {
    void* out;                         // [tokens, Hq, D], dense
    void* lse;                         // [tokens, Hq] float, or null
    const void* prefill_work;          // Work records, longest first
    const void* decode_work;
    const int* decode_chunks;          // [n_decode_chunks + 1]
    int* counters;                     // 4, zero before the first launch, left zero
    int* prefill_arrived;              // one a split tile and 16 rows, likewise
    int* decode_arrived;               // 1 a split request, likewise
    float *prefill_part, *decode_part;
    void* trace;                       // [ctas][5 roles][2] nanoseconds, or null
    void* stream;
    int half, causal;
    int prefill_units, n_decode_chunks, prefill_yields, pack_shift, prefill_rows, ctas;  // prefill_rows: of a tile, 128 or 192
    float scale;
    // How much there is of what the pointers point to: the emulator allows no access beyond.
    int sequences, decode_works, prefill_groups, decode_groups;
    size_t prefill_floats, decode_floats;
};

extern "C" int pod90_launch(const Pod90Launch*);
