// Prefill on Hopper: one producer warp, two or three consumer warpgroups of 64 query rows each, blocks of 128 keys.
// Q, O: [tokens, Hq, D]. A tile's rows are tokens x heads of one KV head (token major), so that a short chunk fills a tile
// with the heads of its group instead of padding. A tile's KV blocks are walked from the last to the first, so that only the first ones are masked.
#pragma once
#include "sm90/common.cuh"

namespace pod90::prefill {

constexpr int kN = 128;                                              // KV tokens of a block
constexpr uint32_t kPanel = 128 * 128;                               // 128 rows of 64 columns: one swizzled panel

// Shared memory: Q, then two stages each of K and V. A tile of K or V is [panel][128 rows]. With pages of kPage <
// 128 tokens (kPage = 0: larger, or contiguous) that would take a copy for each page and panel; there a tile is [group of 8
// rows][panel][8 rows], so that one copy brings a whole page and the groups are still evenly spaced, as wgmma asks.
template <int D, int kPage = 0, int kGroups = 2> struct Smem {
    static constexpr uint32_t kTile = (D / 64) * kPanel, kQGroup = kTile / 2;
    static constexpr uint32_t kQ = 0, kK = kGroups * kQGroup, kV = kK + 2 * kTile, kBytes = kV + 2 * kTile;
    static constexpr uint32_t kPanelStep = kPage ? 1024 : kPanel, kGroupStep = kPage ? (D / 64) * 1024 : 1024;
};

struct Params {
    gptr<const Work> work;                                           // [units], longest first
    gptr<uint16_t> out;
    gptr<float> lse;                                                 // [tokens, Hq], natural log; may be null
    gptr<int> counters;                                              // [0] next unit, [1] CTAs done; 0 between launches
    gptr<float> part;                                                // partial results of split tiles
    gptr<int> arrived;                                               // one a group and warp: partials stored; 0 between launches
    int units, Hq, group, causal, pack_shift;                        // 1 << pack_shift query heads share a tile
    int yields;                                                      // leave the tensor cores to decode between turns
    float scale_log2;
};

// Barriers (8 bytes each) and, behind them, the records of the tiles in flight: [warpgroup][tile parity].
template <int kGroups> struct Control {
    uint64_t q_full[kGroups], q_empty[kGroups], k_full[2], k_empty[2], v_full[2], v_empty[2], tail;
    alignas(16) Work work[kGroups][2];
};

template <int kGroups> DEV void init(Control<kGroups>& c) {
    for (int g = 0; g < kGroups; g++) mbar_init(smem_u32(&c.q_full[g]), 1), mbar_init(smem_u32(&c.q_empty[g]), 4);
    for (int s = 0; s < 2; s++) {                                    // "empty" counts one arrival per consumer warp
        mbar_init(smem_u32(&c.k_full[s]), 1), mbar_init(smem_u32(&c.k_empty[s]), 4 * kGroups);
        mbar_init(smem_u32(&c.v_full[s]), 1), mbar_init(smem_u32(&c.v_empty[s]), 4 * kGroups);
    }
    mbar_init(smem_u32(&c.tail), 1);
}

// ---------------------------------------------------------------- producer: one warp
template <int D, int kPage, int kGroups>
struct Producer {
    const CUtensorMap &mq, &mk, &mv;
    const Params& p;
    const KvLayout& kv;
    uint32_t base;
    Control<kGroups>& c;
    int lane;
    PageWindow window = {};
    uint32_t blocks = 0, tiles = 0, tails = 0;                       // so far: stage and phase carry on across tiles
    using S = Smem<D, kPage, kGroups>;

