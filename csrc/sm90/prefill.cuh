// Prefill on Hopper: one producer warp, two or three consumer warpgroups of 64 query rows each, blocks of 128 keys.
// Q, O: [tokens, Hq, D]. A tile's rows are tokens x heads of one KV head, so that a short chunk fills a tile with the
// heads of its group instead of padding. A tile's blocks of keys are walked from the last to the first,
// so that only the first ones are masked. K and V of 8 bits land in the second half of their stage, and two warps that
// have nothing else to do widen them in place.
#pragma once
#include "sm90/common.cuh"

namespace sm90::prefill {

constexpr int kKeys = 128;               // of a block
constexpr int kFan = 8;                  // parts that are merged at a time: FAN of pod/kernels/sm90.py
constexpr int kOnce = 16;                // or in one round, where rows are few
template <bool kFew> DEV int fan_of(int parts) { return parts <= (kFew ? kOnce : kFan) ? 1 : kFan; }
constexpr int kGroupRows = 64;           // of a warpgroup, as wgmma has them
constexpr int kBarrier = 6;              // named barrier of the first warpgroup alone
constexpr uint32_t kPanel = 128 * 128;   // 128 rows of 64 columns: one swizzled panel

// Shared memory: Q, then two stages each of K and V. A tile of K or V is [panel][128 rows]. With pages of kPage < 128
// tokens (kPage = 0: larger, or contiguous) that would take a copy for each page and panel; there a tile is [group of 8
// rows][panel][8 rows], so that one copy brings a whole page and the groups are still evenly spaced, as wgmma asks.
template <int D, int kPage = 0, int kGroups = 2> struct Smem {
    static constexpr uint32_t kTile = (D / 64) * kPanel, kQGroup = kTile / 2;
    static constexpr uint32_t kQ = 0, kK = kGroups * kQGroup, kV = kK + 2 * kTile, kBytes = kV + 2 * kTile;
    static constexpr uint32_t kPanelStep = kPage ? 1024 : kPanel, kGroupStep = kPage ? (D / 64) * 1024 : 1024;
};

// Which rows of a tile are which: a warpgroup has some tokens by some query heads of one KV head, token by token; the
// next one has the next tokens, or the next heads of the same tokens.
struct Pack {
    int heads, tokens;             // of a warpgroup: heads x tokens <= 64
    int next_head, next_token;     // from one warpgroup to the next: one of them is 0
    int inverse;                   // 65536 / heads, rounded up

