// The attention kernel that vLLM began with (2023), for one new token a sequence, rebuilt from its description. A CTA
// of 128 threads computes one head of one sequence. Keys and values lie in pages of 16 tokens; two threads, a group,
// share a key, so that the 16 groups of a warp take one page at a time. Four ideas differ in where the query lives,
// in how page numbers are read, and in how the warps' sums meet.
#include "include/launch.cuh"
#include "include/ptx.cuh"
#include "micro/single_query.h"

constexpr int kHead = 128, kPage = 16, kThreads = 128, kWarps = kThreads / 32;
constexpr int kGroup = 2;                        // threads that share a key
constexpr int kVec = 4;                          // elements in a load of the query or of a key: 8 bytes
constexpr int kVecs = kHead / kGroup / kVec;     // such loads a thread and key
constexpr int kPiece = 8;                        // elements in a load of values, and in K's last axis: 16 bytes
constexpr int kRows = kHead / (32 / 2);          // rows of V^T a lane sums: two lanes share a row of 16 tokens
constexpr int kPageElements = kHead * kPage;     // of one head

template <class T> struct Params {
    gptr<const T> q, k, v;
    gptr<T> out;
    gptr<const int> table, lens;
    int heads, table_stride, q_stride, zero;
    float scale;
};
template <Idea kIdea> constexpr bool kInRegisters = kIdea == Idea::registers || kIdea == Idea::registers_in_turn;
template <Idea kIdea> constexpr bool kInTurn = kIdea == Idea::registers_in_turn || kIdea == Idea::shared_in_turn;

// Shared memory: the query [2][16] x 8 bytes | a float for each warp | the logits, later the warps' sums.
constexpr int kQueryBytes = kHead * 2, kWarpBytes = kWarps * 4, kSumBytes = kWarps / 2 * kHead * 4;
int smem_bytes(int max_len) {
    const int logits = (max_len + kPage - 1) / kPage * kPage * 4;
    return kQueryBytes + kWarpBytes + (logits > kSumBytes ? logits : kSumBytes);
}

DEV float larger(float a, float b) { return a > b ? a : b; }
DEV float plus(float a, float b) { return a + b; }

// Combine over the lanes whose numbers differ in bits kLow to 16, then over the warps: every thread gets the result.
template <int kLow, class F> DEV float over_cta(float x, sptr<float> of_warp, F&& combine) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int bits = 16; bits >= kLow; bits /= 2) x = combine(x, __shfl_xor_sync(~0u, x, bits));
    if (lane == 0) of_warp[warp] = x;
    __syncthreads();
    x = of_warp[lane % kWarps];
#pragma unroll
    for (int bits = kWarps / 2; bits; bits /= 2) x = combine(x, __shfl_xor_sync(~0u, x, bits));
    __syncthreads();  // the next call may overwrite
    return x;
}

template <class T> DEV float dot(uint2 a, uint2 b) {
    const float2 a0 = ptx::unpack2<T>(a.x), a1 = ptx::unpack2<T>(a.y);
    const float2 b0 = ptx::unpack2<T>(b.x), b1 = ptx::unpack2<T>(b.y);
    return a0.x * b0.x + a0.y * b0.y + a1.x * b1.x + a1.y * b1.y;
}

// One thread's half of the query: in 32 registers of its own, or read anew from shared memory for each key.
template <class T, bool kShared> struct Query {
    uint2 mine[kShared ? 1 : kVecs];
    sptr<uint2> all;

    DEV void load(gptr<const T> q, sptr<uint2> smem) {
        const gptr<const uint2> vecs = ptr_cast<const uint2>(q);
        const int part = threadIdx.x % kGroup;
        all = smem + part * kVecs;
        if constexpr (kShared) {  // 32 threads read 8 bytes each
            const int group = threadIdx.x / kGroup;
            if (group < kVecs) all[group] = vecs[part + group * kGroup];
            __syncthreads();
        } else {  // 64 groups read all of it
#pragma unroll
            for (int i = 0; i < kVecs; ++i) mine[i] = vecs[part + i * kGroup];
        }
    }
    DEV uint2 operator[](int i) const {
        if constexpr (kShared) return all[i];
        else return mine[i];
    }
};

