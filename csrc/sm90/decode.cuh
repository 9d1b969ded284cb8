// Decode on Hopper: one producer warp streams KV, one warpgroup multiplies. One query token a request, up to 8 query
// heads of one KV head packed. The product is swapped, S^T = K Q^T and O^T = V^T P^T, so that the few heads are the
// narrow side (n = 8) and nothing is padded to 64 rows. It is wgmma and not mma.sync, because beside prefill's wgmma
// mma.sync starves.
#pragma once
#include "sm90/common.cuh"

namespace sm90::decode {

constexpr int kTokens = 64, kHeads = 8;           // tokens a tile, query heads packed
constexpr uint32_t kGranule = kTokens * 128;      // the ring's unit: 64 tokens of 64 columns, a swizzled panel
constexpr float kLow = -1e30f;                    // "minus infinity" that never makes inf - inf
constexpr int kBarrier = 5, kThreads = 128;       // named barrier of the warpgroup

DEV void meet(AT_ONLY) {
    ptx::named_barrier_sync(kBarrier, kThreads PASS_AT);
}
DEV bool any_of_all(bool mine AT) { return ptx::named_barrier_any(kBarrier, kThreads, mine PASS_AT); }

// Shared memory: the ring, two Q tiles and two P tiles.
template <int D, int kGranules> struct Smem {
    static constexpr uint32_t kQBytes = kHeads * D * 2, kPBytes = kTokens * kHeads * 2;
    static_assert(2 * kPBytes >= 32 * 4 * sizeof(float4), "m and l of 32 parts");
    static constexpr uint32_t kQ = kGranules * kGranule, kP = kQ + 2 * kQBytes, kBytes = kP + 2 * kPBytes;
};

struct Params {
    gptr<const Work> work;
    gptr<const int> chunks;    // [n_chunks + 1] first work of each chunk
    gptr<uint16_t> out;        // [tokens x Hq, D]
    gptr<float> lse;           // [tokens x Hq], natural log; may be null
    Queue queue;               // of chunks
    gptr<float> part;          // partial results, kSlotFloats<D> each
    gptr<int> arrived;         // one a group: partials stored; 0 between launches
    int n_chunks, num_q_heads;
    float scale_log2;
};
template <int D> constexpr int kSlotFloats = 128 * (D / 16) + 16;  // O^T in fragment order, then m and l of 8 heads

using Exchange = shared<float[4][kHeads]>;

template <int kGranules> struct Control {
    Ring<kGranules> kv;        // panels of K and V, in the order of their use
    Ring<2> q;
    alignas(16) Work work[2];  // records of the two Q tiles
    Exchange exchange;         // between the warps
    bool done;                 // this CTA's decode is over: prefill need not yield

    DEV void init() {  // readers are warps
        kv.init(4);
        q.init(4);
        done = false;
    }
};

// ---------------------------------------------------------------- producer: one warp
struct Maps {
    CUtensorMap q, k, v;
    DEV void prefetch() const {
        ptx::prefetch_tmap(&q);
        ptx::prefetch_tmap(&k);
        ptx::prefetch_tmap(&v);
    }
};

template <int D, int kGranules, int kPage> struct Producer {
    using S = Smem<D, kGranules>;
    const Maps& maps;
    const Params& p;
    const KvLayout& kv;
    smem_addr base;
    Control<kGranules>& c;
    int lane;
    PageWindow window = {};
    Place<kGranules> at = {};  // places carry on across tiles and pieces of work
    Place<2> piece = {};

    // The panels of a tile of K or V.
    DEV void load(bool values, int seq, int kv_len, int head, int tile) {
        const Source from = find(kv, window, seq, tile * kTokens, kv_len, lane);
#pragma unroll 1
        for (int panel = 0; panel < D / 64; panel++) {
            const smem_addr filled = c.kv.filled(at);
            c.kv.acquire(at);
            if (ptx::elect_one()) c.kv.expect(at, kGranule);
            const CUtensorMap* map = values ? &maps.v : &maps.k;
            const smem_addr dst = base + at.stage() * kGranule;
            if constexpr (kPage == 0 || kPage >= kTokens) load_block(map, dst, filled, from, panel, head);
            else
                for_pages<kTokens / kPage>(from, [&](int i, int page) {
                    ptx::tma_load_5d(dst + i * kPage * 128, map, filled, 0, panel, head, page);
                });
            at.advance();
        }
    }
    // The record of a piece and its queries.
    DEV void announce(const Record& w) {
        const int head0 = FIELD(w, pos0), kv_head = FIELD(w, head), token = FIELD(w, q_row) / p.num_q_heads;
        c.q.acquire(piece);
        const uint32_t stage = piece.stage();
        const smem_addr filled = c.q.filled(piece);
        w.copy_to(c.work[stage], lane);
        __syncwarp();
        if (ptx::elect_one()) {
            c.q.expect(piece, S::kQBytes);
            ptx::tma_load_5d(base + S::kQ + stage * S::kQBytes, &maps.q, filled, head0, 0, kv_head, token);
        }
        __syncwarp();
        piece.advance();
    }
    // A record without rows: there is no more work.
    DEV void stop() {
        c.q.acquire(piece);
        if (!ptx::elect_one()) return;
        c.work[piece.stage()].rows = 0;
        c.q.fill(piece);
    }
    DEV void run() {
        for (int chunk = blockIdx.x; chunk < p.n_chunks;) {
            const int last = p.chunks[chunk + 1];
            for (int i = p.chunks[chunk]; i < last; i++) {
                const Record w(p.work + i, lane);
                const int seq = FIELD(w, seq), kv_len = FIELD(w, kv_len), head = FIELD(w, head), end = FIELD(w, end);
                announce(w);
                window.base = -1;
                int t = FIELD(w, begin);
                load(false, seq, kv_len, head, t);  // K runs one tile ahead of V, as the consumers do
#pragma unroll 1
                for (; t + 1 < end; t++) {
                    load(false, seq, kv_len, head, t + 1);
                    load(true, seq, kv_len, head, t);
                }
                load(true, seq, kv_len, head, t);
            }
            if (lane == 0) chunk = atomicAdd(p.queue, 1) + gridDim.x;
            chunk = __shfl_sync(~0u, chunk, 0);
        }
        stop();
        leave(p.queue, lane);
    }
};

// ---------------------------------------------------------------- consumer: one warpgroup
// O^T of the warpgroup: o[b] = columns 64b + 16 warp + lane/4 (+8) of heads 2(lane%4) (+1); m and l of the same
// heads. l is this thread's share (its own tokens) until `total` adds the others.
template <typename T, int D> struct State {
    float o[D / 64][4], m[2], l[2];

    // Padding heads start from a huge maximum: their P stays zero, which costs the tensor cores the least energy.
    DEV void clear(bool real0, bool real1) {
#pragma unroll
        for (int b = 0; b < D / 64; b++)
            for (int e = 0; e < 4; e++) o[b][e] = 0.f;
        m[0] = real0 ? kLow : -kLow;
        m[1] = real1 ? kLow : -kLow;
        l[0] = l[1] = 0.f;
    }
    // The maximum of the 64 tokens of heads `x`, over the lanes of a warp and over the four warps.
    template <typename Op> DEV void reduce(float (&x)[2], Exchange& exchange, int warp, int lane, Op op) {
#pragma unroll
        for (int i = 4; i < 32; i <<= 1)
#pragma unroll
            for (int h = 0; h < 2; h++) x[h] = op(x[h], __shfl_xor_sync(~0u, x[h], i));
        if (lane < 4) ptr_cast<float2>(exchange[warp] + 2 * lane)[0] = make_float2(x[0], x[1]);
        meet();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 y = ptr_cast<const float2>(exchange[i] + 2 * (lane & 3))[0];
            x[0] = i ? op(x[0], y.x) : y.x;
            x[1] = i ? op(x[1], y.y) : y.y;
        }
    }
    // Raise the maximum to that of the new scores and rescale what was summed before.
    DEV void raise(const float (&s)[4], float scale_log2, Exchange& exchange, int warp, int lane) {
        float top[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
        reduce(top, exchange, warp, lane, [](float a, float b) { return fmaxf(a, b); });
        top[0] = fmaxf(m[0], top[0] * scale_log2);
        top[1] = fmaxf(m[1], top[1] * scale_log2);
        scale_to(top);
    }
    // Make `top`, no smaller than before, the new maximum.
    DEV void scale_to(const float (&top)[2]) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float fade = ptx::ex2(m[h] - top[h]);
            m[h] = top[h];
            l[h] *= fade;
#pragma unroll
            for (int b = 0; b < D / 64; b++)
#pragma unroll
                for (int e = h; e < 4; e += 2) o[b][e] *= fade;
        }
    }
    DEV void total(Exchange& exchange, int warp, int lane) {
        reduce(l, exchange, warp, lane, [](float a, float b) { return a + b; });
    }
    // Whole result: divide and store. Heads 2(lane%4) + h < rows are real.
    DEV void write(const Params& p, const Work& w, int warp, int lane) const {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int head = 2 * (lane & 3) + h;
            if (head >= w.rows) continue;
            const float inverse = 1.f / l[h];
            const gptr<T> dst = ptr_cast<T>(p.out) + size_t(w.q_row + head) * D + warp * 16 + lane / 4;
#pragma unroll
            for (int b = 0; b < D / 64; b++)
#pragma unroll
                for (int e = 0; e < 2; e++) dst[64 * b + 8 * e] = ptx::from_float<T>(o[b][2 * e + h] * inverse);
            if (p.lse && warp == 0 && lane < 4) p.lse[w.q_row + head] = m[h] * kLn2 + logf(l[h]);
        }
    }
    // Part of a result, see include/partials.cuh. Returns whether this CTA holds the final result.
    DEV bool merge(const Params& p, const Work& w, smem_addr sums, int warp, int lane) {
        constexpr int kSlot = kSlotFloats<D>, kThread = D / 16;
        asm volatile("" : "+r"(lane));  // or ptxas keeps (and spills) these addresses through the main loop
        const gptr<float> slots = p.part + size_t(w.slot) * kSlot;
        const int at = (warp * 32 + lane) * 4, ml_at = 128 * kThread + (lane & 3) * 4;
        const bool real = 2 * (lane & 3) < w.rows;
        const gptr<float> mine = slots + size_t(w.part) * kSlot;
        if (real) {
#pragma unroll
            for (int b = 0; b < D / 64; b++)
                __stcg(ptr_cast<float4>(mine + b * 512 + at), make_float4(o[b][0], o[b][1], o[b][2], o[b][3]));
            if (warp == 0 && lane < 4) __stcg(ptr_cast<float4>(mine + ml_at), make_float4(m[0], m[1], l[0], l[1]));
        }
        __threadfence();
        meet();
        bool last = false;
        if (warp == 0 && lane == 0) last = last_to_arrive(p.arrived + w.group, w.parts);
        if (!any_of_all(last)) return false;
        __threadfence();
        clear(true, true);
        // 32 parts at a time: first everybody's m and l in one trip to L2, into the place of P, then the outputs.
        for (int begin = 0; begin < w.parts; begin += 32) {
            const int count = min(32, w.parts - begin), one = warp * 8 + lane / 4;
            const gptr<const float> block = slots + size_t(begin) * kSlot;
            if (one < count) {
                const float4 ml = __ldcg(ptr_cast<const float4>(block + size_t(one) * kSlot + ml_at));
                ptx::st_shared_16<float4>(sums + (warp * 32 + lane) * 16, ml);
            }
            meet();
            if (real) add(block, sums, count, at, lane);
            meet();  // before `sums` is filled again
        }
        return true;
    }
    // The parts of one block, whose m and l lie in `sums`.
    DEV void add(gptr<const float> block, smem_addr sums, int count, int at, int lane) {
        float top[2] = {m[0], m[1]};
        for (int i = 0; i < count; i++) {
            const float4 ml = ptx::ld_shared_16<float4>(sums + (i * 4 + (lane & 3)) * 16);
            top[0] = fmaxf(top[0], ml.x);
            top[1] = fmaxf(top[1], ml.y);
        }
        scale_to(top);
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            const float4 ml = ptx::ld_shared_16<float4>(sums + (i * 4 + (lane & 3)) * 16);
            const float weight[2] = {ptx::ex2(ml.x - m[0]), ptx::ex2(ml.y - m[1])};
            l[0] = fmaf(ml.z, weight[0], l[0]);
            l[1] = fmaf(ml.w, weight[1], l[1]);
#pragma unroll
            for (int b = 0; b < D / 64; b++) {
                const float4 x = __ldcg(ptr_cast<const float4>(block + size_t(i) * kSlotFloats<D> + b * 512 + at));
                o[b][0] = fmaf(x.x, weight[0], o[b][0]);
                o[b][1] = fmaf(x.y, weight[1], o[b][1]);
                o[b][2] = fmaf(x.z, weight[0], o[b][2]);
                o[b][3] = fmaf(x.w, weight[1], o[b][3]);
            }
        }
    }
};