    DEV int token(int row) const { return row * inverse >> 16; }  // rows below 64, so it is exact
};
// What a warpgroup has of a tile; maybe nothing.
struct Share {
    int first_token, first_head, tokens, heads;
    DEV Share(const Pack& pack, const Work& w, int kv_group, int group)
        : first_token(group * pack.next_token), first_head(group * pack.next_head),
          tokens(min(pack.tokens, w.tokens - first_token)),
          heads(min(pack.heads, kv_group - w.head % kv_group - first_head)) {}
    DEV bool empty() const { return tokens <= 0 || heads <= 0; }
};

struct Params {
    gptr<const Work> work;   // of units, in the order to draw them; then some without tokens
    gptr<const int> yields;  // leave the tensor cores to decode between turns
    gptr<uint16_t> out;
    gptr<float> lse;         // [tokens, Hq], natural log; may be null
    Queue queue;             // of units
    gptr<float> part;        // partial results of split tiles
    gptr<int> arrived;       // one a group and warp: partials stored; 0 between launches
    int num_q_heads, group, causal;
    Pack pack;
    float scale_log2;
    Rules rules;
};

// Of 8 bits: what has landed and is not widened yet, of K and of V, and how many of its keys there are; -1: no more.
template <int kBits> struct Landed {
    DEV void init() {}
};
template <> struct Landed<8> {
    Ring<2> landed[2];
    shared<int> keys[2][2];

    DEV void init() {
        for (Ring<2>& ring : landed) ring.init(1);
    }
};
// Rings and, behind them, the records of the tiles in flight: [warpgroup][tile parity].
template <int kGroups, int kBits> struct Control : Landed<kBits> {
    Ring<1> q[kGroups];  // every warpgroup's rows of Q
    Ring<2> k, v;        // blocks that all warpgroups read
    uint64_t tail;       // mbarrier: the copy of a block of V that is not whole; readers see it when it is cleared
    alignas(16) Work work[kGroups][2];

    DEV void init() {  // readers are warps
        for (int g = 0; g < kGroups; g++) q[g].init(4);
        k.init(4 * kGroups);
        v.init(4 * kGroups);
        ptx::mbar_init(ptx::smem_u32(&tail), 1);
        Landed<kBits>::init();
    }
};

// Rows of a warpgroup that no token has (one, where 7 heads share 64 rows) are never copied. What lies there must not
// be NaN: their maximum would rise with every block, and O be rescaled with it. By all threads, before any copy.
template <typename S, int kGroups> DEV void clear_padding(const Pack& pack, smem_addr base, int threads) {
    if (pack.heads * pack.tokens == kGroupRows) return;
    for (uint32_t at = threadIdx.x * 16; at < kGroups * S::kQGroup; at += threads * 16)
        ptx::st_shared_16(base + S::kQ + at, uint4{});
    ptx::fence_proxy_async();
}

// ---------------------------------------------------------------- producer: one warp
template <int D, int kPage, int kGroups, int kBits> struct Producer {
    using S = Smem<D, kBits == 16 ? kPage : 0, kGroups>;
    const TensorMaps& maps;
    const Params& p;
    const KvLayout& kv;
    const Slabs& slabs;
    smem_addr base;
    Control<kGroups, kBits>& c;
    int lane;
    PageWindow window = {};
    Place<2> block = {};  // of K and V; places carry on across tiles
    Place<1> tile = {}, tail = {};

    // Block n of a sequence. Its length and number are asked for anew: registers are short.
    template <bool kValues> DEV void load(const Record& w, int kv_head, int n, Place<2> at) {
        Ring<2>& ring = kValues ? c.v : c.k;
        const smem_addr dst = base + (kValues ? S::kV : S::kK) + at.stage() * S::kTile;
        const int row = n * kKeys, kv_len = FIELD(w, kv_len);
        Source from = find<kPage>(kv, window, FIELD(w, seq), row, kv_len, lane);
        if constexpr (kBits == 8) return land<kValues>(from, kv_head, kv_len - row, at);
        const bool is_tail = kValues && kv_len - row < kKeys;
        const smem_addr filled = ring.filled(at), copied = is_tail ? ptx::smem_u32(&c.tail) : filled;
        ring.acquire(at);
        if (ptx::elect_one()) ptx::mbar_arrive_tx(copied, S::kTile);
        const CUtensorMap* map = kValues ? &maps.v : &maps.k;
        if constexpr (kPage != 0) {  // map: 64 columns, 8 rows, panels, groups, slabs
            from.page = slabs.at(from.page, kv_head);
            for_pages<kKeys, kPage>(from, [&](int i, int slab, int first) {
                ptx::tma_load_5d(dst + i * kPage * D * 2, map, copied, 0, 0, first / 8, slab);
            });
        } else {
#pragma unroll
            for (int panel = 0; panel < D / 64; panel++)
                load_block(map, dst + panel * kPanel, copied, from, panel, kv_head);
        }
        if (is_tail) clear_tail(dst, kv_len - row, filled);
    }
    // The same of 8 bits, `keys` of them or all, for a Widener.
    template <bool kValues> DEV void land(const Source& from, int kv_head, int keys, Place<2> at) {
        const smem_addr dst = base + (kValues ? S::kV : S::kK) + at.stage() * S::kTile + S::kTile / 2;
        const CUtensorMap* map = kValues ? &maps.v : &maps.k;
        const smem_addr landed = c.landed[kValues].filled(at);
        (kValues ? c.v : c.k).acquire(at);
        if (ptx::elect_one()) {
            c.keys[kValues][at.stage()] = keys;
            c.landed[kValues].expect(at, S::kTile / 2);
        }
        if constexpr (kPage == 0) return load_block(map, dst, landed, from, 0, kv_head);
        else
#pragma unroll 1
            for (int half = 0; half < 2; half++) {  // registers are short
                const Source part = {from.first, from.page, from.lane0 + half * (kKeys / 2 / kPage)};
                for_pages<kKeys / 2, kPage>(part, [&](int i, int page, int first) {
                    ptx::tma_load_5d(dst + half * (S::kTile / 4) + i * kPage * D, map, landed, first, 0, kv_head, page);
                });
            }
    }
    // No more work for the Wideners.
    template <bool kValues> DEV void stop_widening() {
        (kValues ? c.v : c.k).acquire(block);
        if (ptx::elect_one()) {
            c.keys[kValues][block.stage()] = -1;
            c.landed[kValues].fill(block);
        }
        __syncwarp();
    }
    // V rows past the sequence's end may hold anything, and 0 * NaN would poison the sum.
    DEV void clear_tail(smem_addr dst, int first, smem_addr filled) {
        ptx::mbar_wait(ptx::smem_u32(&c.tail), tail.odd());
        tail.advance();
        for (int i = first * 8 + lane; i < kKeys * 8; i += 32)
#pragma unroll
            for (int panel = 0; panel < D / 64; panel++)
                ptx::st_shared_16(dst + panel * S::kPanelStep + i / 64 * S::kGroupStep + i % 64 * 16, uint4{});
        ptx::fence_proxy_async();
        __syncwarp();
        if (ptx::elect_one()) ptx::mbar_arrive(filled);
    }
    // Each warpgroup has its own part of Q, so that it starts on a tile without waiting for the other one.
    DEV void load_q(int group, const Record& w) {
        c.q[group].acquire(tile);
        const smem_addr filled = c.q[group].filled(tile);
        const int token = FIELD(w, q_row) + group * p.pack.next_token, head = FIELD(w, head) + group * p.pack.next_head;
        w.copy_to(c.work[group][tile.odd()], lane);
        __syncwarp();
        if (ptx::elect_one()) {
            c.q[group].expect(tile, p.pack.heads * p.pack.tokens * D * 2);
#pragma unroll
            for (int panel = 0; panel < D / 64; panel++) {
                const smem_addr dst = base + S::kQ + (group * (D / 64) + panel) * (kPanel / 2);
                ptx::tma_load_4d(dst, &maps.q, filled, head, token, panel);
            }
        }
        __syncwarp();
    }
    // A record without tokens: there is no more work.
    DEV void stop(int group) {
        c.q[group].acquire(tile);
        if (ptx::elect_one()) {
            c.work[group][tile.odd()].tokens = 0;
            c.q[group].fill(tile);
        }
        __syncwarp();
    }
    DEV void run() {
        for (int unit = blockIdx.x;; tile.advance()) {
            const Record w(p.work + unit, lane);
            if (FIELD(w, tokens) == 0) break;
            const int kv_head = FIELD(w, head) / p.group, begin = FIELD(w, begin);
            int n = FIELD(w, end) - 1;
            window.base = -1;
            load<false>(w, kv_head, n, block);      // the order in which the consumers use them; K does
            for (int g = 0; g < kGroups; g++) load_q(g, w);   // not wait for the previous tile's Q
#pragma unroll 1
            for (; n > begin; n--) {
                load<false>(w, kv_head, n - 1, block.next());
                load<true>(w, kv_head, n, block);
                block.advance();
            }
            // ask for the next unit just before the last wait: late enough to stay dynamic, early enough to hide
            unit = draw(p.queue, lane) + gridDim.x;
            load<true>(w, kv_head, n, block);
            block.advance();
        }
        for (int g = 0; g < kGroups; g++) stop(g);
        if constexpr (kBits == 8) {
            stop_widening<false>();
            stop_widening<true>();
        }
        leave(p.queue, lane);
    }
};

// ---------------------------------------------------------------- of 8 bits: one warp for K, one for V
// A block of 8 bits lies in the second half of its stage, row by row in D bytes. Widened in order, rows take the place
// of rows that are read by then: of 128 columns a row's second panel takes its own, of 64 row n that of 2n - 128.
template <int D, int kGroups> struct Widener {
    using S = Smem<D, 0, kGroups>;
    static constexpr int kRows = D == 128 ? 8 : 16;  // at a time: two loads of 16 bytes a lane
    smem_addr base;
    Control<kGroups, 8>& c;
    int lane;

    template <bool kValues> DEV void run() {
        for (Place<2> at;; at.advance()) {
            c.landed[kValues].wait(at);
            const int keys = c.keys[kValues][at.stage()];
            if (keys < 0) break;
            const smem_addr stage = base + (kValues ? S::kV : S::kK) + at.stage() * S::kTile;
            widen(stage, kValues ? keys : kKeys);
            ptx::fence_proxy_async();
            __syncwarp();
            if (ptx::elect_one()) (kValues ? c.v : c.k).fill(at);
            __syncwarp();
        }
    }
    // Eight lanes have eight rows, 16 columns of each: so no two of them meet in a bank. Swizzles repeat with 8 rows.
    DEV void widen(smem_addr stage, int keys) {
        const int lane = ptx::anew(this->lane), mine = lane % 8, sixteen = lane / 8;
        keys -= mine;
        smem_addr from = stage + S::kTile / 2 + swizzle<D>(mine * D + sixteen * 16);
        smem_addr to = stage + swizzle<128>(mine * 128 + sixteen * 32);
#pragma unroll 1
        for (int row = 0; row < kKeys; row += kRows, from += 1024, to += kRows * 128) {
            uint4 x[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                x[i] = ptx::ld_shared_16<uint4>(D == 128 ? from ^ i * 64 : from + i * 512);
                if (row + (D == 64) * 8 * i >= keys) x[i] = uint4{};  // V past the end may be NaN
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint4 low, high;
                ptx::widen(x[i].x, low.x, low.y);
                ptx::widen(x[i].y, low.z, low.w);
                ptx::widen(x[i].z, high.x, high.y);
                ptx::widen(x[i].w, high.z, high.w);
                const smem_addr there = to + i * (D == 128 ? kPanel : 1024);
                ptx::st_shared_16(there, low);
                ptx::st_shared_16(there ^ 16, high);
            }
            __syncwarp();
        }
    }
};

// ---------------------------------------------------------------- consumers: two or three warpgroups
// S = Q K^T for this warpgroup's 64 rows: k16 steps, 4 in each panel.
template <typename T, int D, int kPage> DEV void issue_qk(float (&s)[64], uint64_t q, uint64_t k) {
    constexpr uint32_t kStep = Smem<D, kPage>::kPanelStep;
    ptx::wgmma_fence();
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        const uint32_t a = ((d >> 2) * (kPanel / 2) + (d & 3) * 32) >> 4, b = ((d >> 2) * kStep + (d & 3) * 32) >> 4;
        d == 0 ? ptx::wgmma_ss<T, 0>(s, q + a, k + b) : ptx::wgmma_ss<T, 1>(s, q + a, k + b);
    }
    ptx::wgmma_commit();
}
// O += P V: P from registers, V MN-major, 16 keys a step.
template <typename T, int D, int kPage> DEV void issue_pv(float (&o)[D / 2], const uint32_t (&p)[32], uint64_t v) {
    constexpr uint32_t kStep = 2 * Smem<D, kPage>::kGroupStep;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeys / 16; k++) ptx::wgmma_rs<T>(o, p + 4 * k, v + ((k * kStep) >> 4));
    ptx::wgmma_commit();
}