// The page of the n-th step of this warp. Batched, each lane reads the page of one of the next 32 steps.
template <bool kBatch> struct Pages {
    gptr<const int> row;
    int count, ahead = 0;

    DEV int operator()(int n) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if constexpr (!kBatch) return row[warp + n * kWarps];
        const int mine = warp + (n + lane) * kWarps;
        if (n % 32 == 0) ahead = mine < count ? row[mine] : 0;
        return __shfl_sync(~0u, ahead, n % 32);
    }
};

// The first n of 8 elements, then zeros: the end of the last page may hold anything, and 0 * NaN is NaN.
DEV uint4 first_of(uint4 x, int n) {
    const auto keep = [n](uint32_t pair, int at) { return n > at + 1 ? pair : n > at ? pair & 0xffff : 0u; };
    return {keep(x.x, 0), keep(x.y, 2), keep(x.z, 4), keep(x.w, 6)};
}
// Weights times values, over the pages of this warp. Lane l sums rows l / 2 + 16 j of V^T, its half of each page's
// tokens.
template <class T>
DEV void sum_values(float (&sums)[kRows], const Params<T>& p, Pages<false> pages, int len, sptr<float> weights) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = lane % 2, head = blockIdx.x;
    for (int n = 0, page = warp; page < pages.count; ++n, page += kWarps) {
        const gptr<const T> values = p.v + (int64_t(pages(n)) * p.heads + head) * kPageElements;
        const gptr<const uint4> rows = ptr_cast<const uint4>(values) + lane;
        const int token = page * kPage + half * kPiece;
        const sptr<float4> w = ptr_cast<float4>(weights + token);
        const float4 w0 = w[0], w1 = w[1];
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
            uint4 x = rows[j * 32];
            if (token + kPiece > len) x = first_of(x, len - token);
            const float2 a = ptx::unpack2<T>(x.x), b = ptx::unpack2<T>(x.y);
            const float2 c = ptx::unpack2<T>(x.z), d = ptx::unpack2<T>(x.w);
            sums[j] += w0.x * a.x + w0.y * a.y + w0.z * b.x + w0.w * b.y +
                       w1.x * c.x + w1.y * c.y + w1.z * d.x + w1.w * d.y;
        }
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) sums[j] += __shfl_xor_sync(~0u, sums[j], 1);
}

// The sums of four warps become those of the first: in a tree, half of the warps handing over at a time ...
DEV void meet_in_a_tree(float (&sums)[kRows], sptr<float> room) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 2;
#pragma unroll
    for (int left = kWarps / 2; left; left /= 2) {
        if (warp >= left && warp < 2 * left && lane % 2 == 0)
            for (int j = 0; j < kRows; ++j) room[(warp - left) * kHead + row + j * 16] = sums[j];
        __syncthreads();
        if (warp < left)
            for (int j = 0; j < kRows; ++j) sums[j] += room[warp * kHead + row + j * 16];
        __syncthreads();
    }
}
// ... or all at once, each adding to one sum in shared memory.
DEV void meet_by_atomics(float (&sums)[kRows], sptr<float> room) {
    const int lane = threadIdx.x % 32, row = lane / 2;
    room[threadIdx.x] = 0.0f;
    __syncthreads();
    if (lane % 2 == 0)
        for (int j = 0; j < kRows; ++j) atomicAdd(room + row + j * 16, sums[j]);
    __syncthreads();
    for (int j = 0; j < kRows; ++j) sums[j] = room[row + j * 16];
}