    template <bool kIsV> DEV void load(int seq, int kv_len, int kv_head, int block, uint32_t i) {
        const uint32_t s = i & 1, dst = base + (kIsV ? S::kV : S::kK) + s * S::kTile;
        const int row = block * kN;
        const Source from = find(kv, window, seq, row, kv_len, lane);
        const bool tail = kIsV && kv_len - row < kN;
        const uint32_t full = smem_u32(kIsV ? &c.v_full[s] : &c.k_full[s]), done = tail ? smem_u32(&c.tail) : full;
        mbar_wait(smem_u32(kIsV ? &c.v_empty[s] : &c.k_empty[s]), ((i >> 1) & 1) ^ 1);
        if (elect_one()) mbar_arrive_tx(done, S::kTile);
        const CUtensorMap* map = kIsV ? &mv : &mk;
        if constexpr (kPage != 0) {                                  // map: 64 columns, 8 rows, heads x panels, groups, pages
            for_pages<kN / kPage>(from, [&](int i, int page) {
                tma_load_5d(dst + i * kPage * D * 2, map, done, 0, kv_head * (D / 64), 0, page);
            });
        } else {
#pragma unroll
            for (int panel = 0; panel < D / 64; panel++) load_block(map, dst + panel * kPanel, done, from, panel, kv_head);
        }
        if (tail) clear_tail(dst, kv_len - row, full);
    }
    // V rows past the sequence's end may hold anything, and 0 * NaN would poison the sum.
    DEV void clear_tail(uint32_t dst, int first, uint32_t full) {
        mbar_wait(smem_u32(&c.tail), tails++ & 1);
        for (int i = first * 8 + lane; i < kN * 8; i += 32)
#pragma unroll
            for (int panel = 0; panel < D / 64; panel++)
                st_shared_zero16(dst + panel * S::kPanelStep + i / 64 * S::kGroupStep + i % 64 * 16);
        fence_proxy_async();
        __syncwarp();
        if (elect_one()) mbar_arrive(full);
    }
    // Each warpgroup has its own part of Q, so that it starts on a tile without waiting for the other one.
    DEV void load_q(int wg, const Record& w) {
        mbar_wait(smem_u32(&c.q_empty[wg]), (tiles & 1) ^ 1);
        const uint32_t full = smem_u32(&c.q_full[wg]);
        const int token = FIELD(w, q_row) + wg * (64 >> p.pack_shift), head = FIELD(w, head);
        w.copy_to(c.work[wg][tiles & 1], lane);
        __syncwarp();
        if (elect_one()) {
            mbar_arrive_tx(full, S::kQGroup);
#pragma unroll
            for (int panel = 0; panel < D / 64; panel++)
                tma_load_4d(base + S::kQ + (wg * (D / 64) + panel) * (kPanel / 2), &mq, full, head, token, panel);
        }
        __syncwarp();
    }
    DEV void stop(int wg) {
        mbar_wait(smem_u32(&c.q_empty[wg]), (tiles & 1) ^ 1);
        if (elect_one()) c.work[wg][tiles & 1].rows = 0, mbar_arrive(smem_u32(&c.q_full[wg]));
        __syncwarp();
    }
    DEV int ticket() {
        int t = 0;
        if (lane == 0) t = atomicAdd(p.counters, 1);
        return __shfl_sync(~0u, t, 0);
    }
    DEV void run() {
        for (int unit = blockIdx.x; unit < p.units; tiles++) {
            const Record w(p.work + unit, lane);
            const int seq = FIELD(w, seq), kv_len = FIELD(w, kv_len), kv_head = FIELD(w, head) / p.group, begin = FIELD(w, begin);
            int n = FIELD(w, end) - 1;
            window.base = -1;
            load<false>(seq, kv_len, kv_head, n, blocks);            // the order in which the consumers use them; K does
            for (int g = 0; g < kGroups; g++) load_q(g, w);          // not wait for the previous tile's Q
#pragma unroll 1
            for (; n > begin; n--) {
                load<false>(seq, kv_len, kv_head, n - 1, blocks + 1);
                load<true>(seq, kv_len, kv_head, n, blocks++);
            }
            // ask for the next unit just before the last wait: late enough to stay dynamic, early enough to hide
            unit = ticket() + gridDim.x;
            load<true>(seq, kv_len, kv_head, n, blocks++);
        }
        for (int g = 0; g < kGroups; g++) stop(g);
        // the last CTA to run dry leaves the counters as it found them
        if (lane == 0 && atomicAdd(p.counters + 1, 1) == int(gridDim.x) - 1) reset(p.counters), reset(p.counters + 1);
    }
};

// ---------------------------------------------------------------- consumers: two or three warpgroups
// S = Q K^T for this warpgroup's 64 rows: k16 steps, 4 in each panel.
template <typename T, int D, int kPage> DEV void issue_qk(float (&s)[64], uint64_t dq, uint64_t dk) {
    constexpr uint32_t kStep = Smem<D, kPage>::kPanelStep;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const uint32_t a = ((k >> 2) * (kPanel / 2) + (k & 3) * 32) >> 4, b = ((k >> 2) * kStep + (k & 3) * 32) >> 4;
        k == 0 ? wgmma_ss<T, 0>(s, dq + a, dk + b) : wgmma_ss<T, 1>(s, dq + a, dk + b);
    }
    wgmma_commit();
}
// O += P V: P from registers, V MN-major, 16 KV rows a step.
template <typename T, int D, int kPage> DEV void issue_pv(float (&o)[D / 2], const uint32_t (&p)[32], uint64_t dv) {
    constexpr uint32_t kStep = 2 * Smem<D, kPage>::kGroupStep;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kN / 16; k++) wgmma_rs<T>(o, p + 4 * k, dv + ((k * kStep) >> 4));
    wgmma_commit();
}