// Online softmax on the S fragment, in base 2. A thread holds rows g and g+8: s[4j+c] and s[4j+2+c] are columns 8j +
// 2(lane%4) + c. `last_seen` is the last column that row g sees, less 2(lane%4); row g+8 sees `more`. Part 1: cap,
// mask, row maxima, the factor `fade` for what was summed before, the exponent's offset. A maximum that is too low by
// no more than the slack stays: P fits 16 bits all the same, and where no row of a warp has a new one O needs no
// rescaling.
template <bool kFirst, bool kMask, int kRules>
DEV void softmax_max(float (&s)[64], float (&m)[2], float (&fade)[2], float (&offset)[2], int last_seen, int more,
                     float scale_log2, const Rules& rules) {
    if constexpr (kRules & kSoftcap) {
#pragma unroll
        for (int i = 0; i < 64; i++) s[i] = tanh_of(s[i] * rules.cap_log2);
    }
    if (kMask) {
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int column = 8 * j + (e & 1), last = last_seen + (e >> 1) * more;
                if (column > last || (kRules & kWindow && column <= last - rules.window)) s[4 * j + e] = kMinusInf;
            }
    }
    float top[2] = {s[0], s[2]};
    // Row g's maximum takes four short chains and row g+8's one long chain on purpose: ptxas then finishes row g first,
    // and its exponentials (the slow unit) start while row g+8's maximum is still being taken.
    float a[4] = {s[0], s[1], s[4], s[5]};
