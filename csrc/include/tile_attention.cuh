// Attention of one tile of query rows against a range of keys, for prefill (128 or 64 rows by a CTA) and decode (the
// query heads of one KV head as 16 rows, by one warp). The only implementation, but for Hopper's.
//
// K and V pass through a ring of panels in shared memory: K0 V0 K1 V1 ... A step takes a K and a V panel. At its
// start one barrier tells both that they are there and that the two panels before are free, and their slots are
// filled again. A ring of only three slots (shared memory is short on an A100) gets V later, and needs a second
// barrier for it.
#pragma once
#include "softmax.cuh"

#ifndef POD_SMEM_PER_SM
#define POD_SMEM_PER_SM (164 << 10)  // A100, and the emulated machine; the build says what the card at hand has
#endif
// Slots of a ring of panels that fit into this room: as many as a step's barrier can serve, six at most.
constexpr int ring_slots(int room, int panel) { return room / panel >= 6 ? 6 : room / panel >= 4 ? 4 : 3; }

// What the caller handed over. Strides count elements; the last dimension is dense.
template <class T> struct Tensors {
    gptr<const T> q, k, v;   // q [tokens, Hq, D]; K, V [pages, page, Hkv, D], or [sequences, longest, Hkv, D]
    gptr<T> out;             // [tokens, Hq, D], dense
    gptr<float> lse;         // [tokens, Hq], or null
    gptr<const int> table;   // [sequences, table_stride] page ids; null: sequence i is page i
    int64_t kv_page;
    int q_token, q_head, kv_token, kv_head;
    int num_q_heads, group;  // query heads, and how many share a KV head
    int table_stride, page_shift;
    float scale_log2;        // softmax scale x log2 e
    unsigned pages;          // last: anywhere before, ptxas takes 14 registers more
};

// One piece of work, made by pod/kernels/sm80.py: query rows against keys begin .. end of their sequence.
struct alignas(16) Work {
    int token, rows;        // prefill: first token and how many; decode: the token, and how many query heads
    int head, kv_head, seq; // (first) query head, its KV head, the sequence
    int pos;                // row r sees keys 0 .. pos + r * diagonal
    int begin, end;         // begin is a multiple of 16, so that a warp's 16 rows lie in one page
    int part, parts;        // parts > 1: the result is one of several to be merged
    int slot, group;        // first partial result of the tile, and its arrival counter
};

DEV Work load_work(gptr<const int> list, int i) {
    const gptr<const int4> quads = ptr_cast<const int4>(list) + int64_t(i) * 3;
    const int4 a = quads[0], b = quads[1], c = quads[2];
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
}

// Warps that share a tile. One warp needs no CTA barrier, so several may live in a CTA: virtual CTAs.
template <int kWarps> struct Team {
    int warp, lane;
    sptr<unsigned char> smem;
    static constexpr int kThreads = kWarps * 32;
    DEV int thread() const { return warp * 32 + lane; }
    DEV void sync() const {
        if constexpr (kWarps == 1) __syncwarp();
        else ptx::named_barrier_sync(1, kThreads);
    }
    // Thread 0's x for all. Shared memory must hold nothing of value at that time.
    DEV int broadcast(int x) const {
        if constexpr (kWarps == 1) return __shfl_sync(~0u, x, 0);
        const sptr<int> box = ptr_cast<int>(smem);
        sync();
        if (thread() == 0) box[0] = x;
        sync();
        const int all = box[0];
        sync();
        return all;
    }
};

// kTiles 16-row tiles a warp: with two, each K and V fragment read from shared memory serves 32 rows, and the tensor
// cores, not shared memory, set the pace. kReadOnce: K and V should leave L2 to others.
template <class Element, int kHeadDim, int kWarpCount, int kTileCount, int kKeyCount, int kSlotCount,
          bool kReadOnce = false>
struct Tile {
    using T = Element;
    using Team = ::Team<kWarpCount>;
    static constexpr int kD = kHeadDim, kWarps = kWarpCount, kTiles = kTileCount;
    static constexpr int kKeys = kKeyCount, kSlots = kSlotCount;
    static constexpr bool kOnce = kReadOnce;
    static constexpr int kRows = kWarps * kTiles * 16, kThreads = kWarps * 32;
    static constexpr int kRowBytes = kD * 2, kPanelBytes = kKeys * kRowBytes, kQueryBytes = kRows * kRowBytes;
    static constexpr int kSmem = kQueryBytes + kSlots * kPanelBytes;
    static_assert(kSlots == 3 || (kSlots >= 4 && kSlots % 2 == 0), "a step takes two panels and fetches two");
};

