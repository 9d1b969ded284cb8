// What every rung of the ladder is given and how it is called. A rung is one complete kernel, `attention`, of its own
// file; the last line of the file, POD_RUNG, is its front door.
#pragma once
#include "include/launch.cuh"
#include "include/ptx.cuh"

using T = __nv_bfloat16;
constexpr int kD = 128;  // numbers of a head

// `tokens` new tokens in each of `sequences` sequences, at the end of `context` tokens, under the causal mask. Query
// heads share the keys of a KV head in groups.
struct Problem {
    gptr<const T> q, k, v;  // q [sequences, tokens, q_heads, kD]; k, v [sequences, context, kv_heads, kD]
    gptr<T> out;            // as q
    gptr<float> parts;      // results of parts, where a rung splits the keys
    gptr<int> arrived;      // and how many of a tile are there; zeros between launches
    int sequences, tokens, context, q_heads, kv_heads, splits;
    float scale_log2;       // softmax scale x log2 e

    __host__ DEV int group() const { return q_heads / kv_heads; }
    DEV int visible(int token) const { return context - tokens + 1 + token; }  // how many keys a token sees
    DEV int64_t row(int sequence, int token, int head) const {                 // where a row of q or out begins
        return ((int64_t(sequence) * tokens + token) * q_heads + head) * kD;
    }
    DEV int64_t key(int sequence, int key, int kv_head) const {                // where a row of k or v begins
        return ((int64_t(sequence) * context + key) * kv_heads + kv_head) * kD;
    }
};

// ---------------------------------------------------------------- host
// The call as pod/kernels/ladder.py makes it. `spare`: bytes of shared memory that a CTA asks for and does not use, to
// keep others off its SM.
struct Call {
    const void *q, *k, *v;
    void* out;
    float* parts;
    int* arrived;
    int64_t floats, counters;  // in `parts` and in `arrived`
    int sequences, tokens, context, q_heads, kv_heads, splits, spare;
    float scale_log2;
};
inline Problem problem(const Call& c) {
    const size_t rows = size_t(c.sequences) * c.tokens * c.q_heads;
    const size_t keys = size_t(c.sequences) * c.context * c.kv_heads;
    Problem p;
    p.q = device_ptr(static_cast<const T*>(c.q), rows * kD, "q");
    p.k = device_ptr(static_cast<const T*>(c.k), keys * kD, "k");
    p.v = device_ptr(static_cast<const T*>(c.v), keys * kD, "v");
    p.out = device_ptr(static_cast<T*>(c.out), rows * kD, "out");
    p.parts = device_ptr(c.parts, c.floats, "parts");
    p.arrived = device_ptr(c.arrived, c.counters, "arrived");
    p.sequences = c.sequences;
    p.tokens = c.tokens;
    p.context = c.context;
    p.q_heads = c.q_heads;
    p.kv_heads = c.kv_heads;
    p.splits = c.splits;
    p.scale_log2 = c.scale_log2;
    return p;
}
inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// What the compiler made of a kernel: registers, bytes spilled a thread, threads, shared memory, CTAs that an SM holds.
template <auto Kernel> void describe(int* made, int threads, int smem) {
#ifdef __CUDACC__
    cudaFuncAttributes found;
    check_cuda(cudaFuncGetAttributes(&found, Kernel), "attributes");
    made[0] = found.numRegs;
    made[1] = int(found.localSizeBytes);
#endif
    made[2] = threads;
    made[3] = smem;
    made[4] = resident_ctas<Kernel>(threads, smem);
}
// The text of the error, or nullptr.
template <class Body> const char* outcome(Body&& body) {
    static std::string text;
    try {
        body();
        return nullptr;
    } catch (const std::exception& e) {
        text = e.what();
        return text.c_str();
    }
}
#ifdef POD_EMULATE  // with the shared memory of a Hopper SM
inline void prepare() {
    emulate::machine().smem_per_sm = 228 << 10;
    emulate::machine().smem_per_cta = 227 << 10;
}
#else
inline void prepare() {}
#endif

// GRID may ask the Problem, `p`; whatever stands behind SMEM goes to the kernel after the Problem.
#define POD_EXPORT extern "C" __attribute__((visibility("default"))) const char*
#define POD_RUNG(GRID, THREADS, SMEM, ...)                                                                             \
    POD_EXPORT run(const Call* call, Stream stream) {                                                                  \
        return outcome([=] {                                                                                           \
            prepare();                                                                                                 \
            const Problem p = problem(*call);                                                                          \
            launch<attention>(stream, GRID, dim3(THREADS), (SMEM) + call->spare, p __VA_OPT__(, ) __VA_ARGS__);        \
        });                                                                                                            \
    }                                                                                                                  \
    POD_EXPORT describe_rung(int* made, int spare) {                                                                   \
        return outcome([=] { describe<attention>(made, THREADS, (SMEM) + spare); });                                   \
    }