#pragma unroll
    for (int j = 2; j < 16; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) a[2 * (j & 1) + e] = fmaxf(a[2 * (j & 1) + e], s[4 * j + e]);
    top[0] = fmaxf(fmaxf(a[0], a[1]), fmaxf(a[2], a[3]));
#pragma unroll
    for (int j = 0; j < 16; j++) top[1] = fmaxf(fmaxf(top[1], s[4 * j + 2]), s[4 * j + 3]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (!kFirst) top[r] = fmaxf(top[r], m[r]);
        top[r] = quad_max(top[r]);
        if (!kFirst && (top[r] - m[r]) * scale_log2 <= kSlack) top[r] = m[r];
        // a row that sees nothing yet must not make NaN
        offset[r] = kMask && top[r] == kMinusInf ? 0.f : top[r] * scale_log2;
        fade[r] = kFirst || top[r] == m[r] ? 1.f : ptx::ex2(fmaf(m[r], scale_log2, -offset[r]));
        m[r] = top[r];
    }
}
// Part 2: exponentials in place and row sums.
DEV void softmax_exp(float (&s)[64], float (&l)[2], const float (&fade)[2], const float (&offset)[2],
                     float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 2 * r; i < 64; i += 4)
#pragma unroll
            for (int e = i; e < i + 2; e++) s[e] = ptx::ex2(fmaf(s[e], scale_log2, -offset[r]));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] *= fade[r];
