// What both sides of the Hopper kernel share: where a sequence's KV lies, and the record of one piece of work.
#pragma once
#include <cstddef>

#include "include/partials.cuh"
#include "include/ring.cuh"
#include "include/softmax.cuh"

namespace sm90 {

constexpr float kSlack = 8.f;  // a running maximum may lag by 2^8 before O is rescaled
constexpr float kLow = -1e30f;  // "minus infinity" that never makes inf - inf
constexpr float kLog2E = 1.4426950408889634f;

// KV is [pages, page, Hk, D]; a contiguous cache is a paged one with one page a sequence and no table.
struct KvLayout {
    gptr<const int> table;  // [sequences, stride] page ids; null when contiguous
    int stride, page;       // a stride of 64 bits costs .5 %; tokens a page: 1 << page (31: contiguous), or 8 x page
};
// Pages are a kind of the kernel: of kPage tokens, or larger (0), or of any multiple of kAnyPage.
constexpr int kAnyPage = 8;

// What models ask of their scores: each a kind of the kernel, so that it costs nothing where it is off.
enum Rule : int { kWindow = 1, kSoftcap = 2, kSinks = 4 };
struct Rules {
    int window;               // a query sees so many keys, its own the last of them
    float cap_log2;           // a product s becomes tanh(s x cap_log2 / (2 log2 e)), which scale_log2 makes a score
    gptr<const float> sinks;  // [Hq] scores in base e
};
// tanh(x / (2 log2 e)). Two instructions of the slow unit, for tanh.approx errs by 2^-11: a cap of 50 would show it.
DEV float tanh_of(float x) { return fmaf(-2.f, ptx::rcp(1.f + ptx::ex2(x)), 1.f); }

// One piece of work: query rows against a range of KV tiles. Made by pod/kernels/sm90.py, three int4 each; a
// producer copies it to shared memory for its consumers.
struct Work {
    shared<int> q_row;          // prefill: first token of q; decode: first token x Hq + first head
    shared<int> tokens;
    shared<int> head;           // prefill: first query head; decode: KV head
    shared<int> seq;            // batch index, or row of the page table
    shared<int> pos0;           // prefill: context position of the first token; decode: first head inside its group
    shared<int> kv_len;         // tokens of the sequence
    shared<int> begin, end;     // KV tiles of this part (128 tokens in prefill, 64 in decode)
    shared<int> part, parts;    // which part of how many; parts = 1: the result goes straight out
    shared<int> slot, group;    // first of the tile's partial slots, and of its arrival counters
};
static_assert(sizeof(Work) == 48, "twelve fields");

// A piece of work in the hands of a producer warp: one field a lane, so that it takes one register.
struct Record {
    int field;
    DEV Record(gptr<const Work> w, int lane) { field = lane < 12 ? __ldg(ptr_cast<const int>(w) + lane) : 0; }
    DEV int get(int offset) const { return __shfl_sync(~0u, field, offset / 4); }
    DEV void copy_to(Work& w, int lane AT) const {
        CPU(emulate::self->at = at;)
        if (lane < 12) reinterpret_cast<shared<int>*>(&w)[lane] = field;
    }
};
#define FIELD(record, name) (record).get(offsetof(Work, name))

// Parts become one in two rounds where they are many, since one CTA reads them slowly: some neighbours first, as many
// as kFanOf says, whose sum takes the place of the first of them, then these. kFanOf(parts) is 1 where one round is
// enough. Counters: of the last round, then one for each group of neighbours.
template <int (*kFanOf)(int)> struct Round {
    int first, step, count;  // parts that become one
    int mine;                // where this CTA's share of it lies
    int counter;

    DEV Round(const Work& w, bool last) {
        const int fan = kFanOf(w.parts), neighbours = w.part / fan * fan;
        first = last ? 0 : neighbours;
        step = last ? fan : 1;
        count = last ? (w.parts + fan - 1) / fan : min(fan, w.parts - neighbours);
        mine = last ? neighbours : w.part;
        counter = last ? w.group : w.group + 1 + w.part / fan;
    }
};

// A queue from which all CTAs draw: [0] the next piece, [1] CTAs that found it empty; zero between launches. The list
// itself says where it ends, with as many empty entries as there are CTAs: so a launch is the same for lists of any
// length, a captured one too.
using Queue = gptr<int>;
DEV int draw(Queue queue, int lane) {
    int drawn = 0;
    if (lane == 0) drawn = atomicAdd(queue, 1);
    return __shfl_sync(~0u, drawn, 0);
}
// Set a counter back: a plain write, after atomics that order nothing. Its CTA is the last to touch the counter in this
// launch, and each of the others had the answer of its last draw before it counted itself out.
DEV void reset(gptr<int> counter AT) {
    GPU(counter[0] = 0;)
    CPU(emulate::atomic(counter, emulate::kRelaxed, at, [](int) { return 0; });)
}
// A CTA that has drawn for the last time. The last of all leaves the queue as it was found.
DEV void leave(Queue queue, int lane) {
    if (lane == 0 && atomicAdd(queue + 1, 1) == int(gridDim.x) - 1) {
        reset(queue);
        reset(queue + 1);
    }
}

// Of a sum of weights; 0 where there was nothing to see.
DEV float inverse_of(float l) { return l == 0.f ? 0.f : 1.f / l; }
// The sum of a row's weights gets one more key, without a value; m: its largest score in base 2. Returns 1 / l for what
// the outputs were summed to before.
DEV float join_sink(const Rules& rules, int head, float& m, float& l) {
    const float sink = __ldg(rules.sinks + head) * kLog2E, top = fmaxf(fmaxf(m, sink), kLow), fade = ptx::ex2(m - top);
    m = top;
    l = fmaf(l, fade, ptx::ex2(sink - top));
    return fade * inverse_of(l);
}

// Page ids of 32 pages of a sequence, one a lane, read from the table once for all of them. A page past the end repeats
// the last valid one, so that no table entry beyond the sequence is ever used.
struct PageWindow {
    int base = -1, id = 0;  // -1: nothing read yet for this sequence
    int first = 0;          // of kAnyPage: a lane has 8 tokens, these in its page
};
// Where some tokens of one head begin: row `first` of the page that lane `lane0` holds; looked up before a stage is
// free, so that the copy itself starts at once.
struct Source {
    int first, page, lane0;
};
template <int kPage> DEV Source find(const KvLayout& kv, PageWindow& window, int seq, int row, int kv_len, int lane) {
    if (!kv.table) return {row, seq, 0};
    constexpr bool kAny = kPage == kAnyPage;
    const int shift = kAny ? 3 : kv.page, page = row >> shift, base = page & ~31;
    if (base != window.base) {
        window.base = base;
        const int last = (max(kv_len, 1) - 1) >> shift;  // padding has no keys, and reads its first page
        const int mine = min(base + lane, last), of = kAny ? mine / kv.page : mine;
        if (kAny) window.first = (mine - of * kv.page) * kAnyPage;
        window.id = __ldg(kv.table + size_t(seq) * kv.stride + of);
    }
    return {kAny ? window.first : row & ((1 << shift) - 1), window.id, page & 31};
}

// What 1 in K and V of 8 bits, e4m3, stands for, of each KV head. K's goes into the scale of the scores and V's into
// the results, so that elements are only widened on their way to the tensor cores, and exactly.
struct Scales {
    gptr<const float> k, v;
};
// What the tensor cores multiply, queries of T and a cache of kBits: of 8 halves, which e4m3 becomes exactly.
template <typename T, int kBits> using Multiplied = std::conditional_t<kBits == 8, __half, T>;
// Two queries of T as halves. What is too large for a half becomes its largest.
template <typename T> DEV uint32_t halves(uint32_t x) {
    constexpr float kMost = 65504.f;
    const float2 y = ptx::unpack2<T>(x);
    return ptx::pack2<__half>(fminf(fmaxf(y.x, -kMost), kMost), fminf(fmaxf(y.y, -kMost), kMost));
}
// Where a box of rows of so many bytes has what would lie at `at`.
template <int kRow> DEV smem_addr swizzle(smem_addr at) { return at ^ (at >> 3 & (kRow - 16)); }

// Where Q, K and V lie, in the boxes of one side.
struct TensorMaps {
    CUtensorMap q, k, v;
    DEV void prefetch() const {
        ptx::prefetch_tmap(&q);
        ptx::prefetch_tmap(&k);
        ptx::prefetch_tmap(&v);
    }
};
// The heads of all pages as one dimension of a map, whichever lie next to each other (slabs_of).
struct Slabs {
    int pages, page, head;  // how many pages; slabs from one to the next, and from one head to the next
    DEV int at(int id, int kv_head) const { return unsigned(id) < unsigned(pages) ? id * page + kv_head * head : -1; }
};
// Copy the tokens of one head from `from` on to `dst`, 64 columns of them, as one box.
DEV void load_block(const CUtensorMap* map, smem_addr dst, smem_addr bar, const Source& from, int panel, int head) {
    const int page = __shfl_sync(~0u, from.page, from.lane0);
    if (ptx::elect_one()) ptx::tma_load_5d(dst, map, bar, from.first, panel, head, page);
    __syncwarp();
}
// The same, kTokens of them, from pages of kPage: load(i, page id, row) issues the i-th box. Their number is a constant
// of the code, because one thread issues all boxes and every instruction between two of them counts: with a loop at run
// time, pages of 16 cost 20 %.
template <int kTokens, int kPage, typename Load> DEV void for_pages(const Source& from, Load load) {
    constexpr int kBoxes = kTokens / kPage;
    if constexpr (kPage == kAnyPage) {  // too many for the registers
#pragma unroll 1
        for (int i = 0; i < kBoxes; i++) {
            const int page = __shfl_sync(~0u, from.page, from.lane0 + i);
            const int first = __shfl_sync(~0u, from.first, from.lane0 + i);
            if (ptx::elect_one()) load(i, page, first);
            __syncwarp();
        }
    } else {
        int page[kBoxes];
#pragma unroll
        for (int i = 0; i < kBoxes; i++) page[i] = __shfl_sync(~0u, from.page, from.lane0 + i);
        if (ptx::elect_one())
#pragma unroll
            for (int i = 0; i < kBoxes; i++) load(i, page[i], 0);
        __syncwarp();
    }
}

}  // namespace sm90