template <typename T, int D, int kGranules> struct Consumer {
    using S = Smem<D, kGranules>;
    static constexpr int kPanels = D / 64;
    const Params& p;
    const smem_addr base;
    Control<kGranules>& c;
    const int warp, lane;
    const int token = warp * 16 + lane / 4;  // this thread's tokens of a tile: token, token + 8
    Place<kGranules> at = {};                // the next panel
    Place<kGranules> k[kPanels], v[kPanels]; // those under way
    State<T, D> state;
    float s[4], s2[4];                       // the scores are the sum of both

    // All panels of a tile are waited for before the first wgmma: a wait between them would make ptxas insert arrives.
    DEV void take(Place<kGranules> (&panels)[kPanels]) {
#pragma unroll
        for (int i = 0; i < kPanels; i++) {
            panels[i] = at;
            c.kv.wait(at);
            at.advance();
        }
        ptx::wgmma_fence();
    }
    DEV void free(const Place<kGranules> (&panels)[kPanels]) {
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < kPanels; i++) c.kv.release(panels[i]);
    }
    DEV uint64_t panel(Place<kGranules> at) const { return ptx::desc_sw128(base + at.stage() * kGranule, 1, 1024); }
    DEV smem_addr probs(int tile) const { return base + S::kP + (tile & 1) * S::kPBytes; }

    // S^T = K Q^T: two chains of accumulation, because one would be latency-bound.
    DEV void issue_qk(smem_addr q) {
        take(k);
#pragma unroll
        for (int i = 0; i < kPanels; i++) {
            const uint64_t keys = panel(k[i]), queries = ptx::desc_sw128(q + i * 1024, 1, 1024);
#pragma unroll
            for (int d = 0; d < 4; d++) {
                float (&x)[4] = d & 1 ? s2 : s;
                if (i == 0 && d < 2) ptx::wgmma_n8<T, 0, 0>(x, keys + 2 * d, queries + 2 * d);
                else ptx::wgmma_n8<T, 0, 1>(x, keys + 2 * d, queries + 2 * d);
            }
        }
        ptx::wgmma_commit();
    }
    // O^T += V^T P^T: block b of 64 columns is panel b of V.
    DEV void issue_pv(int tile) {
        const uint64_t weights = ptx::desc_plain(probs(tile), 128);
        take(v);
#pragma unroll
        for (int b = 0; b < kPanels; b++) {
            const uint64_t values = panel(v[b]);
#pragma unroll
            for (int t = 0; t < kTokens / 16; t++)
                ptx::wgmma_n8<T, 1, 1>(state.o[b], values + ((t * 2048) >> 4), weights + ((t * 256) >> 4));
        }
        ptx::wgmma_commit();
    }
    template <int kPending> DEV void await_scores() {
        ptx::wgmma_wait<kPending>();
        ptx::touch(s);
        ptx::touch(s2);
        free(k);
    }
    DEV void await_output() {
        ptx::wgmma_wait<0>();
#pragma unroll
        for (int b = 0; b < kPanels; b++) ptx::touch(state.o[b]);
        free(v);
    }

    // P of a tile from its scores, and where the tensor cores read it.
    DEV void make(float (&e)[4], smem_addr dst) {
#pragma unroll
        for (int i = 0; i < 4; i++) e[i] = ptx::ex2(fmaf(s[i], p.scale_log2, -state.m[i & 1]));
        ptx::st_shared_4(dst, ptx::pack2<T>(e[0], e[1]));
        ptx::st_shared_4(dst + 128, ptx::pack2<T>(e[2], e[3]));
        ptx::fence_proxy_async();
    }
    // First with the maximum as it is; only if some score is over it by more than the slack is the maximum raised and P
    // made again. One barrier either way shows P to the tensor cores. `tail`: how many tokens the last tile has.
    template <bool kBesidePv> DEV void probabilities(int tile, bool is_tail, int tail) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] += s2[i];
        if (is_tail) {
            if (token >= tail) s[0] = s[1] = kMinusInf;
            if (token + 8 >= tail) s[2] = s[3] = kMinusInf;
        }
        const smem_addr dst = probs(tile) + token * 16 + (lane & 3) * 4;
        const float above[2] = {fmaf(fmaxf(s[0], s[2]), p.scale_log2, -state.m[0]),
                                fmaf(fmaxf(s[1], s[3]), p.scale_log2, -state.m[1])};
        float e[4];
        make(e, dst);
        if (kBesidePv) await_output();
        if (any_of_all(fmaxf(above[0], above[1]) > kSlack)) {
            state.raise(s, p.scale_log2, c.exchange, warp, lane);
            make(e, dst);
            meet();
        }
        state.l[0] += e[0] + e[2];
        state.l[1] += e[1] + e[3];
    }
    // V rows past the end may hold anything: 0 * NaN is NaN.
    DEV void clear_tail(int seen) {
        Place<kGranules> ahead = at;
#pragma unroll
        for (int b = 0; b < kPanels; b++) {
            c.kv.wait(ahead);
            for (int row = seen + warp * 4 + lane / 8; row < kTokens; row += 16)
                ptx::st_shared_16(base + ahead.stage() * kGranule + row * 128 + lane % 8 * 16, uint4{});
            ahead.advance();
        }
        ptx::fence_proxy_async();
        meet();
    }
    DEV void attend(const Work& w, smem_addr q) {
        const int tiles = w.end - w.begin, tail = w.kv_len - (w.end - 1) * kTokens;  // tokens of the last tile, or more
        const auto is_tail = [&](int i) { return i == tiles - 1 && tail < kTokens; };
        state.clear(2 * (lane & 3) < w.rows, 2 * (lane & 3) + 1 < w.rows);
        issue_qk(q);
        await_scores<0>();
        probabilities<false>(0, is_tail(0), tail);
#pragma unroll 1
        for (int i = 1; i < tiles; i++) {
            issue_qk(q);  // the next scores go first, their softmax runs under P V
            issue_pv(i - 1);
            await_scores<1>();
            probabilities<true>(i, is_tail(i), tail);
        }
        if (tail < kTokens) clear_tail(tail);
        issue_pv(tiles - 1);
        await_output();
        state.total(c.exchange, warp, lane);
        if (w.parts == 1 || state.merge(p, w, base + S::kP, warp, lane)) state.write(p, w, warp, lane);
    }
    DEV void run() {
        for (Place<2> piece;; piece.advance()) {
            c.q.wait(piece);
            const Work& w = c.work[piece.stage()];
            if (w.rows == 0) break;
            attend(w, base + S::kQ + piece.stage() * S::kQBytes);
            __syncwarp();
            if (lane == 0) c.q.release(piece);
        }
        c.done = true;
    }
};

}  // namespace sm90::decode