#pragma unroll
        for (int i = 2 * r; i < 64; i += 4)
#pragma unroll
            for (int e = i; e < i + 2; e++) l[r] += s[e];
    }
}
// The S fragment is already laid out as the A operand: only convert.
template <typename T> DEV void to_p(uint32_t (&p)[32], const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 32; i++) p[i] = ptx::pack2<T>(s[2 * i], s[2 * i + 1]);
}
template <int N> DEV void rescale(float (&o)[N], const float (&fade)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= fade[(i >> 1) & 1];
}

// Split tiles, see include/partials.cuh: here the parts of 16 rows by one warp each. A lane has kVecs float4 of a part,
// O, then m and l, 32 lanes side by side.
template <int D> constexpr int kVecs = D / 8 + 1;

template <int N>
DEV void store(gptr<float4> part, const float (&o)[N], const float (&m)[2], const float (&l)[2]) {
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        __stcg(part + i * 32, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
    __stcg(part + N / 4 * 32, make_float4(m[0], m[1], l[0], l[1]));
}
// The sum of `count` parts, `stride` apart.
template <int D>
DEV void add(gptr<const float4> part, size_t stride, int count, float scale_log2, float (&o)[D / 2], float (&m)[2],
             float (&l)[2]) {
    constexpr int kExtremes = (kVecs<D> - 1) * 32;
    float4 x[D / 8];  // of one part, and each of the next as soon as its place is free: parts are far away
#pragma unroll
    for (int j = 0; j < D / 8; j++) x[j] = __ldcg(part + j * 32);
    float top[2] = {kMinusInf, kMinusInf};
#pragma unroll 4
    for (int i = 0; i < count; i++) {
        const float4 ml = __ldcg(part + i * stride + kExtremes);
        top[0] = fmaxf(top[0], ml.x);
        top[1] = fmaxf(top[1], ml.y);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        m[r] = top[r];
        l[r] = 0.f;
        top[r] = top[r] == kMinusInf ? 0.f : top[r];
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0.f;
    float4 ml = __ldcg(part + kExtremes);
#pragma unroll 1
    for (int i = 1; i <= count; i++) {
        const float weight[2] = {ptx::ex2((ml.x - top[0]) * scale_log2), ptx::ex2((ml.y - top[1]) * scale_log2)};
        l[0] = fmaf(ml.z, weight[0], l[0]);
        l[1] = fmaf(ml.w, weight[1], l[1]);
        part += i < count ? stride : 0;
        ml = __ldcg(part + kExtremes);
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) o[4 * j + e] = fmaf((&x[j].x)[e], weight[e >> 1], o[4 * j + e]);
            x[j] = __ldcg(part + j * 32);
        }
    }
}
// Many rows: each warp its own. Returns whether this one holds the final result.
template <int D, int kWarps>
DEV bool merge(const Params& p, const Work& w, float scale_log2, float (&o)[D / 2], float (&m)[2], float (&l)[2],
               int warp, int lane) {
    constexpr size_t kStride = kWarps * kVecs<D> * 32;
    const gptr<float4> parts = ptr_cast<float4>(p.part) + (size_t(w.slot) * kWarps + warp) * kVecs<D> * 32 + lane;
#pragma unroll 1
    for (int round = w.parts <= kFan; round < 2; round++) {
        const Round<fan_of<false>> r(w, round);
        store(parts + r.mine * kStride, o, m, l);
        __syncwarp();
        bool last = false;
        if (lane == 0) last = last_to_arrive(p.arrived + r.counter * kWarps + warp, r.count);
        __syncwarp();  // what lane 0 has acquired, all may read
        if (!__shfl_sync(~0u, int(last), 0)) return false;
        add<D>(parts + r.first * kStride, r.step * kStride, r.count, scale_log2, o, m, l);
    }
    return true;
}

