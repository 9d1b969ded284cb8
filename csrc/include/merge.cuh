// Attention of one piece of work, a tile or a part of one (see partials.cuh). A part leaves its normalised output and
// its log-sum-exp, so that a tile that was not cut needs nothing more.
#pragma once
#include "partials.cuh"
#include "tile_attention.cuh"

struct Partials {
    gptr<float> o;       // [slots, rows of the tile, D]
    gptr<float> lse2;    // [slots, rows of the tile], in powers of two
    gptr<int> arrived;   // one counter a split tile, zero between launches
};

// What a tile leaves behind when its keys are through: 1 / l and the log-sum-exp of this thread's rows.
template <class Tile> struct Ends {
    float inverse[Tile::kTiles][2], lse2[Tile::kTiles][2];
};

template <class Tile>
DEV void store_partial(const TileAttention<Tile>& a, const Partials& to, int slot, const Ends<Tile>& ends, int rows,
                       int lane) {
    const int64_t first = int64_t(slot) * Tile::kRows;
    const gptr<float2> o = ptr_cast<float2>(to.o + first * Tile::kD);
#pragma unroll
    for (int r = 0; r < Tile::kTiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = a.row(r, h);
            if (row >= rows) continue;
            const float inverse = ends.inverse[r][h];
#pragma unroll
            for (int j = 0; j < Tile::kD / 8; ++j) {
                const float2 pair = {a.o[r][j][2 * h] * inverse, a.o[r][j][2 * h + 1] * inverse};
                o[(row * Tile::kD + a.column(j)) / 2] = pair;
            }
            if (lane % 4 == 0) to.lse2[first + row] = ends.lse2[r][h];
        }
}

// Eight columns of one row from all parts.
template <class Tile>
DEV void merge_piece(const TileAttention<Tile>& a, const Tensors<typename Tile::T>& x, const Work& work,
                     const Partials& from, int row, int column) {
    const gptr<float> lse2 = from.lse2 + int64_t(work.slot) * Tile::kRows + row;
    const gptr<float> parts = from.o + (int64_t(work.slot) * Tile::kRows + row) * Tile::kD + column;
    float top = kMinusInf;
    for (int i = 0; i < work.parts; ++i) top = fmaxf(top, float(lse2[i * Tile::kRows]));
    const float base = top == kMinusInf ? 0.f : top;
    float sum = 0, o[8] = {};
    for (int i = 0; i < work.parts; ++i) {
        const float weight = ptx::ex2(float(lse2[i * Tile::kRows]) - base);
        const gptr<float4> part = ptr_cast<float4>(parts + int64_t(i) * Tile::kRows * Tile::kD);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float4 four = part[j];
            o[4 * j] += weight * four.x;
            o[4 * j + 1] += weight * four.y;
            o[4 * j + 2] += weight * four.z;
            o[4 * j + 3] += weight * four.w;
        }
        sum += weight;
    }
    const float inverse = sum > 0 ? 1.f / sum : 0.f;
    const auto pack = [&](int i) { return ptx::pack2<typename Tile::T>(o[i] * inverse, o[i + 1] * inverse); };
    const int64_t to = a.out_row(work, row);
    ptx::st_global_16(x.out + to * Tile::kD + column, make_uint4(pack(0), pack(2), pack(4), pack(6)));
    if (column == 0 && x.lse) x.lse[to] = sum > 0 ? (base + log2f(sum)) * kLn2 : kMinusInf;
}

// Whoever arrives last. Nobody waits for anybody, so the parts need not run at the same time.
struct LastMerges {
    template <class Team> DEV static bool is_me(const Work& work, gptr<int> arrived, const Team& team) {
        int ticket = 0;
        if (team.thread() == 0) ticket = ptx::atomic_add_acq_rel(arrived, 1);
        return team.broadcast(ticket) == work.parts - 1;
    }
};

// Returns whether this team has merged.
template <class Merges, class Tile>
DEV bool merge_if_me(const TileAttention<Tile>& a, const Tensors<typename Tile::T>& x, const Work& work,
                     const Partials& parts, const typename Tile::Team& team) {
    team.sync();  // all have stored their piece
    if (!Merges::is_me(work, parts.arrived + work.group, team)) return false;
    team.sync();  // what thread 0 has acquired, all may read
    if (team.thread() == 0) parts.arrived[work.group] = 0;  // for the next launch
    constexpr int kPieces = Tile::kD / 8;
    for (int i = team.thread(); i < work.rows * kPieces; i += Tile::kThreads)
        merge_piece(a, x, work, parts, i / kPieces, i % kPieces * 8);
    return true;
}

template <class Tile>
DEV void write_lse(const TileAttention<Tile>& a, const Tensors<typename Tile::T>& x, const Work& work,
                   const Ends<Tile>& ends, int lane) {
    if (!x.lse || lane % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < Tile::kTiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            if (a.row(r, h) < work.rows) x.lse[a.out_row(work, a.row(r, h))] = ends.lse2[r][h] * kLn2;
}

// One piece of work from queries to output. `computed` is called when the keys are through. Returns whether this team
// has merged the parts of others, too.
template <class Tile, class Merges = LastMerges, class Computed>
DEV bool attend(const Tensors<typename Tile::T>& x, const Partials& partials, gptr<const int> list, int i,
                const typename Tile::Team& team, int diagonal, Computed&& computed) {
    TileAttention<Tile> a(x, team, load_work(list, i), diagonal);
    a.run();
    Ends<Tile> ends;
    a.rows.finish(ends.inverse, ends.lse2, x.scale_log2);
    computed();
    const Work work = load_work(list, i);  // again: the loops needed the registers
    if (work.parts > 1) {
        store_partial(a, partials, work.slot + work.part, ends, work.rows, team.lane);
        return merge_if_me<Merges>(a, x, work, partials, team);
    }
    a.write_out(work, ends.inverse);
    write_lse(a, x, work, ends, team.lane);
    return false;
}
template <class Tile>
DEV void attend(const Tensors<typename Tile::T>& x, const Partials& partials, gptr<const int> list, int i,
                const typename Tile::Team& team, int diagonal) {
    attend<Tile>(x, partials, list, i, team, diagonal, [] {});
}