// Online softmax on the S fragment, in base 2. A thread holds rows g and g+8: s[4j+c] and s[4j+2+c] are columns
// 8j + 2(lane%4) + c. `lim[r]` is the last visible column of row g + 8r, less 2(lane%4).
// Part 1: mask, row maxima, the factor `corr` for what was summed before, the exponent offset `ms`. A maximum that is too low
// by no more than the slack stays: P fits 16 bits all the same, and where no row of a warp has a new one O needs no rescaling.
template <bool kFirst, bool kMask>
DEV void softmax_max(float (&s)[64], float (&m)[2], float (&corr)[2], float (&ms)[2], int lim, int step, float c) {
    if (kMask) {
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * j + (e & 1) > lim + (e >> 1) * step) s[4 * j + e] = -INFINITY;
    }
    float top[2] = {s[0], s[2]};
    // Row g's maximum takes four short chains and row g+8's one long chain on purpose: ptxas then finishes row g first,
    // and its exponentials (the slow unit) start while row g+8's maximum is still being taken.
    float a[4] = {s[0], s[1], s[4], s[5]};
#pragma unroll
    for (int j = 2; j < 16; j++)
        a[2 * (j & 1)] = fmaxf(a[2 * (j & 1)], s[4 * j]), a[2 * (j & 1) + 1] = fmaxf(a[2 * (j & 1) + 1], s[4 * j + 1]);
    top[0] = fmaxf(fmaxf(a[0], a[1]), fmaxf(a[2], a[3]));
#pragma unroll
    for (int j = 0; j < 16; j++) top[1] = fmaxf(fmaxf(top[1], s[4 * j + 2]), s[4 * j + 3]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (!kFirst) top[r] = fmaxf(top[r], m[r]);
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
        if (!kFirst && (top[r] - m[r]) * c <= kSlack) top[r] = m[r];
        ms[r] = kMask && top[r] == -INFINITY ? 0.f : top[r] * c;     // a row with nothing visible yet must not make NaN
        corr[r] = kFirst || top[r] == m[r] ? 1.f : ex2(fmaf(m[r], c, -ms[r]));
        m[r] = top[r];
    }
}
// Part 2: exponentials in place and row sums.
DEV void softmax_exp(float (&s)[64], float (&l)[2], const float (&corr)[2], const float (&ms)[2], float c) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 2 * r; i < 64; i += 4) s[i] = ex2(fmaf(s[i], c, -ms[r])), s[i + 1] = ex2(fmaf(s[i + 1], c, -ms[r]));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] *= corr[r];
#pragma unroll
        for (int i = 2 * r; i < 64; i += 4) l[r] += s[i], l[r] += s[i + 1];
    }
}
// The S fragment is already laid out as the A operand: only convert.
template <typename T> DEV void to_p(uint32_t (&p)[32], const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 32; i++) p[i] = pack2<T>(s[2 * i], s[2 * i + 1]);
}
template <int N> DEV void rescale(float (&o)[N], const float (&corr)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= corr[(i >> 1) & 1];
}