// Words i and i + kBit of each pair change places between the lanes whose numbers differ in kBit: half of a transpose.
template <int kBit> DEV void exchange(uint32_t& low, uint32_t& high, int lane) {
    const bool upper = lane & kBit;
    const uint32_t got = __shfl_xor_sync(~0u, upper ? low : high, kBit);
    low = upper ? got : low;
    high = upper ? high : got;
}
// Divide by the row sums, times what 1 in V stands for, and store so many columns: a 4x4 word transpose inside each
// quad turns 4-byte pieces into 16-byte stores.
template <typename T, int D, int kRules, int kColumns = D>
DEV void epilogue(const Params& p, const Work& w, float scale_log2, float one, float (&o)[kColumns / 2], float (&m)[2],
                  float (&l)[2], int group, int row, int lane, int column = 0) {
    const Share share(p.pack, w, p.group, group);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] = quad_sum(l[r]);
        float weight = inverse_of(l[r]), top = m[r] * scale_log2;
        const int token = p.pack.token(row + 8 * r), head = row + 8 * r - token * p.pack.heads;
        const bool real = token < share.tokens && head < share.heads;
        const size_t first = size_t(w.q_row + share.first_token + token) * p.num_q_heads + w.head;
        const size_t at = first + share.first_head + head;
        if constexpr (kRules & kSinks)
            weight = join_sink(p.rules, w.head + (real ? share.first_head + head : 0), top, l[r]);
        weight *= one;
        const gptr<T> dst = ptr_cast<T>(p.out) + at * D + column + (lane & 3) * 8;
        if (p.lse && real && (lane & 3) == 0 && column == 0) p.lse[at] = top * kLn2 + logf(l[r]);
#pragma unroll
        for (int j = 0; j < kColumns / 32; j++) {
            uint32_t x[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int i = 4 * (4 * j + k) + 2 * r;
                x[k] = ptx::pack2<T>(o[i] * weight, o[i + 1] * weight);
            }
            exchange<1>(x[0], x[1], lane);
            exchange<1>(x[2], x[3], lane);
            exchange<2>(x[0], x[2], lane);
            exchange<2>(x[1], x[3], lane);
            if (real) ptx::st_global_16(dst + 32 * j, make_uint4(x[0], x[1], x[2], x[3]));
        }
    }
}

// Few rows: a launch of nothing else is short, and half of it would be one warp that adds up one part after the other.
// So a part consists of pieces of 16 rows by 32 columns that are whole in themselves, the warps of the warpgroup share
// them, and each has many parts of one on their way at a time. A lane has five float4 of a piece: O, then m and l. What
// costs here is instructions, which are far away the first time: those of five loads at fixed distances are few.
struct Piece {
    static constexpr int kColumns = 32, kVecs = 5, kStep = kVecs * 32;  // float4 from one to the next
    float o[16], m[2], l[2];
    // The same of `count` other parts, `stride` apart, kAhead of them on their way together: many cost little more than
    // one.
    template <int kAhead> DEV void add(gptr<const float4> at, int stride, int count, float scale_log2) {
        float4 x[kAhead][kVecs];
#pragma unroll
        for (int i = 0; i < kAhead; i++)
#pragma unroll
            for (int j = 0; j < kVecs; j++) x[i][j] = __ldcg(at + min(i, count - 1) * stride + j * 32);
        float base[2], fade[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = m[r];
#pragma unroll
            for (int i = 0; i < kAhead; i++) top = fmaxf(top, r ? x[i][4].y : x[i][4].x);
            base[r] = top == kMinusInf ? 0.f : top * scale_log2;
            fade[r] = ptx::ex2(fmaf(m[r], scale_log2, -base[r]));
            m[r] = top;
            l[r] *= fade[r];
        }
        rescale(o, fade);
#pragma unroll
        for (int i = 0; i < kAhead; i++) {
            if (i >= count) continue;
            const float weight[2] = {ptx::ex2(fmaf(x[i][4].x, scale_log2, -base[0])),
                                     ptx::ex2(fmaf(x[i][4].y, scale_log2, -base[1]))};
            l[0] = fmaf(x[i][4].z, weight[0], l[0]);
            l[1] = fmaf(x[i][4].w, weight[1], l[1]);
#pragma unroll
            for (int j = 0; j < 16; j++) o[j] = fmaf((&x[i][j / 4].x)[j % 4], weight[(j >> 1) & 1], o[j]);
        }
    }
};
// By a warpgroup: a piece is the same warp's in every part and round, which counts for itself, so that nobody waits but
// once, for the part to be stored. Whoever is last writes.
template <typename T, int D, int kRules, int kGroups>
DEV void merge_few(const Params& p, const Work& w, float scale_log2, const float (&o)[D / 2], const float (&m)[2],
                   const float (&l)[2], int group, int warp, int lane) {
    constexpr int kPieces = D / Piece::kColumns, kRows = kPieces * Piece::kStep, kPart = 4 * kGroups * kRows;
    const gptr<float4> parts = ptr_cast<float4>(p.part) + size_t(w.slot) * kPart + 4 * group * kRows + lane;
    const int rows = Share(p.pack, w, p.group, group).tokens * p.pack.heads;  // then there is padding
    const int pieces = (rows + 15) / 16 * kPieces;
    if (warp * 16 < rows)
#pragma unroll
        for (int j = 0; j < kPieces; j++) {
            Piece piece = {{}, {m[0], m[1]}, {l[0], l[1]}};
#pragma unroll
            for (int i = 0; i < 16; i++) piece.o[i] = o[16 * j + i];
            store(parts + w.part * kPart + warp * kRows + j * Piece::kStep, piece.o, piece.m, piece.l);
        }
    ptx::named_barrier_sync(kBarrier + group, 128);  // all have stored
#pragma unroll 1
    for (int round = w.parts <= kOnce; round < 2; round++) {
        const Round<fan_of<true>> r(w, round);
        __syncwarp();
        bool last = false;
        if (lane == 0) last = last_to_arrive(p.arrived + (r.counter * kGroups + group) * 4 + warp, r.count);
        __syncwarp();  // what lane 0 has acquired, all may read
        if (!__shfl_sync(~0u, int(last), 0)) return;
#pragma unroll 1
        for (int i = warp; i < pieces; i += 4) {
            constexpr int kAhead = 8;  // as registers allow
            gptr<float4> at = parts + r.first * kPart + i * Piece::kStep;
            const gptr<float4> first = at;
            const int stride = r.step * kPart;
            Piece all = {{}, {kMinusInf, kMinusInf}, {}};
            int left = r.count;
#pragma unroll 1
            for (; left > kAhead / 2; left -= kAhead, at += kAhead * stride)
                all.add<kAhead>(at, stride, left, scale_log2);
            if (left > 0) all.add<kAhead / 2>(at, stride, left, scale_log2);
            if (round == 0) store(first, all.o, all.m, all.l);
            else epilogue<T, D, kRules, Piece::kColumns>(p, w, scale_log2, 1.f, all.o, all.m, all.l, group,
                                                         i / kPieces * 16 + lane / 4, lane, i % kPieces * 32);
        }
    }
}

