// The call into plan.cu, free of CUDA and torch types.
#pragma once
#include <cstdint>

// What a plan on the device may be for, and what it weighs, by name and in this order: `Limits` of
// pod/kernels/workspace.py.
struct Limits {
    int tokens, sequences, kv_len;         // rows of q; entries of the lengths; keys of a sequence: none is passed
    int sms, num_kv_heads, group, causal;
    int decode_tokens, alike;              // of a sequence that is decode, at most; KV heads that are cut alike
    int pack_tokens, pack_heads;           // of a tile of prefill
    int prefill_works, decode_works;       // room for records, without the empty ones
    int prefill_counters, decode_counters; // arrival counters of a tile in parts
    int l2_keys;                           // of one KV head, that fit in prefill's share of L2
    int pad, least;                        // tiles of decode that beginning a head is worth; of a range
    int tile_ticks;                        // `Ticks` of pod/schedule/choose.py
    int runs;                              // room for runs of tiles
    int ctas, threads;                     // that plan
    int window;                            // keys that a token sees, its own the last of them; 0: all
};

struct PlanArgs {
    const int *q_lens, *kv_lens;           // [sequences]
    int* lists;                            // as pod/kernels/sm90.py lays them out
    int sequences;
    Limits limits;
};
