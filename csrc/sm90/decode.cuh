// Decode on Hopper: one producer warp streams KV, one warpgroup multiplies. One query token a request, up to 8 query heads
// of one KV head packed. The product is swapped, S^T = K Q^T and O^T = V^T P^T, so that the few heads are the narrow side
// (n = 8) and nothing is padded to 64 rows. It is wgmma and not mma.sync, because beside prefill's wgmma mma.sync starves.
#pragma once
#include "sm90/common.cuh"

namespace pod90::decode {

constexpr int kTokens = 64, kHeads = 8;                              // tokens a tile, query heads packed
constexpr uint32_t kGranule = kTokens * 128;                         // the ring's unit: 64 tokens of 64 columns, a swizzled panel
constexpr float kLow = -1e30f;                                       // "minus infinity" that never makes inf - inf
constexpr int kBar = 5;                                              // named barrier of the warpgroup

// Shared memory: the ring, two Q tiles and two P tiles.
template <int D, int kGranules> struct Smem {
    static constexpr uint32_t kQBytes = kHeads * D * 2, kPBytes = kTokens * kHeads * 2;
    static_assert(2 * kPBytes >= 32 * 4 * sizeof(float4), "m and l of 32 parts");
    static constexpr uint32_t kQ = kGranules * kGranule, kP = kQ + 2 * kQBytes, kBytes = kP + 2 * kPBytes;
};

struct Params {
    gptr<const Work> work;
    gptr<const int> chunks;                                          // [n_chunks + 1] first work of each chunk
    gptr<uint16_t> out;                                              // [tokens x Hq, D]
    gptr<float> lse;                                                 // [tokens x Hq], natural log; may be null
    gptr<int> counters;                                              // [0] next chunk, [1] CTAs done; 0 between launches
    gptr<float> part;                                                // partial results, kSlotFloats<D> each
    gptr<int> arrived;                                               // one a group: partials stored; 0 between launches
    int n_chunks, num_q_heads;
    float scale_log2;
};
template <int D> constexpr int kSlotFloats = 128 * (D / 16) + 16;    // O^T in fragment order, then m and l of 8 heads

using Exchange = shared<float[4][kHeads]>;

template <int kGranules> struct Control {
    uint64_t full[kGranules], empty[kGranules], q_full[2], q_empty[2];
    alignas(16) Work work[2];                                        // records of the two Q tiles
    Exchange exchange;                                               // between the warps
    bool done;                                                       // this CTA's decode is over: prefill need not yield
};

template <int kGranules> DEV void init(Control<kGranules>& c) {
    for (int g = 0; g < kGranules; g++) mbar_init(smem_u32(&c.full[g]), 1), mbar_init(smem_u32(&c.empty[g]), 4);
    for (int s = 0; s < 2; s++) mbar_init(smem_u32(&c.q_full[s]), 1), mbar_init(smem_u32(&c.q_empty[s]), 4);
    c.done = false;
}

// A place in the ring and the parity of its use; it carries on across tiles and pieces of work.
template <int kGranules> struct Cursor {
    uint32_t slot = 0, phase = 0;
    DEV void next() { if (++slot == kGranules) slot = 0, phase ^= 1; }
};

// ---------------------------------------------------------------- producer: one warp
template <int D, int kGranules, int kPage>
DEV void produce(const CUtensorMap& mq, const CUtensorMap& mk, const CUtensorMap& mv, const Params& p, const KvLayout& kv,
                 uint32_t base, Control<kGranules>& c, int lane) {
    using S = Smem<D, kGranules>;
    Cursor<kGranules> at;
    PageWindow window;
    uint32_t pieces = 0;
    auto load = [&](bool is_v, int seq, int kv_len, int head, int tile) {
        const Source from = find(kv, window, seq, tile * kTokens, kv_len, lane);
#pragma unroll 1
        for (int panel = 0; panel < D / 64; panel++, at.next()) {
            const uint32_t full = smem_u32(&c.full[at.slot]);
            mbar_wait(smem_u32(&c.empty[at.slot]), at.phase ^ 1);
            if (elect_one()) mbar_arrive_tx(full, kGranule);
            const CUtensorMap* map = is_v ? &mv : &mk;
            const uint32_t dst = base + at.slot * kGranule;
            if constexpr (kPage == 0 || kPage >= kTokens) load_block(map, dst, full, from, panel, head);
            else
                for_pages<kTokens / kPage>(from, [&](int i, int page) {
                    tma_load_5d(dst + i * kPage * 128, map, full, 0, panel, head, page);
                });
        }
    };
    auto slot_of = [&] {
        mbar_wait(smem_u32(&c.q_empty[pieces & 1]), ((pieces >> 1) & 1) ^ 1);
        return pieces++ & 1;
    };
    auto announce = [&](const Record& w) {
        const int head0 = FIELD(w, pos0), kv_head = FIELD(w, head), token = FIELD(w, q_row) / p.num_q_heads;
        const uint32_t s = slot_of(), full = smem_u32(&c.q_full[s]);
        w.copy_to(c.work[s], lane);
        __syncwarp();
        if (elect_one()) {
            mbar_arrive_tx(full, S::kQBytes);
            tma_load_5d(base + S::kQ + s * S::kQBytes, &mq, full, head0, 0, kv_head, token);
        }
        __syncwarp();
    };
    for (int chunk = blockIdx.x; chunk < p.n_chunks;) {
        const int last = p.chunks[chunk + 1];
        for (int i = p.chunks[chunk]; i < last; i++) {
            const Record w(p.work + i, lane);
            const int seq = FIELD(w, seq), kv_len = FIELD(w, kv_len), head = FIELD(w, head), end = FIELD(w, end);
            announce(w);
            window.base = -1;
            int t = FIELD(w, begin);
            load(false, seq, kv_len, head, t);                       // K runs one tile ahead of V, as the consumers do
#pragma unroll 1
            for (; t + 1 < end; t++) {
                load(false, seq, kv_len, head, t + 1);
                load(true, seq, kv_len, head, t);
            }
            load(true, seq, kv_len, head, t);
        }
        if (lane == 0) chunk = atomicAdd(p.counters, 1) + gridDim.x;
        chunk = __shfl_sync(~0u, chunk, 0);
    }
    const uint32_t s = slot_of();                                    // rows = 0: no more work
    if (elect_one()) c.work[s].rows = 0, mbar_arrive(smem_u32(&c.q_full[s]));
    // the last CTA to run dry leaves the counters as it found them
    if (lane == 0 && atomicAdd(p.counters + 1, 1) == int(gridDim.x) - 1) reset(p.counters), reset(p.counters + 1);
}

// ---------------------------------------------------------------- consumer: one warpgroup
// O^T of the warpgroup: o[b] = columns 64b + 16 warp + lane/4 (+8) of heads 2(lane%4) (+1); m and l of the same heads. l is
// this thread's share (its own tokens) until `total` adds the others.
template <typename T, int D> struct State {
    float o[D / 64][4], m[2], l[2];

    // Padding heads start from a huge maximum: their P stays zero, which costs the tensor cores the least energy.
    DEV void clear(bool real0, bool real1) {
#pragma unroll
        for (int b = 0; b < D / 64; b++) o[b][0] = o[b][1] = o[b][2] = o[b][3] = 0.f;
        m[0] = real0 ? kLow : -kLow, m[1] = real1 ? kLow : -kLow, l[0] = l[1] = 0.f;
    }
    // The maximum of the 64 tokens of heads `x`, over the lanes of a warp and over the four warps.
    template <typename Op> DEV void reduce(float (&x)[2], Exchange& exchange, int warp, int lane, Op op) {
#pragma unroll
        for (int i = 4; i < 32; i <<= 1)
#pragma unroll
            for (int h = 0; h < 2; h++) x[h] = op(x[h], __shfl_xor_sync(~0u, x[h], i));
        if (lane < 4) ptr_cast<float2>(exchange[warp] + 2 * lane)[0] = make_float2(x[0], x[1]);
        bar_sync(kBar, 128);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 y = ptr_cast<const float2>(exchange[i] + 2 * (lane & 3))[0];
            x[0] = i ? op(x[0], y.x) : y.x, x[1] = i ? op(x[1], y.y) : y.y;
        }
    }
    // Raise the maximum to that of the new scores and rescale what was summed before.
    DEV void raise(const float (&s)[4], float c, Exchange& exchange, int warp, int lane) {
        float top[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
        reduce(top, exchange, warp, lane, [](float a, float b) { return fmaxf(a, b); });
        top[0] = fmaxf(m[0], top[0] * c), top[1] = fmaxf(m[1], top[1] * c);
        scale_to(top);
    }
    // Make `top`, no smaller than before, the new maximum.
    DEV void scale_to(const float (&top)[2]) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float r = ex2(m[h] - top[h]);
            m[h] = top[h], l[h] *= r;
#pragma unroll
            for (int b = 0; b < D / 64; b++) o[b][h] *= r, o[b][2 + h] *= r;
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
            const float inv = 1.f / l[h];
            const gptr<T> dst = ptr_cast<T>(p.out) + size_t(w.q_row + head) * D + warp * 16 + lane / 4;
#pragma unroll
            for (int b = 0; b < D / 64; b++) dst[64 * b] = from_float<T>(o[b][h] * inv), dst[64 * b + 8] = from_float<T>(o[b][2 + h] * inv);
            if (p.lse && warp == 0 && lane < 4) p.lse[w.q_row + head] = m[h] * kLn2 + logf(l[h]);
        }
    }
    // Part of a result: store it; the last part to arrive adds them all up in slot order, so that the result does not
    // depend on who came last. Nobody waits for anybody, so no two CTAs need to run at the same time.
    DEV bool merge(const Params& p, const Work& w, uint32_t sums, int warp, int lane) {
        constexpr int kSlot = kSlotFloats<D>, kThread = D / 16;
        asm volatile("" : "+r"(lane));                               // or ptxas keeps (and spills) these addresses through the main loop
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
        bar_sync(kBar, 128);
        bool last = false;
        if (warp == 0 && lane == 0) {
            last = atom_inc_acq_rel(p.arrived + w.group) == w.parts - 1;
            if (last) p.arrived[w.group] = 0;
        }
        if (!bar_any(kBar, 128, last)) return false;
        __threadfence();
        clear(true, true);
        // 32 parts at a time: first everybody's m and l in one trip to L2, into the place of P, then the outputs.
        for (int begin = 0; begin < w.parts; begin += 32) {
            const int count = min(32, w.parts - begin);
            const gptr<const float> block = slots + size_t(begin) * kSlot;
            if (warp * 8 + lane / 4 < count)
                st_shared_v4(sums + (warp * 32 + lane) * 16, __ldcg(ptr_cast<const float4>(block + size_t(warp * 8 + lane / 4) * kSlot + ml_at)));
            bar_sync(kBar, 128);
            if (real) {
                float top[2] = {m[0], m[1]};
                for (int i = 0; i < count; i++) {
                    const float4 x = ld_shared_v4(sums + (i * 4 + (lane & 3)) * 16);
                    top[0] = fmaxf(top[0], x.x), top[1] = fmaxf(top[1], x.y);
                }
                scale_to(top);
#pragma unroll 4
                for (int i = 0; i < count; i++) {
                    const float4 x = ld_shared_v4(sums + (i * 4 + (lane & 3)) * 16);
                    const float r0 = ex2(x.x - m[0]), r1 = ex2(x.y - m[1]);
                    l[0] = fmaf(x.z, r0, l[0]), l[1] = fmaf(x.w, r1, l[1]);
#pragma unroll
                    for (int b = 0; b < D / 64; b++) {
                        const float4 y = __ldcg(ptr_cast<const float4>(block + size_t(i) * kSlot + b * 512 + at));
                        o[b][0] = fmaf(y.x, r0, o[b][0]), o[b][1] = fmaf(y.y, r1, o[b][1]);
                        o[b][2] = fmaf(y.z, r0, o[b][2]), o[b][3] = fmaf(y.w, r1, o[b][3]);
                    }
                }
            }
            bar_sync(kBar, 128);                                     // before `sums` is filled again
        }
        return true;
    }
};