template <class T, Idea kIdea>
__global__ void __launch_bounds__(kThreads) single_query(const __grid_constant__ Params<T> p) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / kGroup, part = lane % kGroup;
    const int head = blockIdx.x, sequence = blockIdx.y, len = p.lens[sequence];
    const sptr<unsigned char> smem = ptx::dynamic_smem<unsigned char>();
    const sptr<float> of_warp = ptr_cast<float>(smem + kQueryBytes);
    const sptr<float> logits = ptr_cast<float>(smem + kQueryBytes + kWarpBytes);
    const gptr<const int> row = p.table + int64_t(sequence) * p.table_stride;
    const int count = (len + kPage - 1) / kPage;

    Query<T, !kInRegisters<kIdea>> query;
    query.load(p.q + int64_t(sequence) * p.q_stride + head * kHead, ptr_cast<uint2>(smem));

    // Scores: one page a warp and step, one key a group.
    Pages<kIdea == Idea::table_batch> pages{row, count};
    float most = -INFINITY;
    int last = 0;
    for (int n = 0, page = warp; page < count; ++n, page += kWarps) {
        const gptr<const T> keys = p.k + (int64_t(pages(n)) * p.heads + head) * kPageElements;
        const gptr<const uint2> key = ptr_cast<const uint2>(keys) + lane;
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < kVecs; ++i) {
            const uint2 x = key[i * 32 + last];
            score += dot<T>(query[i], x);
            if constexpr (kInTurn<kIdea>) last = int(x.x) & p.zero;  // for all the compiler knows, the next address
        }                                                            // hangs on this load
        score += __shfl_xor_sync(~0u, score, 1);
        const int token = page * kPage + group;
        const bool there = token < len;
        if (part == 0) logits[token] = there ? score * p.scale : 0.0f;
        if (there) most = larger(most, score * p.scale);
    }

    // Softmax, over all warps.
    most = over_cta<kGroup>(most, of_warp, larger);
    float total = 0.0f;
    for (int i = threadIdx.x; i < len; i += kThreads) {
        const float weight = __expf(logits[i] - most);
        logits[i] = weight;
        total += weight;
    }
    total = over_cta<1>(total, of_warp, plus);
    const float share = __fdividef(1.0f, total);
    for (int i = threadIdx.x; i < len; i += kThreads) logits[i] *= share;
    __syncthreads();

    float sums[kRows] = {};
    sum_values(sums, p, Pages<false>{row, count}, len, logits);
    __syncthreads();  // the weights make room
    if constexpr (kIdea == Idea::atomics) meet_by_atomics(sums, logits);
    else meet_in_a_tree(sums, logits);
    if (warp == 0 && lane % 2 == 0) {
        const gptr<uint16_t> out = ptr_cast<uint16_t>(p.out + (int64_t(sequence) * p.heads + head) * kHead);
        for (int j = 0; j < kRows; ++j) out[lane / 2 + j * 16] = uint16_t(ptx::pack2<T>(sums[j], 0.0f));
    }
}

// New tokens into the cache: K keeps pieces of 8 elements together, V is transposed within a page.
struct Write {
    gptr<const uint4> k, v;
    gptr<uint4> k_cache;
    gptr<uint16_t> v_cache;
    gptr<const int> slots;
    int heads, k_stride, v_stride;  // strides: pieces from a token to the next
};
__global__ void __launch_bounds__(kThreads) write_cache(const __grid_constant__ Write p) {
    constexpr int kPieces = kHead / kPiece;
    const int token = blockIdx.x, slot = p.slots[token], page = slot / kPage, place = slot % kPage;
    for (int i = threadIdx.x; i < p.heads * kPieces; i += kThreads) {
        const int64_t to = int64_t(page) * p.heads * kPieces + i;
        p.k_cache[to * kPage + place] = uint4(p.k[int64_t(token) * p.k_stride + i]);
        const uint4 x = p.v[int64_t(token) * p.v_stride + i];
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
        for (int j = 0; j < kPiece; ++j)
            p.v_cache[(to * kPiece + j) * kPage + place] = uint16_t(words[j / 2] >> (j % 2 * 16));
    }
}