// A warpgroup's queries, which have arrived, as halves: in place.
template <typename T, int D> DEV void queries_as_halves(smem_addr q, int group, int thread) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const smem_addr at = q + (i * 128 + thread) * 16;
        const uint4 x = ptx::ld_shared_16(at);
        ptx::st_shared_16(at, make_uint4(halves<T>(x.x), halves<T>(x.y), halves<T>(x.z), halves<T>(x.w)));
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kBarrier + group, 128);
}

// A warpgroup, 64 query rows. The groups take turns at the tensor cores (ping-pong), so that one computes its softmax
// while the products of another run: two that ask for products at once would both get them late. One function: with its
// state in a struct, ptxas places the vote on rescaling behind the wait for P V.
template <typename T, int D, int kPage, bool kNarrow, int kGroups, int kRules, int kBits>
DEV void consume(const Params& p, const Scales& scales, smem_addr base, Control<kGroups, kBits>& c,
                 const volatile bool& decode_done, int group, int warp, int lane) {  // warp: of all consumers
    using S = Smem<D, kPage, kGroups>;
    using M = Multiplied<T, kBits>;
    const int row = warp % 4 * 16 + lane / 4;
    const uint64_t q = ptx::desc_sw128(base + S::kQ + group * S::kQGroup, 1, 1024);
    const uint64_t k_first = ptx::desc_sw128(base + S::kK, 1, S::kGroupStep);
    const uint64_t v_first = ptx::desc_sw128(base + S::kV, S::kPanelStep, S::kGroupStep);
    const auto k = [&](Place<2> at) { return k_first + at.stage() * (S::kTile >> 4); };
    const auto v = [&](Place<2> at) { return v_first + at.stage() * (S::kTile >> 4); };
    const auto free_q = [&](Place<1> at) {
        ptx::converged();
        if (lane == 0) c.q[group].release(at);
    };
    const auto free_k = [&](Place<2> at) { if (lane == 0) c.k.release(at); };
    const auto free_v = [&](Place<2> at) { if (lane == 0) c.v.release(at); };
    const Turn<kGroups> turn(group);
    Place<2> block;
    float o[D / 2], s[64], m[2], l[2], fade[2], offset[2];
    uint32_t probs[32];

    for (Place<1> tile;; tile.advance()) {
        c.q[group].wait(tile);
        const Work& w = c.work[group][tile.odd()];  // stays until the next tile's Q has been consumed
        if (w.tokens == 0) break;
        if (Share(p.pack, w, p.group, group).empty()) {  // a few rows wait for memory: no energy for padding
            for (int n = w.begin; n < w.end; n++, block.advance()) {
                c.k.wait(block);
                free_k(block);
                if (n > w.begin) {
                    turn.take();
                    turn.pass();
                }
                c.v.wait(block);
                free_v(block);
            }
            free_q(tile);
            continue;
        }
        // A row of the tile sees keys up to its token's position, or the whole sequence without a causal mask.
        const int begin = w.begin, unmasked = (p.causal ? w.pos0 + 1 : w.kv_len) / kKeys;
        const int token = p.pack.token(row), more = p.causal ? p.pack.token(row + 8) - token : 0;
        const bool yields = __ldg(p.yields) && !decode_done;
        const float scale_log2 = kBits == 8 ? p.scale_log2 * __ldg(scales.k + w.head / p.group) : p.scale_log2;
        if constexpr (kBits == 8 && !std::is_same<T, M>::value)
            queries_as_halves<T, D>(base + S::kQ + group * S::kQGroup, group, warp % 4 * 32 + lane);
        int n = w.end - 1;
        int last_seen = (p.causal ? w.pos0 + group * p.pack.next_token + token : w.kv_len - 1) - n * kKeys -
                        2 * (lane & 3);
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0.f;

        c.k.wait(block);  // first block: nothing to overlap with
        issue_qk<M, D, kPage>(s, q, k(block));
        ptx::wgmma_wait<0>();
        ptx::touch(s);
        free_k(block);
        softmax_max<true, true, kRules>(s, m, fade, offset, last_seen, more, scale_log2, p.rules);
        l[0] = l[1] = 0.f;
        softmax_exp(s, l, fade, offset, scale_log2);
        to_p<M>(probs, s);

        const auto step = [&](auto masked) {
            // the next S goes to the tensor cores before this P V, and its softmax runs under P V
            c.k.wait(block.next());
            turn.take();
            issue_qk<M, D, kPage>(s, q, k(block.next()));
            c.v.wait(block);
            issue_pv<M, D, kPage>(o, probs, v(block));
            if (!yields) turn.pass();
            ptx::wgmma_wait<1>();
            ptx::touch(s);
            free_k(block.next());
            constexpr bool kMask = decltype(masked)::value;
            softmax_max<false, kMask, kRules>(s, m, fade, offset, last_seen, more, scale_log2, p.rules);
            softmax_exp(s, l, fade, offset, scale_log2);
            ptx::wgmma_wait<0>();
            ptx::touch(o);
            ptx::touch(s);
            if (yields) turn.pass();  // the other's turn begins when this one is through, not issued
            free_v(block);
            block.advance();
            to_p<M>(probs, s);
            if (__any_sync(~0u, fade[0] != 1.f || fade[1] != 1.f)) rescale(o, fade);
        };
        if constexpr (kRules & kWindow) {
            // below this block, some row of the tile has lost sight of a key
            const int whole = (w.pos0 + w.tokens - p.rules.window + kKeys - 1) / kKeys;
#pragma unroll 1
            for (n--; n >= begin; n--) {
                last_seen += kKeys;
                n >= unmasked || n < whole ? step(std::true_type{}) : step(std::false_type{});
            }
        } else {
            for (n--; n >= max(unmasked, begin); n--) {
                last_seen += kKeys;
                step(std::true_type{});
            }
#pragma unroll 1
            for (; n >= begin; n--) step(std::false_type{});
        }

        free_q(tile);  // the next tile's copy may start
        c.v.wait(block);
        issue_pv<M, D, kPage>(o, probs, v(block));
        ptx::wgmma_wait<0>();
        ptx::touch(o);
        free_v(block);
        block.advance();
        if (kNarrow && w.parts > 1) {
            merge_few<T, D, kRules, kGroups>(p, w, scale_log2, o, m, l, group, warp % 4, lane);
            continue;
        }
        if (w.parts > 1) {
            const bool padding = p.pack.token(row - lane / 4) >= Share(p.pack, w, p.group, group).tokens;
            if (padding || !merge<D, 4 * kGroups>(p, w, scale_log2, o, m, l, warp, lane)) continue;
        }
        const float one = kBits == 8 ? __ldg(scales.v + w.head / p.group) : 1.f;
        epilogue<T, D, kRules>(p, w, scale_log2, one, o, m, l, ptx::anew(group), row, lane);
    }
}

}  // namespace sm90::prefill
