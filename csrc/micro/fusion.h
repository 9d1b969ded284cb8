// The one call into the kernels of fusion.cu, free of CUDA and torch types.
#pragma once
#include <cstddef>
#include <cstdint>

// How a CTA learns what to compute. The first two are one operation alone; see fusion.cu for the rest.
enum class Fusion : int { compute, memory, cta, alternate, warp, in_turn, interleaved, sm_aware };

// The numbers of a run, by name and in this order: `Header` of pod/kernels/fusion.py.
struct FusionHeader {
    int method;                       // see fusion_bindings.cpp
    int multiplications;              // of one float in one step
    int compute_tiles, memory_tiles;  // CTAs' worth of work
    int sms, smem_bytes;
    int trace_rows;
};

struct FusionArgs : FusionHeader {
    const float *a, *b;          // [memory_elements]
    float *c, *d;                // [memory_elements], [compute_elements]
    int compute_elements;        // of one float
    int memory_elements;         // of four floats
    float factor;
    const int* deal;             // see include/binding.cuh
    int deals;
    int* counters;               // [sms + 3], zero between launches
    int64_t* trace;              // or null
    Fusion how;
};
