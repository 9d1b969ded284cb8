// The one call into the kernels of a hybrid batch (sm80, sm90, lean), free of CUDA and torch types.
#pragma once
#include "inputs.h"

// The numbers of a plan, by name and in this order: `Header` of pod/kernels/launch.py.
struct Header {
    int method;                            // of those that share a family's operator
    int sms, ctas_per_sm, causal;
    int prefill_works, decode_works;       // Work records of each side
    int pieces, deals;                     // of decode; what tickets ask for (sm80)
    int prefill_groups, decode_groups;     // arrival counters of tiles that are merged from parts
    int prefill_slots, decode_slots;       // partial results
    int prefill_rows;                      // of a tile
    int pack_tokens, pack_heads;           // that it holds (sm90)
    int decode_rows;                       // of a piece of decode, tokens x heads (sm90)
    int window;                            // keys that a query sees, or 0: all (sm90)
    int trace_rows;
};

enum class Binding : int { prefill, decode, cta, warp, pod };

struct HybridArgs : Inputs, Header {
    void* out;                             // [tokens, Hq, D], dense
    float* lse;                            // [tokens, Hq], or null
    size_t q_size, kv_size, out_size, table_size;  // elements, for the emulator's checks
    int page_shift, half;
    float scale_log2, cap_log2;            // of a score; with a softcap of its hyperbolic tangent, and of what goes in
    const float* sinks;                    // [Hq], or null (sm90)
    const int* lists;                      // prefill work | decode work | decode pieces | deal
    int* counters;                         // zero before the first launch, left zero; the family says what they count
    float* partials;                       // prefill's | decode's
    int64_t* trace;                        // or null
    Binding binding;
    const float *k_scale, *v_scale;        // of each KV head, where K and V have 8 bits (sm90); else null
};
