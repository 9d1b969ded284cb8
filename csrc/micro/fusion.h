// The one call into the kernels of fusion.cu, free of CUDA and torch types.
#pragma once
#include <cstddef>
#include <cstdint>

// How a CTA learns what to compute. The first two are one operation alone; see fusion.cu for the rest.
enum class Fusion : int { compute, memory, cta, alternate, warp, in_turn, interleaved, sm_aware };

struct FusionArgs {
    const float *a, *b;          // [memory_elements]
    float *c, *d;                // [memory_elements], [compute_elements]
    int compute_elements;        // of one float
    int memory_elements;         // of four floats
    int multiplications;         // of one float in one step
    float factor;
    int compute_tiles, memory_tiles;  // CTAs' worth of work
    const int* deal;             // see include/binding.cuh
    int deals;
    int* counters;               // [sms + 3], zero between launches
    int sms, smem_bytes;
    int64_t* trace;              // or null
    size_t trace_rows;
    Fusion how;
};