// Split tiles: every warp stores its partial, and the last of the warps that share these 16 rows adds them up in slot
// order, so the result does not depend on who came last. Returns whether this warp holds the final result.
template <int D, int kWarps>
DEV bool merge(const Params& p, const Work& w, float (&o)[D / 2], float (&m)[2], float (&l)[2], int warp, int lane) {
    constexpr int kVecs = D / 8 + 1;                                 // float4 a lane stores: O, then m and l
    const gptr<float4> base = ptr_cast<float4>(p.part) + (size_t(w.slot) * kWarps + warp) * kVecs * 32 + lane;
    constexpr size_t kStride = kWarps * kVecs * 32;
    const gptr<float4> mine = base + w.part * kStride;
#pragma unroll
    for (int i = 0; i < D / 8; i++) __stcg(mine + i * 32, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
    __stcg(mine + (kVecs - 1) * 32, make_float4(m[0], m[1], l[0], l[1]));
    __threadfence();
    __syncwarp();
    int old = 0;
    if (lane == 0) {
        const gptr<int> arrived = p.arrived + w.group * kWarps + warp;
        old = atom_inc_acq_rel(arrived);
        if (old == w.parts - 1) arrived[0] = 0;
    }
    __syncwarp();                                                    // what lane 0 has acquired, all may read
    if (__shfl_sync(~0u, old, 0) != w.parts - 1) return false;
    __threadfence();
    float top[2] = {-INFINITY, -INFINITY};
    for (int s = 0; s < w.parts; s++) {
        const float4 x = __ldcg(base + s * kStride + (kVecs - 1) * 32);
        top[0] = fmaxf(top[0], x.x), top[1] = fmaxf(top[1], x.y);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) m[r] = top[r], l[r] = 0.f, top[r] = top[r] == -INFINITY ? 0.f : top[r];
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0.f;
#pragma unroll 1
    for (int s = 0; s < w.parts; s++) {
        const gptr<const float4> part = base + s * kStride;
        const float4 x = __ldcg(part + (kVecs - 1) * 32);
        const float w0 = ex2((x.x - top[0]) * p.scale_log2), w1 = ex2((x.y - top[1]) * p.scale_log2);
        l[0] = fmaf(x.z, w0, l[0]), l[1] = fmaf(x.w, w1, l[1]);
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            const float4 y = __ldcg(part + i * 32);
            o[4 * i] = fmaf(y.x, w0, o[4 * i]), o[4 * i + 1] = fmaf(y.y, w0, o[4 * i + 1]);
            o[4 * i + 2] = fmaf(y.z, w1, o[4 * i + 2]), o[4 * i + 3] = fmaf(y.w, w1, o[4 * i + 3]);
        }
    }
    return true;
}

// Divide by the row sums and store: a 4x4 word transpose inside each quad turns 4-byte pieces into 16-byte stores.
template <typename T, int D>
DEV void epilogue(const Params& p, const Work& w, float (&o)[D / 2], float (&m)[2], float (&l)[2], int row, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] += __shfl_xor_sync(~0u, l[r], 1);
        l[r] += __shfl_xor_sync(~0u, l[r], 2);
        const float inv = 1.f / l[r];
        const int q = row + 8 * r;
        const size_t at = size_t(w.q_row + (q >> p.pack_shift)) * p.Hq + w.head + (q & ((1 << p.pack_shift) - 1));
        const gptr<T> dst = ptr_cast<T>(p.out) + at * D + (lane & 3) * 8;
        if (p.lse && q < w.rows && (lane & 3) == 0) p.lse[at] = m[r] * p.scale_log2 * kLn2 + logf(l[r]);
#pragma unroll
        for (int jj = 0; jj < D / 32; jj++) {
            uint32_t x[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int i = 4 * (4 * jj + k) + 2 * r;
                x[k] = pack2<T>(o[i] * inv, o[i + 1] * inv);
            }
            const bool b0 = lane & 1, b1 = lane & 2;
            uint32_t y = __shfl_xor_sync(~0u, b0 ? x[0] : x[1], 1), z = __shfl_xor_sync(~0u, b0 ? x[2] : x[3], 1);
            x[0] = b0 ? y : x[0], x[1] = b0 ? x[1] : y, x[2] = b0 ? z : x[2], x[3] = b0 ? x[3] : z;
            y = __shfl_xor_sync(~0u, b1 ? x[0] : x[2], 2), z = __shfl_xor_sync(~0u, b1 ? x[1] : x[3], 2);
            x[0] = b1 ? y : x[0], x[1] = b1 ? z : x[1], x[2] = b1 ? x[2] : y, x[3] = b1 ? x[3] : z;
            if (q < w.rows) st_global_v4(dst + 32 * jj, x[0], x[1], x[2], x[3]);
        }
    }
}