template <typename T, int D, int kGranules>
DEV void consume(const Params& p, uint32_t base, Control<kGranules>& c, int warp, int lane) {
    using S = Smem<D, kGranules>;
    constexpr int kPanels = D / 64;
    const uint32_t full = smem_u32(c.full), empty = smem_u32(c.empty);
    const int token = warp * 16 + lane / 4;                          // this thread's tokens of a tile: token, token + 8
    const float scale = p.scale_log2;
    Cursor<kGranules> at;
    State<T, D> state;
    float s[4], s2[4];
    uint32_t k_slots[kPanels], v_slots[kPanels];

    auto free_slots = [&](const uint32_t (&slots)[kPanels]) {
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < kPanels; i++) mbar_arrive(empty + 8 * slots[i]);
    };
    // All panels of a tile are waited for before the first wgmma: a wait between them would make ptxas insert arrives.
    auto take = [&](uint32_t (&slots)[kPanels]) {
#pragma unroll
        for (int i = 0; i < kPanels; i++, at.next()) {
            slots[i] = at.slot;
            mbar_wait(full + 8 * at.slot, at.phase);
        }
        wgmma_fence();
    };
    // S^T = K Q^T: two chains of accumulation, because one would be latency-bound.
    auto issue_qk = [&](uint32_t q) {
        take(k_slots);
#pragma unroll
        for (int panel = 0; panel < kPanels; panel++) {
            const uint64_t dk = desc_sw128(base + k_slots[panel] * kGranule, 1, 1024), dq = desc_sw128(q + panel * 1024, 1, 1024);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float (&x)[4] = k & 1 ? s2 : s;
                panel == 0 && k < 2 ? wgmma_n8<T, 0, 0>(x, dk + 2 * k, dq + 2 * k) : wgmma_n8<T, 0, 1>(x, dk + 2 * k, dq + 2 * k);
            }
        }
        wgmma_commit();
    };
    // O^T += V^T P^T: block b of 64 columns is panel b of V.
    auto issue_pv = [&](uint32_t probs) {
        const uint64_t dp = desc_plain(probs, 128);
        take(v_slots);
#pragma unroll
        for (int b = 0; b < kPanels; b++) {
            const uint64_t dv = desc_sw128(base + v_slots[b] * kGranule, 1, 1024);
#pragma unroll
            for (int k = 0; k < kTokens / 16; k++) wgmma_n8<T, 1, 1>(state.o[b], dv + ((k * 2048) >> 4), dp + ((k * 256) >> 4));
        }
        wgmma_commit();
    };
    auto touch_o = [&] {
#pragma unroll
        for (int b = 0; b < kPanels; b++) touch(state.o[b]);
    };

    for (uint32_t piece = 0;; piece++) {
        mbar_wait(smem_u32(&c.q_full[piece & 1]), (piece >> 1) & 1);
        const Work& w = c.work[piece & 1];
        if (w.rows == 0) {
            c.done = true;
            return;
        }
        const uint32_t q = base + S::kQ + (piece & 1) * S::kQBytes;
        const bool real0 = 2 * (lane & 3) < w.rows, real1 = 2 * (lane & 3) + 1 < w.rows;
        const int tiles = w.end - w.begin, tail = w.kv_len - (w.end - 1) * kTokens;  // tokens of the last tile, if < kTokens
        state.clear(real0, real1);

        // P of tile i from its scores: first with the maximum as it is; only if some score is over it by more than the
        // slack is the maximum raised and P made again. One barrier either way shows P to the tensor cores.
        auto probabilities = [&](int i, bool beside_pv) {
#pragma unroll
            for (int e = 0; e < 4; e++) s[e] += s2[e];
            if (i == tiles - 1 && tail < kTokens) {
                if (token >= tail) s[0] = s[1] = -INFINITY;
                if (token + 8 >= tail) s[2] = s[3] = -INFINITY;
            }
            const uint32_t dst = base + S::kP + (i & 1) * S::kPBytes + token * 16 + (lane & 3) * 4;
            float e[4];
            auto make = [&] {
#pragma unroll
                for (int x = 0; x < 4; x++) e[x] = ex2(fmaf(s[x], scale, -state.m[x & 1]));
                st_shared(dst, pack2<T>(e[0], e[1]));
                st_shared(dst + 128, pack2<T>(e[2], e[3]));
                fence_proxy_async();
            };
            const bool over = fmaxf(fmaf(fmaxf(s[0], s[2]), scale, -state.m[0]), fmaf(fmaxf(s[1], s[3]), scale, -state.m[1])) > kSlack;
            make();
            if (beside_pv) {
                wgmma_wait<0>();
                touch_o();
                free_slots(v_slots);
            }
            if (bar_any(kBar, 128, over)) {
                state.raise(s, scale, c.exchange, warp, lane);
                make();
                bar_sync(kBar, 128);
            }
            state.l[0] += e[0] + e[2], state.l[1] += e[1] + e[3];
        };

        issue_qk(q);
        wgmma_wait<0>();
        touch(s), touch(s2);
        free_slots(k_slots);
        probabilities(0, false);
#pragma unroll 1
        for (int i = 1; i < tiles; i++) {
            issue_qk(q);                                             // the next scores go first, their softmax runs under P V
            issue_pv(base + S::kP + ((i - 1) & 1) * S::kPBytes);
            wgmma_wait<1>();
            touch(s), touch(s2);
            free_slots(k_slots);
            probabilities(i, true);
        }
        if (tail < kTokens) {                                        // rows past the end may hold anything: 0 * NaN is NaN
            Cursor<kGranules> ahead = at;
#pragma unroll
            for (int b = 0; b < kPanels; b++, ahead.next()) {
                mbar_wait(full + 8 * ahead.slot, ahead.phase);
                for (int x = tail * 8 + warp * 32 + lane; x < kTokens * 8; x += 128) st_shared_zero16(base + ahead.slot * kGranule + x * 16);
            }
            fence_proxy_async();
            bar_sync(kBar, 128);
        }
        issue_pv(base + S::kP + ((tiles - 1) & 1) * S::kPBytes);
        wgmma_wait<0>();
        touch_o();
        free_slots(v_slots);
        state.total(c.exchange, warp, lane);
        if (w.parts == 1 || state.merge(p, w, base + S::kP, warp, lane)) state.write(p, w, warp, lane);
        __syncwarp();
        if (lane == 0) mbar_arrive(smem_u32(&c.q_empty[piece & 1]));
    }
}

}  // namespace pod90::decode