// ---------------------------------------------------------------- host
template <class T> Params<T> params(const SingleQueryArgs& a) {
    const size_t cache = size_t(a.pages) * a.heads * kPageElements, out = size_t(a.sequences) * a.heads * kHead;
    const size_t q = a.sequences ? size_t(a.sequences - 1) * a.q_stride + size_t(a.heads) * kHead : 0;
    Params<T> p;
    p.q = device_ptr(static_cast<const T*>(a.q), q, "q");
    p.k = device_ptr(static_cast<const T*>(a.k), cache, "k_cache");
    p.v = device_ptr(static_cast<const T*>(a.v), cache, "v_cache");
    p.out = device_ptr(static_cast<T*>(a.out), out, "out");
    p.table = device_ptr(a.table, size_t(a.sequences) * a.table_stride, "table");
    p.lens = device_ptr(a.lens, a.sequences, "lens");
    p.heads = a.heads;
    p.table_stride = a.table_stride;
    p.q_stride = a.q_stride;
    p.zero = a.zero;
    p.scale = a.scale;
    return p;
}

// Calls f with the kernel of this type and idea.
template <class T, class F> auto with_kernel(Idea idea, F&& f) {
    switch (idea) {
        case Idea::registers: return f.template operator()<single_query<T, Idea::registers>>();
        case Idea::shared: return f.template operator()<single_query<T, Idea::shared>>();
        case Idea::table_batch: return f.template operator()<single_query<T, Idea::table_batch>>();
        case Idea::atomics: return f.template operator()<single_query<T, Idea::atomics>>();
        case Idea::registers_in_turn: return f.template operator()<single_query<T, Idea::registers_in_turn>>();
        default: return f.template operator()<single_query<T, Idea::shared_in_turn>>();
    }
}
template <class T> void run(const SingleQueryArgs& a, Stream stream) {
    with_kernel<T>(a.idea, [&]<auto Kernel>() {
        launch<Kernel>(stream, dim3(a.heads, a.sequences), dim3(kThreads), smem_bytes(a.max_len), params<T>(a));
    });
}
void launch_single_query(const SingleQueryArgs& a, Stream stream) {
    if (a.half) run<__half>(a, stream);
    else run<__nv_bfloat16>(a, stream);
}

void launch_write_cache(const WriteCacheArgs& a, Stream stream) {
    const size_t cache = size_t(a.pages) * a.heads * kPageElements;
    const auto pieces = [&a](int stride) { return (size_t(a.tokens - 1) * stride + size_t(a.heads) * kHead) / kPiece; };
    Write p;
    p.k = device_ptr(static_cast<const uint4*>(a.k), pieces(a.k_stride), "k");
    p.v = device_ptr(static_cast<const uint4*>(a.v), pieces(a.v_stride), "v");
    p.k_cache = device_ptr(static_cast<uint4*>(a.k_cache), cache / kPiece, "k_cache");
    p.v_cache = device_ptr(static_cast<uint16_t*>(a.v_cache), cache, "v_cache");
    p.slots = device_ptr(a.slots, a.tokens, "slots");
    p.heads = a.heads;
    p.k_stride = a.k_stride / kPiece;
    p.v_stride = a.v_stride / kPiece;
    launch<write_cache>(stream, dim3(a.tokens), dim3(kThreads), 0, p);
}

// What the compiler made of a kernel, and how many of its CTAs an SM holds at this length.
template <class T> Resources resources_of(Idea idea, int max_len) {
    return with_kernel<T>(idea, [&]<auto Kernel>() {
        Resources r;
        r.smem_bytes = smem_bytes(max_len), r.ctas_per_sm = resident_ctas<Kernel>(kThreads, r.smem_bytes);
#ifdef __CUDACC__
        cudaFuncAttributes found;
        check_cuda(cudaFuncGetAttributes(&found, Kernel), "attributes");
        r.registers = found.numRegs, r.spill_bytes = int(found.localSizeBytes);
#endif
        return r;
    });
}
Resources single_query_resources(bool half, Idea idea, int max_len) {
    return half ? resources_of<__half>(idea, max_len) : resources_of<__nv_bfloat16>(idea, max_len);
}