// Consumer warpgroup `wg`, 64 query rows. They take turns at the tensor cores (ping-pong) through barriers 1 to kGroups.
template <typename T, int D, int kPage, int kGroups>
DEV void consume(const Params& p, uint32_t base, Control<kGroups>& c, const volatile bool& decode_done, int wg, int warp, int lane) {
    using S = Smem<D, kPage, kGroups>;
    const int row = wg * 64 + (warp & 3) * 16 + lane / 4;
    const uint64_t dq = desc_sw128(base + S::kQ + wg * S::kQGroup, 1, 1024);
    const uint64_t dk0 = desc_sw128(base + S::kK, 1, S::kGroupStep), dv0 = desc_sw128(base + S::kV, S::kPanelStep, S::kGroupStep);
    const uint32_t k_full = smem_u32(c.k_full), k_empty = smem_u32(c.k_empty), v_full = smem_u32(c.v_full), v_empty = smem_u32(c.v_empty);
    uint32_t it = 0, nt = 0;
    float o[D / 2], s[64], m[2], l[2], corr[2];
    uint32_t pr[32];
    auto wait_k = [&](uint32_t i) { mbar_wait(k_full + 8 * (i & 1), (i >> 1) & 1); };
    auto wait_v = [&](uint32_t i) { mbar_wait(v_full + 8 * (i & 1), (i >> 1) & 1); };
    auto free_k = [&](uint32_t i) { if (lane == 0) mbar_arrive(k_empty + 8 * (i & 1)); };
    auto free_v = [&](uint32_t i) { if (lane == 0) mbar_arrive(v_empty + 8 * (i & 1)); };
    auto dk = [&](uint32_t i) { return dk0 + (i & 1) * (S::kTile >> 4); };
    auto dv = [&](uint32_t i) { return dv0 + (i & 1) * (S::kTile >> 4); };
    const int mine = 1 + wg, next = wg == kGroups - 1 ? 1 : 2 + wg;  // the barriers of the turns
    if (next == 1) bar_arrive(1, 256);                               // warpgroup 0 goes first

    for (;; nt++) {
        mbar_wait(smem_u32(&c.q_full[wg]), nt & 1);
        const Work& w = c.work[wg][nt & 1];                          // stays until the next tile's Q has been consumed
        if (w.rows == 0) break;
        // Columns visible to a row of the tile: up to its token's position, or the whole sequence without a causal mask.
        const int begin = w.begin, full = (p.causal ? w.pos0 + 1 : w.kv_len) / kN, step_lim = p.causal ? 8 >> p.pack_shift : 0;
        const bool yield = p.yields && !decode_done;
        int n = w.end - 1;
        int lim = (p.causal ? w.pos0 + (row >> p.pack_shift) : w.kv_len - 1) - n * kN - 2 * (lane & 3);
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0.f;

        wait_k(it);                                                  // first block: nothing to overlap with
        issue_qk<T, D, kPage>(s, dq, dk(it));
        wgmma_wait<0>();
        touch(s);
        free_k(it);
        float ms[2];
        softmax_max<true, true>(s, m, corr, ms, lim, step_lim, p.scale_log2);
        l[0] = l[1] = 0.f;
        softmax_exp(s, l, corr, ms, p.scale_log2);
        to_p<T>(pr, s);

        auto step = [&](auto masked) {
            // the next S goes to the tensor cores before this P V, and its softmax runs under P V
            wait_k(it + 1);
            bar_sync(mine, 256);
            issue_qk<T, D, kPage>(s, dq, dk(it + 1));
            wait_v(it);
            issue_pv<T, D, kPage>(o, pr, dv(it));
            if (!yield) bar_arrive(next, 256);
            wgmma_wait<1>();
            touch(s);
            free_k(it + 1);
            float ms[2];
            softmax_max<false, decltype(masked)::value>(s, m, corr, ms, lim, step_lim, p.scale_log2);
            softmax_exp(s, l, corr, ms, p.scale_log2);
            wgmma_wait<0>();
            touch(o), touch(s);
            if (yield) bar_arrive(next, 256);                        // the other's turn begins when this one is through, not issued
            free_v(it++);
            to_p<T>(pr, s);
            if (__any_sync(~0u, corr[0] != 1.f || corr[1] != 1.f)) rescale(o, corr);
        };
        for (n--, lim += kN; n >= max(full, begin); n--, lim += kN) step(std::true_type{});
#pragma unroll 1
        for (; n >= begin; n--) step(std::false_type{});
        converged();
        if (lane == 0) mbar_arrive(smem_u32(&c.q_empty[wg]));        // Q is free: the next tile's copy may start
        wait_v(it);
        issue_pv<T, D, kPage>(o, pr, dv(it));
        wgmma_wait<0>();
        touch(o);
        free_v(it++);
        if (w.parts > 1 && !merge<D, 4 * kGroups>(p, w, o, m, l, warp & 3 | wg << 2, lane)) continue;
        epilogue<T, D>(p, w, o, m, l, row, lane);
    }
}

}  // namespace pod90::prefill