template <class Tile> class TileAttention {
    using T = typename Tile::T;
    static constexpr int kD = Tile::kD, kTiles = Tile::kTiles, kKeys = Tile::kKeys, kSlots = Tile::kSlots;
    static constexpr int kRowBytes = Tile::kRowBytes;
    static constexpr int kChunks = kRowBytes / 16;                 // 16-byte pieces of a row
    static constexpr int kGroups = kKeys / 16 / Tile::kWarps;      // 16-row groups of a panel that one warp fetches
    static constexpr int kWarpRows = kTiles * 16;
    static constexpr bool kRowsAreTokens = Tile::kWarps * kTiles > 1;  // of one head; else heads of one token
    static constexpr bool kLate = kSlots == 3;                     // a step fetches its own V

    const Tensors<T>& x;
    const typename Tile::Team team;
    const Work work;
    const int diagonal;       // 1: each row sees one key more than the row before; 0: all see the same
    const int row0;           // of this warp in the tile
    const smem_addr query;
    int page[kGroups];        // where this warp's rows of the next panel lie
    int slot = 0;             // of the ring, next to be read

public:
    float o[kTiles][kD / 8][4];
    RowState<kTiles> rows;

    DEV TileAttention(const Tensors<T>& x, typename Tile::Team team, const Work& work, int diagonal)
        : x(x), team(team), work(work), diagonal(diagonal), row0(team.warp * kWarpRows),
          query(ptx::smem_u32(team.smem)) {}

    DEV void run() {
        rows.clear();
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
            for (int j = 0; j < kD / 8; ++j)
                for (int e = 0; e < 4; ++e) o[r][j][e] = 0;
        team.sync();  // shared memory may still be in use by the work before
        find_pages(work.begin);
        fetch_queries();
        fetch_first();
        const int all_see = visible(0);  // the first row sees fewest; up to there no mask is needed
        int key = work.begin;
        for (; key + kKeys <= all_see; key += kKeys) step<false>(key);
        for (; key < work.end; key += kKeys) step<true>(key);
        ptx::cp_async_wait<0>();
    }

    // The row's place in the tile, and how many keys it sees.
    DEV int row(int r, int h) const { return row0 + r * 16 + h * 8 + team.lane / 4; }
    DEV int visible(int row) const { return min(work.end, work.pos + 1 + row * diagonal); }
    DEV int column(int j) const { return j * 8 + team.lane % 4 * 2; }

    // The result leaves through the queries' shared memory, so that whole rows are written. Each warp has its own rows.
    DEV void write_out(const Work& work, const float (&inverse)[kTiles][2]) {
        __syncwarp();
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
#pragma unroll
            for (int j = 0; j < kD / 8; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    ptx::st_shared_4(query + place(row(r, h), j) + team.lane % 4 * 4,
                                     ptx::pack2<T>(o[r][j][2 * h] * inverse[r][h], o[r][j][2 * h + 1] * inverse[r][h]));
        __syncwarp();
        const int chunk = team.lane % kChunks;
#pragma unroll 4
        for (int r = row0 + team.lane / kChunks; r < min(row0 + kWarpRows, work.rows); r += 32 / kChunks)
            ptx::st_global_16(x.out + out_row(work, r) * kD + chunk * 8, ptx::ld_shared_16(query + place(r, chunk)));
    }
    // Row r of the tile in [tokens x Hq].
    DEV int64_t out_row(const Work& work, int r) const {
        return int64_t(work.token + (kRowsAreTokens ? r : 0)) * x.num_q_heads + work.head + (kRowsAreTokens ? 0 : r);
    }

private:
    // Byte of 16-byte chunk c of row r in a panel. The exclusive-or spreads eight rows over all banks.
    DEV static int place(int r, int c) { return r * kRowBytes + ((c ^ (r & 7)) << 4); }
    // A tile of 32 rows a warp has no register to spare for addresses.
    DEV int lane() const { return kTiles > 1 ? ptx::opaque(team.lane) : team.lane; }
    // Where a lane's ldmatrix row starts, for fragments of A (Q, and V transposed) and of B (K).
    DEV smem_addr lane_a() const {
        const int lane = this->lane();
        return place((lane & 7) + (lane >> 3 & 1) * 8, lane >> 4);
    }
    DEV smem_addr lane_b() const {
        const int lane = this->lane();
        return place((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
    }
    DEV smem_addr panel(int slot) const { return query + Tile::kQueryBytes + slot * Tile::kPanelBytes; }
    DEV static int wrap(int slot) { return slot >= kSlots ? slot - kSlots : slot; }

    // ---------------------------------------------------------------- global -> shared memory
    DEV void find_pages(int first_key) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            // Past the end, any page that exists will do: nothing is read from it.
            const int key = min(first_key + (team.warp + g * Tile::kWarps) * 16, work.end - 1);
            page[g] = x.table ? __ldg(x.table + (int64_t(work.seq) * x.table_stride + (key >> x.page_shift)))
                              : work.seq;
        }
    }
    // 16 rows by one warp; rows from `valid` on become zeros, whatever lies there.
    DEV void fetch_rows(smem_addr to, gptr<const T> from, int stride, int valid) {
        constexpr int kStep = 32 / kChunks;  // rows at a time
        const int lane = this->lane(), chunk = lane & (kChunks - 1), first = lane >> (kChunks == 16 ? 4 : 3);
        from += first * stride + chunk * 8;
        to += place(first, chunk);
        if (valid >= 16) {
#pragma unroll
            for (int r = 0; r < 16; r += kStep)
                ptx::cp_async_16<Tile::kOnce>((to ^ (r & 7) << 4) + r * kRowBytes, from + r * stride);
        } else {
#pragma unroll
            for (int r = 0; r < 16; r += kStep)
                ptx::cp_async_16<Tile::kOnce>((to ^ (r & 7) << 4) + r * kRowBytes, from + r * stride,
                                              r + first < valid);
        }
    }
    DEV void fetch_queries() {
        const int stride = kRowsAreTokens ? x.q_token : x.q_head;
        const gptr<const T> first = x.q + (int64_t(work.token) * x.q_token + work.head * x.q_head);
#pragma unroll
        for (int r = row0; r < row0 + kWarpRows; r += 16)
            fetch_rows(query + r * kRowBytes, first + int64_t(r) * stride, stride, work.rows - r);
    }
    // Where the rows of keys key .. key + 15 of this sequence and KV head begin, in either cache. A wrong page id
    // must not lead out of the pool; it is bounded here and not where it was read, so that nobody waits for the
    // table.
    DEV int64_t rows_at(int page, int key) const {
        return min(unsigned(page), x.pages - 1) * x.kv_page + int64_t(key & ((1u << x.page_shift) - 1)) * x.kv_token +
               work.kv_head * x.kv_head;
    }
    // Fetch panels of keys `key` ...: K into one slot, V into another. After V, look up where the next keys lie, long
    // before they are fetched.
    template <bool kWithKeys, bool kWithValues> DEV void fetch(int key, int slot_k, int slot_v) {
        if (key < work.end) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                const int r = (team.warp + g * Tile::kWarps) * 16;
                const int64_t rows = rows_at(page[g], key + r);
                if (kWithKeys) fetch_rows(panel(slot_k) + r * kRowBytes, x.k + rows, x.kv_token, work.end - key - r);
                if (kWithValues) fetch_rows(panel(slot_v) + r * kRowBytes, x.v + rows, x.kv_token, work.end - key - r);
            }
            if (kWithValues) find_pages(key + kKeys);
        }
        ptx::cp_async_commit();
    }
    // Before the first step: all panels but the last two slots'.
    DEV void fetch_first() {
        if constexpr (kLate) fetch<true, false>(work.begin, 0, 0);
        else
#pragma unroll
            for (int pair = 0; pair < kSlots / 2 - 1; ++pair)
                fetch<true, true>(work.begin + pair * kKeys, 2 * pair, 2 * pair + 1);
    }
    // Refill the two slots that the step before has read.
    DEV void fetch_ahead(int key) {
        const int first = wrap(slot + kSlots - 2), second = wrap(slot + kSlots - 1);
        if constexpr (kLate) {
            fetch<false, true>(key, 0, first);
            fetch<true, false>(key + kKeys, second, 0);
        } else {
            fetch<true, true>(key + (kSlots / 2 - 1) * kKeys, first, second);
        }
    }

    // ---------------------------------------------------------------- shared memory -> tensor cores
    template <bool kMask> DEV void step(int key) {
        ptx::cp_async_wait<kLate ? 0 : kSlots / 2 - 2>();
        team.sync();
        fetch_ahead(key);
        const smem_addr keys = panel(slot), values = panel(wrap(slot + 1));
        slot = wrap(slot + 2);
        float s[kTiles][kKeys / 8][4];
        scores(s, keys);
        if (kLate) {
            ptx::cp_async_wait<1>();
            team.sync();
        }
        if (kMask) mask(s, key);
        float fade[kTiles][2];
        rows.update(s, fade, x.scale_log2);
        uint32_t p[kTiles][kKeys / 16][4];
        pack(p, s);
        rescale(fade);
        accumulate(p, values);
    }
    // S = Q K^T
    DEV void scores(float (&s)[kTiles][kKeys / 8][4], smem_addr keys) {
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
            for (int j = 0; j < kKeys / 8; ++j)
                for (int e = 0; e < 4; ++e) s[r][j][e] = 0;
        const smem_addr lane_a = this->lane_a(), lane_b = this->lane_b();
#pragma unroll kTiles == 1 ? 8 : kLate ? 2 : 4  // as far as the registers reach
        for (int d = 0; d < kD / 16; ++d) {
            uint32_t a[kTiles][4];
#pragma unroll
            for (int r = 0; r < kTiles; ++r)
                ptx::ldmatrix_x4(a[r], query + (row0 + r * 16) * kRowBytes + (lane_a ^ d << 5));
#pragma unroll
            for (int j = 0; j < kKeys / 16; ++j) {
                uint32_t b[4];
                ptx::ldmatrix_x4(b, keys + j * 16 * kRowBytes + (lane_b ^ d << 5));
#pragma unroll
                for (int r = 0; r < kTiles; ++r) {
                    ptx::mma_16816<T>(s[r][2 * j], a[r], b[0], b[1]);
                    ptx::mma_16816<T>(s[r][2 * j + 1], a[r], b[2], b[3]);
                }
            }
        }
    }
    DEV void mask(float (&s)[kTiles][kKeys / 8][4], int key) const {
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int seen = visible(row(r, h)) - key;
#pragma unroll
                for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (column(j) + e >= seen) s[r][j][2 * h + e] = kMinusInf;
            }
    }
    // After the first few steps the maxima hardly move any more, and there is nothing to do.
    DEV void rescale(const float (&fade)[kTiles][2]) {
        bool moved = false;
#pragma unroll
        for (int r = 0; r < kTiles; ++r) moved |= fade[r][0] != 1.f || fade[r][1] != 1.f;
        if (!__any_sync(~0u, moved)) return;
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
#pragma unroll
            for (int j = 0; j < kD / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) o[r][j][e] *= fade[r][e / 2];
    }
    // The scores' registers are already in the order in which the tensor cores want P.
    DEV static void pack(uint32_t (&p)[kTiles][kKeys / 16][4], const float (&s)[kTiles][kKeys / 8][4]) {
#pragma unroll
        for (int r = 0; r < kTiles; ++r)
#pragma unroll
            for (int t = 0; t < kKeys / 16; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float(&four)[4] = s[r][2 * t + i / 2];
                    p[r][t][i] = ptx::pack2<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
                }
    }
    // O += P V
    DEV void accumulate(const uint32_t (&p)[kTiles][kKeys / 16][4], smem_addr values) {
        const smem_addr lane_a = this->lane_a();
#pragma unroll
        for (int t = 0; t < kKeys / 16; ++t)
#pragma unroll
            for (int j = 0; j < kD / 16; ++j) {
                uint32_t b[4];
                ptx::ldmatrix_x4_trans(b, values + t * 16 * kRowBytes + (lane_a ^ j << 5));
#pragma unroll
                for (int r = 0; r < kTiles; ++r) {
                    ptx::mma_16816<T>(o[r][2 * j], p[r][t], b[0], b[1]);
                    ptx::mma_16816<T>(o[r][2 * j + 1], p[r][t], b[2], b[3]);
                }
            }
    }
};
