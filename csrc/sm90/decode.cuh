// Decode on Hopper: one producer warp streams KV, one warpgroup multiplies. The rows of a piece are the few new tokens
// of a request by the query heads of one KV head, kRows of them at most. The product is swapped, S^T = K Q^T and O^T =
// V^T P^T, so that the few rows are the narrow side (n = 8 or 16) and nothing is padded to 64 rows. It is wgmma and
// not mma.sync, because beside prefill's wgmma mma.sync starves.
#pragma once
#include "sm90/common.cuh"

namespace sm90::decode {

constexpr int kTokens = 64;                       // keys a tile
// Parts that are merged at once, where all are no more, or in two rounds, 8 neighbours first: as many as four trips to
// L2 bring, or two. FAN of pod/kernels/sm90.py.
constexpr int kOnce = 16, kFan = 8, kMerged = 32; // most in a round
DEV int fan_of(int parts) { return parts <= kOnce ? 1 : parts <= kMerged * kFan ? kFan : 2 * kFan; }
constexpr int kBarrier = 5, kThreads = 128;       // named barrier of the warpgroup

DEV void meet(AT_ONLY) { ptx::named_barrier_sync(kBarrier, kThreads PASS_AT); }
DEV bool any_of_all(bool mine AT) { return ptx::named_barrier_any(kBarrier, kThreads, mine PASS_AT); }

// Shared memory: the ring, as deep as there is room beside prefill, since it holds what is on its way from DRAM; then Q
// tiles and two P tiles. With 16 rows a second Q tile would cost the ring a granule. The ring's unit is a swizzled
// panel: 64 tokens of 64 columns, of 8 bits those of all columns.
template <int D, int kRows, int kBits> struct Smem {
    static constexpr int kColumns = kBits == 16 ? 64 : D, kPanels = D / kColumns;
    static constexpr uint32_t kRow = kColumns * kBits / 8, kGranule = kTokens * kRow;
    static constexpr int kGranules = (D == 64 ? 16 : 7) * kTokens * 128 / kGranule;
    static constexpr int kQTiles = D == 128 && kRows > 8 ? 1 : 2;
    static constexpr uint32_t kQPanel = kRows * 128, kQBytes = kRows * D * 2, kPBytes = kTokens * kRows * 2;
    static_assert(2 * kPBytes >= kRows / 8 * kMerged * sizeof(float4[4]), "m and l of all parts");
    static constexpr uint32_t kQ = kGranules * kGranule, kP = kQ + kQTiles * kQBytes, kBytes = kP + 2 * kPBytes;
};

struct Params {
    gptr<const Work> work;
    gptr<const int> chunks;    // first work of each chunk, the end of the last, again and again
    gptr<uint16_t> out;        // [tokens x Hq, D]
    gptr<float> lse;           // [tokens x Hq], natural log; may be null
    Queue queue;               // of chunks
    gptr<float> part;          // partial results, kSlotFloats<D> each
    gptr<int> arrived;         // one a group: partials stored; 0 between launches
    int num_q_heads, group, causal;
    int pack_shift;            // row n is token n >> pack_shift; the low bits are its head, in a pass over some of them
    int q_bytes;               // of the box that brings a panel of Q
    float scale_log2;
    Rules rules;
};
// O^T in fragment order, then m and l of the rows.
template <int D, int kRows> constexpr int kSlotFloats = kRows * (D + 2);

// The rows of a piece. The others of the kRows are padding, or queries of somebody else.
struct Rows {
    int shift, tokens, heads;
    DEV Rows(const Params& p, const Work& w)
        : shift(p.pack_shift), tokens(w.tokens), heads(min(1 << p.pack_shift, p.group - w.pos0)) {}
    DEV bool real(int n) const { return (n >> shift) < tokens && (n & ((1 << shift) - 1)) < heads; }
};

template <int kRows> using Exchange = shared<float[4][kRows]>;

template <int D, int kRows, int kBits> struct Control {
    using S = Smem<D, kRows, kBits>;
    Ring<S::kGranules> kv;              // panels of K and V, in the order of their use
    Ring<S::kQTiles> q;
    alignas(16) Work work[S::kQTiles];  // records of the Q tiles
    Exchange<kRows> exchange;           // between the warps
    bool done;                          // this CTA's decode is over: prefill need not yield

    DEV void init() {  // readers are warps
        kv.init(4);
        q.init(4);
        done = false;
    }
};

// ---------------------------------------------------------------- producer: one warp
template <int D, int kRows, int kPage, int kBits> struct Producer {
    using S = Smem<D, kRows, kBits>;
    const TensorMaps& maps;
    const Params& p;
    const KvLayout& kv;
    smem_addr base;
    Control<D, kRows, kBits>& c;
    int lane;
    PageWindow window = {};
    Place<S::kGranules> at = {};  // places carry on across tiles and pieces of work
    Place<S::kQTiles> piece = {};

    // The panels of a tile of K or V.
    DEV void load(bool values, int seq, int kv_len, int head, int tile) {
        const Source from = find<kPage>(kv, window, seq, tile * kTokens, kv_len, lane);
#pragma unroll 1
        for (int panel = 0; panel < S::kPanels; panel++) {
            const smem_addr filled = c.kv.filled(at);
            c.kv.acquire(at);
            if (ptx::elect_one()) c.kv.expect(at, S::kGranule);
            const CUtensorMap* map = values ? &maps.v : &maps.k;
            const smem_addr dst = base + at.stage() * S::kGranule;
            if constexpr (kPage == 0 || kPage >= kTokens) load_block(map, dst, filled, from, panel, head);
            else
                for_pages<kTokens, kPage>(from, [&](int i, int page, int first) {
                    ptx::tma_load_5d(dst + i * kPage * S::kRow, map, filled, first, panel, head, page);
                });
            at.advance();
        }
    }
    // The record of a piece and its queries.
    DEV void announce(const Record& w) {
        const int head0 = FIELD(w, pos0), kv_head = FIELD(w, head), token = FIELD(w, q_row) / p.num_q_heads;
        c.q.acquire(piece);
        const smem_addr filled = c.q.filled(piece), dst = base + S::kQ + piece.stage() * S::kQBytes;
        w.copy_to(c.work[piece.stage()], lane);
        __syncwarp();
        if (ptx::elect_one()) {
            c.q.expect(piece, D / 64 * p.q_bytes);
#pragma unroll
            for (int panel = 0; panel < D / 64; panel++)
                ptx::tma_load_5d(dst + panel * S::kQPanel, &maps.q, filled, head0, token, panel, kv_head);
        }
        __syncwarp();
        piece.advance();
    }
    // A record without tokens: there is no more work.
    DEV void stop() {
        c.q.acquire(piece);
        if (!ptx::elect_one()) return;
        c.work[piece.stage()].tokens = 0;
        c.q.fill(piece);
    }
    DEV void run() {
        for (int chunk = blockIdx.x;;) {
            int i = p.chunks[chunk];
            const int last = p.chunks[chunk + 1];
            if (i == last) break;
            for (; i < last; i++) {
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
// O^T of the warpgroup: o[b][4j + ..] = columns 64b + 16 warp + lane/4 (+8) of rows 8j + 2(lane%4) (+1); m and l[2j +
// ..] of the same rows. l is this thread's share (its own keys) until the others' are added. Of 8 bits the columns
// are 64b + 16 warp + 2(lane/4) (+1): see `widen_values`.
template <typename T, int D, int kRows, int kRules, int kBits> struct State {
    static constexpr int kOctets = kRows / 8;
    float o[D / 64][4 * kOctets], m[2 * kOctets], l[2 * kOctets];

    static DEV int row(int i, int lane) { return i / 2 * 8 + 2 * (lane & 3) + i % 2; }  // of m[i] and l[i]

    // Padding rows start from a huge maximum: their P stays zero, which costs the tensor cores the least energy.
    template <typename Real> DEV void clear(int j, Real real) {
#pragma unroll
        for (int b = 0; b < D / 64; b++)
#pragma unroll
            for (int e = 4 * j; e < 4 * j + 4; e++) o[b][e] = 0.f;
#pragma unroll
        for (int i = 2 * j; i < 2 * j + 2; i++) {
            m[i] = real(i) ? kLow : -kLow;
            l[i] = 0.f;
        }
    }
    // Over the keys of `x`, of the lanes of a warp and of the four warps.
    template <typename Op>
    DEV void reduce(float (&x)[2 * kOctets], Exchange<kRows>& exchange, int warp, int lane, Op op) {
#pragma unroll
        for (int i = 4; i < 32; i <<= 1)
#pragma unroll
            for (int n = 0; n < 2 * kOctets; n++) x[n] = op(x[n], __shfl_xor_sync(~0u, x[n], i));
        if (lane < 4)
#pragma unroll
            for (int j = 0; j < kOctets; j++)
                ptr_cast<float2>(exchange[warp] + row(2 * j, lane))[0] = make_float2(x[2 * j], x[2 * j + 1]);
        meet();  // all warps have shown theirs
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < kOctets; j++) {
                const float2 y = ptr_cast<const float2>(exchange[i] + row(2 * j, lane))[0];
                x[2 * j] = i ? op(x[2 * j], y.x) : y.x;
                x[2 * j + 1] = i ? op(x[2 * j + 1], y.y) : y.y;
            }
    }
    static DEV int first(int i) { return i / 2 * 4 + i % 2; }  // element of m[i]'s row in a fragment; + 2 is the other
    // Raise the maximum to that of the new scores and rescale what was summed before.
    DEV void raise(const float (&s)[4 * kOctets], float scale_log2, Exchange<kRows>& exchange, int warp, int lane) {
        float top[2 * kOctets];
#pragma unroll
        for (int i = 0; i < 2 * kOctets; i++) top[i] = fmaxf(s[first(i)], s[first(i) + 2]);
        reduce(top, exchange, warp, lane, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
        for (int i = 0; i < 2 * kOctets; i++) {
            const float higher = fmaxf(m[i], top[i] * scale_log2), fade = ptx::ex2(m[i] - higher);
            m[i] = higher;
            l[i] *= fade;
#pragma unroll
            for (int b = 0; b < D / 64; b++)
#pragma unroll
                for (int e = 0; e < 4; e += 2) o[b][first(i) + e] *= fade;
        }
    }
    // This thread's share of an octet of rows.
    struct Octet {
        float o[D / 64][4], m[2], l[2];
    };
    DEV Octet octet(int j) const {
        Octet x = {{}, {m[2 * j], m[2 * j + 1]}, {l[2 * j], l[2 * j + 1]}};
#pragma unroll
        for (int b = 0; b < D / 64; b++)
#pragma unroll
            for (int e = 0; e < 4; e++) x.o[b][e] = o[b][4 * j + e];
        return x;
    }
    // Whole result of octet j: divide and store.
    static DEV void write(const Params& p, const Scales& scales, const Work& w, Octet x, int j, int warp, int lane) {
        const Rows rows(p, w);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int n = row(2 * j + i, lane);
            if (!rows.real(n)) continue;
            float weight = inverse_of(x.l[i]);
            const int at = w.q_row + (n >> rows.shift) * p.num_q_heads + (n & ((1 << rows.shift) - 1));
            if constexpr (kRules & kSinks) weight = join_sink(p.rules, at % p.num_q_heads, x.m[i], x.l[i]);
            if constexpr (kBits == 8) {
                const float factor = weight * __ldg(scales.v + w.head);
                const gptr<uint32_t> dst = ptr_cast<uint32_t>(p.out) + (size_t(at) * D + warp * 16) / 2 + lane / 4;
#pragma unroll
                for (int b = 0; b < D / 64; b++)
                    dst[32 * b] = ptx::pack2<T>(x.o[b][i] * factor, x.o[b][i + 2] * factor);
            } else {
                const gptr<T> dst = ptr_cast<T>(p.out) + size_t(at) * D + unsigned(warp * 16 + lane / 4);
#pragma unroll
                for (int b = 0; b < D / 64; b++)
#pragma unroll
                    for (int e = 0; e < 2; e++) dst[64 * b + 8 * e] = ptx::from_float<T>(x.o[b][i + 2 * e] * weight);
            }
            if (p.lse && warp == 0 && lane < 4) p.lse[at] = x.m[i] * kLn2 + logf(x.l[i]);
        }
    }
    // Part of a result, see include/partials.cuh. Whoever is last merges and writes octet by octet, in a loop: few
    // registers are enough, and few instructions, which are far away the first time.
    DEV void merge(const Params& p, const Scales& scales, const Work& w, smem_addr sums, int warp, int lane) {
        constexpr int kSlot = kSlotFloats<D, kRows>;
        const gptr<float> slots = p.part + size_t(w.slot) * kSlot;
#pragma unroll
        for (int j = 0; j < kOctets; j++) store(p, w, slots + size_t(w.part) * kSlot, octet(j), j, warp, lane);
#pragma unroll 1
        for (int round = w.parts <= kOnce; round < 2; round++) {
            const Round<fan_of> r(w, round);
            meet();
            bool last = false;
            if (warp == 0 && lane == 0) last = last_to_arrive(p.arrived + r.counter, r.count);
            if (!any_of_all(last)) return;
            const gptr<float> parts = slots + size_t(r.first) * kSlot;
            gather(parts, r.step * kSlot, r.count, sums, warp, lane);
#pragma unroll 1
            for (int j = 0; j < kOctets; j++) {
                if (!has(p, w, j, lane)) continue;
                const Octet x = sum(parts, r.step * kSlot, r.count, j, sums_of(sums, j), warp, lane);
                round ? write(p, scales, w, x, j, warp, lane) : store(p, w, parts, x, j, warp, lane);
            }
            meet();  // before `sums` is P again
        }
    }
    static DEV bool has(const Params& p, const Work& w, int j, int lane) { return Rows(p, w).real(row(2 * j, lane)); }
    static DEV void store(const Params& p, const Work& w, gptr<float> slot, const Octet& x, int j, int warp, int lane) {
        if (!has(p, w, j, lane)) return;
#pragma unroll
        for (int b = 0; b < D / 64; b++)
            __stcg(ptr_cast<float4>(slot + output(b, j, warp, lane)),
                   make_float4(x.o[b][0], x.o[b][1], x.o[b][2], x.o[b][3]));
        if (warp == 0 && lane < 4)
            __stcg(ptr_cast<float4>(slot + extremes(j, lane)), make_float4(x.m[0], x.m[1], x.l[0], x.l[1]));
    }
    // m and l of up to 32 parts, `step` floats apart, in one trip to L2, into the place of P.
    static DEV void gather(gptr<const float> parts, int step, int count, smem_addr sums, int warp, int lane) {
        const int one = warp * 8 + lane / 4;
        if (one < count)
#pragma unroll
            for (int j = 0; j < kOctets; j++) {
                const gptr<const float> ml = parts + size_t(one) * step + extremes(j, lane);
                const smem_addr to = sums_of(sums, j) + (warp * 32 + lane) * 16;
                ptx::st_shared_16<float4>(to, __ldcg(ptr_cast<const float4>(ml)));
            }
        meet();  // before they are read
    }
    static DEV smem_addr sums_of(smem_addr sums, int j) { return sums + j * kMerged * sizeof(float4[4]); }
    static DEV Octet sum(gptr<const float> parts, int step, int count, int j, smem_addr sums, int warp, int lane) {
        constexpr int kAhead = 4;  // parts on their way at a time, as registers allow
        const smem_addr ml = sums + (lane & 3) * 16;
        const auto ml_of = [&](int i) { return ptx::ld_shared_16<float4>(ml + i * sizeof(float4[4])); };
        Octet sum = {{}, {kLow, kLow}};
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            const float4 ml = ml_of(i);
            sum.m[0] = fmaxf(sum.m[0], ml.x);
            sum.m[1] = fmaxf(sum.m[1], ml.y);
        }
        const gptr<const float> mine = parts + output(0, j, warp, lane);
#pragma unroll 1
        for (int first = 0; first < count; first += kAhead) {
            float4 x[kAhead][D / 64];  // all asked for before one is used: reading m and l is a barrier to ptxas
#pragma unroll
            for (int i = 0; i < kAhead; i++) {
                const gptr<const float> part = mine + min(first + i, count - 1) * step;
#pragma unroll
                for (int b = 0; b < D / 64; b++) x[i][b] = __ldcg(ptr_cast<const float4>(part + output(b, 0, 0, 0)));
            }
#pragma unroll
            for (int i = 0; i < kAhead; i++)
                if (first + i < count) join(sum, x[i], ml_of(first + i));
        }
        return sum;
    }
    static DEV void join(Octet& sum, const float4 (&x)[D / 64], const float4& ml) {
        const float weight[2] = {ptx::ex2(ml.x - sum.m[0]), ptx::ex2(ml.y - sum.m[1])};
        sum.l[0] = fmaf(ml.z, weight[0], sum.l[0]);
        sum.l[1] = fmaf(ml.w, weight[1], sum.l[1]);
#pragma unroll
        for (int b = 0; b < D / 64; b++) {
            sum.o[b][0] = fmaf(x[b].x, weight[0], sum.o[b][0]);
            sum.o[b][1] = fmaf(x[b].y, weight[1], sum.o[b][1]);
            sum.o[b][2] = fmaf(x[b].z, weight[0], sum.o[b][2]);
            sum.o[b][3] = fmaf(x[b].w, weight[1], sum.o[b][3]);
        }
    }
    // Places in a slot: O^T by block of 64 columns, octet and thread; then m and l by octet and quad.
    static DEV int output(int b, int j, int warp, int lane) {
        return ((b * kOctets + j) * kThreads + warp * 32 + lane) * 4;
    }
    static DEV int extremes(int j, int lane) { return kRows * D + (j * 4 + (lane & 3)) * 4; }
};

template <typename T, int D, int kRows, int kRules, int kBits> struct Consumer {
    using S = Smem<D, kRows, kBits>;
    using Panel = Place<S::kGranules>;
    using M = Multiplied<T, kBits>;
    static constexpr int kPanels = S::kPanels, kBlocks = D / 64, kOctets = kRows / 8;
    using Fragment = float[4 * kOctets];
    using Words = uint32_t[2][4];          // of 8 bits: this thread's share of 64 x 64, read
    using Operand = uint32_t[16];          // and widened: A of four products
    static constexpr bool kShort = kBits == 8 && kRows > 8;  // of registers: the scores are ready before P V begins
    const Params& p;
    const Scales& scales;
    const smem_addr base;
    Control<D, kRows, kBits>& c;
    const int warp, lane;
    const int key = warp * 16 + lane / 4;  // this thread's keys of a tile: key, key + 8
    Panel at = {};                         // the next panel
    Panel k, v;                            // the first of the tiles of K and V under way
    State<T, D, kRows, kRules, kBits> state;
    Fragment s, s2;                        // the scores are the sum of both
    int open = 0;                          // the tile has a key out of the last row's window, if all rows see more

    // All panels of a tile are waited for before the first wgmma: a wait between them would make ptxas insert arrives.
    DEV Panel take() {
        const Panel first = at;
#pragma unroll
        for (int i = 0; i < kPanels; i++) {
            c.kv.wait(at);
            at.advance();
        }
        ptx::wgmma_fence();
        return first;
    }
    DEV void free(Panel panel) {
        if constexpr (kBits == 8) ptx::converged();
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < kPanels; i++) {
                c.kv.release(panel);
                panel.advance();
            }
    }
    DEV uint64_t panel(Panel at) const { return ptx::desc_sw128(base + at.stage() * S::kGranule, 1, 1024); }
    DEV smem_addr probs(int tile) const { return base + S::kP + (tile & 1) * S::kPBytes; }

    // S^T = K Q^T: two chains of accumulation, because one would be latency-bound.
    DEV void issue_qk(smem_addr q) {
        if constexpr (kBits == 8) return issue_qk8(q);
        Panel next = k = take();
#pragma unroll
        for (int i = 0; i < kPanels; i++) {
            const uint64_t keys = panel(next), queries = ptx::desc_sw128(q + i * S::kQPanel, 1, 1024);
#pragma unroll
            for (int d = 0; d < 4; d++) {
                Fragment& x = d & 1 ? s2 : s;
                if (i == 0 && d < 2) ptx::wgmma_narrow<T, 0, 0>(x, keys + 2 * d, queries + 2 * d);
                else ptx::wgmma_narrow<T, 0, 1>(x, keys + 2 * d, queries + 2 * d);
            }
            next.advance();
        }
        ptx::wgmma_commit();
    }
    // O^T += V^T P^T: block b of 64 columns is panel b of V.
    DEV void issue_pv(int tile) {
        if constexpr (kBits == 8) {
            issue_pv8<0>(tile);
            if constexpr (kBlocks == 2) issue_pv8<1>(tile);
            return;
        }
        const uint64_t weights = ptx::desc_plain(probs(tile), 128, kTokens * 16);
        Panel next = v = take();
#pragma unroll
        for (int b = 0; b < kPanels; b++) {
            const uint64_t values = panel(next);
#pragma unroll
            for (int t = 0; t < kTokens / 16; t++)
                ptx::wgmma_narrow<T, 1, 1>(state.o[b], values + ((t * 2048) >> 4), weights + ((t * 256) >> 4));
            next.advance();
        }
        ptx::wgmma_commit();
    }
    template <int kPending> DEV void await_scores() {
        ptx::wgmma_wait<kPending>();
        ptx::touch(s);
        ptx::touch(s2);
        if constexpr (kBits == 16) free(k);
        if constexpr (kShort) sum_scores();
    }
    DEV void sum_scores() {
#pragma unroll
        for (int i = 0; i < 4 * kOctets; i++) s[i] += s2[i];
    }
    DEV void await_output() {
        ptx::wgmma_wait<0>();
#pragma unroll
        for (int b = 0; b < kBlocks; b++) ptx::touch(state.o[b]);
        if constexpr (kBits == 16) free(v);
    }

    // ------------------------------------------------------------ 8 bits: widened on the way to registers
    // Columns 64 half .. of this warp's 16 keys. Of 16 columns a thread gets 4 (lane % 4) .. + 3 of a key, not the four
    // that a fragment has: the queries are brought into the same order.
    DEV void read_keys(Words& x, smem_addr tile, int half) {
        const smem_addr row = swizzle<S::kRow>(tile + (warp * 16 + lane % 16) * S::kRow + lane / 16 * 16);
#pragma unroll
        for (int i = 0; i < 2; i++) ptx::ldmatrix_x4(x[i], row ^ (half * 64 + i * 32));
    }
    static DEV void widen_keys(Operand& a, const Words& x) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = i / 2 * 4 + i % 2;
            ptx::widen(x[i / 4][i % 4], a[at], a[at + 2]);
        }
    }
    // This warp's 16 columns of block b, transposed: a word has two columns, side by side, of two keys. A row of the
    // fragment wants one column of both, so that rows g and g + 8 become columns 2g and 2g + 1.
    DEV void read_values(Words& x, smem_addr tile, int b) {
        const smem_addr row = swizzle<S::kRow>(tile + lane * S::kRow + b * 64 + warp * 16);
#pragma unroll
        for (int i = 0; i < 2; i++) ptx::ldmatrix_x4_trans(x[i], row + i * 32 * S::kRow);
    }
    static DEV void widen_values(Operand& a, const Words& x) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            ptx::widen(ptx::even_bytes_first(x[i / 4][i % 4]), a[2 * i], a[2 * i + 1]);
    }
    // Queries as halves, in the order of the columns of `widen_keys`.
    DEV void order(smem_addr q) {
        const int i = warp * 32 + lane;
        if (i < kRows * D / 16) {
            const smem_addr even = swizzle<128>(q + i * 32), odd = even ^ 16;
            const uint4 x = ptx::ld_shared_16(even), y = ptx::ld_shared_16(odd);
            ptx::st_shared_16(even, make_uint4(halves<T>(x.x), halves<T>(x.z), halves<T>(y.x), halves<T>(y.z)));
            ptx::st_shared_16(odd, make_uint4(halves<T>(x.y), halves<T>(x.w), halves<T>(y.y), halves<T>(y.w)));
        }
        ptx::fence_proxy_async();
        meet();
    }
    // Two operands at most are in registers: a third waits for the first one's products.
    DEV void issue_qk8(smem_addr q) {
        const Panel tile = take();
#pragma unroll
        for (int i = 0; i < kBlocks; i++) {
            Words words;
            Operand keys;
            read_keys(words, base + tile.stage() * S::kGranule, i);
            if (i == kBlocks - 1) free(tile);
            widen_keys(keys, words);
            ptx::wgmma_fence();
            const uint64_t queries = ptx::desc_sw128(q + i * S::kQPanel, 1, 1024);
#pragma unroll
            for (int d = 0; d < 4; d++) {
                Fragment& x = (kBlocks == 2 ? i : d & 1) ? s2 : s;
                if (d < (kBlocks == 2 ? 1 : 2)) ptx::wgmma_narrow<M, 0, 0>(x, keys + 4 * d, queries + 2 * d);
                else ptx::wgmma_narrow<M, 0, 1>(x, keys + 4 * d, queries + 2 * d);
            }
            ptx::wgmma_commit();
        }
    }
    // Block b of the tile that is `v`.
    template <int b> DEV void issue_pv8(int of) {
        if (b == 0) v = take();
        Words words;
        Operand values;
        read_values(words, base + v.stage() * S::kGranule, b);
        if (b == kBlocks - 1) free(v);
        if (kBlocks == 2) ptx::wgmma_wait<(kShort ? 0 : 1)>();
        widen_values(values, words);
        ptx::wgmma_fence();
        const uint64_t weights = ptx::desc_plain(probs(of), 128, kTokens * 16);
#pragma unroll
        for (int t = 0; t < kTokens / 16; t++)
            ptx::wgmma_narrow<M, 1, 1>(state.o[b], values + 4 * t, weights + ((t * 256) >> 4));
        ptx::wgmma_commit();
    }

    // P of a tile from its scores, and where the tensor cores read it: octets of rows, key by key. Row n at 2(n % 8).
    DEV void make(Fragment& e, smem_addr dst, float scale_log2) {
#pragma unroll
        for (int j = 0; j < kOctets; j++) {
            const int f = 4 * j;
#pragma unroll
            for (int i = 0; i < 4; i++) e[f + i] = ptx::ex2(fmaf(s[f + i], scale_log2, -state.m[2 * j + (i & 1)]));
            ptx::st_shared_4(dst + j * kTokens * 16, ptx::pack2<M>(e[f], e[f + 1]));
            ptx::st_shared_4(dst + j * kTokens * 16 + 128, ptx::pack2<M>(e[f + 2], e[f + 3]));
        }
        ptx::fence_proxy_async();
    }
    // By how much some new score is over the maximum of its row.
    DEV float above(float scale_log2) const {
        float most = kMinusInf;
#pragma unroll
        for (int i = 0; i < 2 * kOctets; i++) {
            const int f = state.first(i);
            most = fmaxf(most, fmaf(fmaxf(s[f], s[f + 2]), scale_log2, -state.m[i]));
        }
        return most;
    }
    // Row n sees the first `seen` keys of this tile, under the causal mask one more with each token; of these the last
    // of a window.
    DEV void mask(int seen) {
        const int lane = ptx::anew(this->lane);
#pragma unroll
        for (int i = 0; i < 2 * kOctets; i++) {
            const int sees = seen + (p.causal ? state.row(i, lane) >> p.pack_shift : 0), f = state.first(i);
            const int from = kRules & kWindow ? sees - p.rules.window : 0;
            if (key >= sees || key < from) s[f] = kMinusInf;
            if (key + 8 >= sees || key + 8 < from) s[f + 2] = kMinusInf;
        }
    }
    // First with the maximum as it is; only if some score is over it by more than the slack is the maximum raised and P
    // made again. One barrier either way shows P to the tensor cores. `seen`: keys of this tile that all rows see.
    template <bool kBesidePv> DEV void probabilities(int tile, int seen, float scale_log2) {
        if constexpr (!kShort) sum_scores();
        if constexpr (kRules & kSoftcap) {
#pragma unroll
            for (int i = 0; i < 4 * kOctets; i++) s[i] = tanh_of(s[i] * p.rules.cap_log2);
        }
        if (seen < kTokens || (kRules & kWindow && seen > open)) mask(seen);
        const smem_addr dst = probs(tile) + key * 16 + (lane & 3) * 4;
        const float over = above(scale_log2);
        Fragment e;
        make(e, dst, scale_log2);
        if (kBesidePv) await_output();
        if (any_of_all(over > kSlack)) {
            state.raise(s, scale_log2, c.exchange, warp, lane);
            make(e, dst, scale_log2);
            meet();
        }
#pragma unroll
        for (int i = 0; i < 2 * kOctets; i++) state.l[i] += e[state.first(i)] + e[state.first(i) + 2];
    }
    // V rows past the end may hold anything: 0 * NaN is NaN.
    DEV void clear_tail(int seen) {
        Panel ahead = at;
#pragma unroll
        for (int b = 0; b < kPanels; b++) {
            c.kv.wait(ahead);
            constexpr int kLanes = S::kRow / 16, kStep = kThreads / kLanes;
            for (int row = seen + warp * (kStep / 4) + lane / kLanes; row < kTokens; row += kStep)
                ptx::st_shared_16(base + ahead.stage() * S::kGranule + row * S::kRow + lane % kLanes * 16, uint4{});
            ahead.advance();
        }
        ptx::fence_proxy_async();
        meet();
    }
    DEV void attend(const Work& w, smem_addr q) {
        int left = w.end - w.begin - 1;  // tiles after this one
        int seen = w.kv_len - w.begin * kTokens - (p.causal ? w.tokens - 1 : 0);  // keys from here on that all rows see
        if constexpr (kRules & kWindow) open = p.rules.window - (w.tokens - 1);
        const Rows rows(p, w);
#pragma unroll
        for (int j = 0; j < kOctets; j++)
            state.clear(j, [&](int i) { return rows.real(state.row(i, ptx::anew(lane))); });
        const float scale_log2 = kBits == 8 ? p.scale_log2 * __ldg(scales.k + w.head) : p.scale_log2;
        if constexpr (kBits == 8) order(q);
        issue_qk(q);
        await_scores<0>();
        probabilities<false>(left, seen, scale_log2);
#pragma unroll 1
        for (; left > 0; left--) {
            seen -= kTokens;
            issue_qk(q);  // the next scores go first, their softmax runs under P V
            if constexpr (kShort) {
                await_scores<0>();
                issue_pv(left);
            } else {
                issue_pv(left);
                await_scores<1>();
            }
            probabilities<true>(left - 1, seen, scale_log2);
        }
        const int tail = w.kv_len - (w.end - 1) * kTokens;  // keys of the last tile, or more
        if (tail < kTokens) clear_tail(tail);
        issue_pv(0);
        await_output();
        const int lane = ptx::anew(this->lane);  // or ptxas keeps (and spills) addresses through the main loop
        state.reduce(state.l, c.exchange, warp, lane, [](float a, float b) { return a + b; });
        if (w.parts > 1) return state.merge(p, scales, w, base + S::kP, warp, lane);
#pragma unroll
        for (int j = 0; j < kOctets; j++) state.write(p, scales, w, state.octet(j), j, warp, lane);
    }
    DEV void run() {
        for (Place<S::kQTiles> piece;; piece.advance()) {
            c.q.wait(piece);
            const Work& w = c.work[piece.stage()];
            if (w.tokens == 0) break;
            attend(w, base + S::kQ + piece.stage() * S::kQBytes);
            __syncwarp();
            // as if it were new, or ptxas keeps (and spills) its address
            if (lane == 0) c.q.release({uint32_t(ptx::anew(int(piece.uses)))});
        }
        c.done = true;
    }
};

}  // namespace sm90::decode
