// The one call into the kernels of hybrid.cu, free of CUDA and torch types.
#pragma once
#include "inputs.h"

enum class Binding : int { prefill, decode, cta, warp, pod };

struct HybridArgs : Inputs {
    void* out;
    float* lse;                                // or null
    size_t q_size, kv_size, out_size, table_size;         // elements, for the emulator's checks
    int page_shift;
    float scale_log2;
    const int* lists;                          // prefill work | decode work | decode pieces | deal (see pod/ampere.py)
    int prefill_works, decode_works, pieces, deals;
    int* counters;                             // tickets | arrivals of prefill | arrivals of decode
    int prefill_groups, decode_groups;
    float* partials;                           // prefill o | prefill lse2 | decode o | decode lse2
    int prefill_slots, decode_slots;
    int64_t* trace;
    size_t trace_rows;
    int sms, ctas_per_sm, causal;
    Binding binding;
};
