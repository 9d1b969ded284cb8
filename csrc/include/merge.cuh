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

template <class Tile>
DEV void store_partial(const TileAttention<Tile>& a, const Partials& to, int slot,
                       const float (&inverse)[Tile::kTiles][2], const float (&lse2)[Tile::kTiles][2], int rows,
                       int lane) {
    const int64_t first = int64_t(slot) * Tile::kRows;
    const gptr<float2> o = ptr_cast<float2>(to.o + first * Tile::kD);
#pragma unroll
    for (int r = 0; r < Tile::kTiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = a.row(r, h);
            if (row >= rows) continue;
#pragma unroll
            for (int j = 0; j < Tile::kD / 8; ++j)
                o[(row * Tile::kD + a.column(j)) / 2] =
                    make_float2(a.o[r][j][2 * h] * inverse[r][h], a.o[r][j][2 * h + 1] * inverse[r][h]);
            if (lane % 4 == 0) to.lse2[first + row] = lse2[r][h];
        }
}

// Eight columns of one row from all parts.
template <class Tile>
DEV void merge_piece(const TileAttention<Tile>& a, const Tensors<typename Tile::T>& x, const Work& work,
                     const Partials& from, int row, int column) {
    const gptr<float> lse2 = from.lse2 + int64_t(work.slot) * Tile::kRows + row;
    float top = kMinusInf;
    for (int i = 0; i < work.parts; ++i) top = fmaxf(top, float(lse2[i * Tile::kRows]));
    const float base = top == kMinusInf ? 0.f : top;
    float sum = 0, o[8] = {};
    for (int i = 0; i < work.parts; ++i) {
        const float weight = ptx::ex2(float(lse2[i * Tile::kRows]) - base);
        const int64_t there = (int64_t(work.slot) + i) * Tile::kRows + row;
        const gptr<float4> part = ptr_cast<float4>(from.o + there * Tile::kD + column);
        const float4 lo = part[0], hi = part[1];
        o[0] += weight * lo.x;
        o[1] += weight * lo.y;
        o[2] += weight * lo.z;
        o[3] += weight * lo.w;
        o[4] += weight * hi.x;
        o[5] += weight * hi.y;
        o[6] += weight * hi.z;
        o[7] += weight * hi.w;
        sum += weight;
    }
    const float inverse = sum > 0 ? 1.f / sum : 0.f;
    const auto pack = [&](int i) { return ptx::pack2<typename Tile::T>(o[i] * inverse, o[i + 1] * inverse); };
    const uint4 packed = make_uint4(pack(0), pack(2), pack(4), pack(6));
    ptx::st_global_16(x.out + a.out_row(work, row) * Tile::kD + column, packed);
    if (column == 0 && x.lse) x.lse[a.out_row(work, row)] = sum > 0 ? (base + log2f(sum)) * kLn2 : kMinusInf;
}

template <class Tile>
DEV void merge_if_last(const TileAttention<Tile>& a, const Tensors<typename Tile::T>& x, const Work& work,
                       const Partials& parts, const typename Tile::Team& team) {
    int ticket = 0;
    team.sync();  // all have stored their piece
    if (team.thread() == 0) ticket = ptx::atomic_add_acq_rel(parts.arrived + work.group, 1);
    if (team.broadcast(ticket) != work.parts - 1) return;
    team.sync();
    if (team.thread() == 0) parts.arrived[work.group] = 0;
    constexpr int kPieces = Tile::kD / 8;
    for (int i = team.thread(); i < work.rows * kPieces; i += Tile::kThreads)
        merge_piece(a, x, work, parts, i / kPieces, i % kPieces * 8);
}

// One piece of work from queries to output.
template <class Tile>
DEV void attend(const Tensors<typename Tile::T>& x, const Partials& partials, gptr<const int> list, int i,
                const typename Tile::Team& team, int diagonal) {
    TileAttention<Tile> a(x, team, load_work(list, i), diagonal);
    a.run();
    float inverse[Tile::kTiles][2], lse2[Tile::kTiles][2];
    a.rows.finish(inverse, lse2, x.scale_log2);
    const Work work = load_work(list, i);  // again: the loops needed the registers
    if (work.parts > 1) {
        store_partial(a, partials, work.slot + work.part, inverse, lse2, work.rows, team.lane);
        return merge_if_last(a, x, work, partials, team);
    }
    a.write_out(work, inverse);
    if (x.lse && team.lane % 4 == 0)
#pragma unroll
        for (int r = 0; r < Tile::kTiles; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (a.row(r, h) < work.rows) x.lse[a.out_row(work, a.row(r, h))] = lse2[r][h] * kLn2;
}
