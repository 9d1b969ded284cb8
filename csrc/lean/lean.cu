// Decode by stream-K, as LeanAttention has it: the tiles of all requests and heads lie on one line, and every worker
// computes one contiguous range of it. The kernel does not know how the line was cut (pod/schedule/decode.py): at
// equal distances it is LeanAttention, at the end of every head FlashAttention-2, at fixed parts of every head
// FlashDecoding.
#include "include/arguments.cuh"
#include "include/launch.cuh"

constexpr int kLeanThreads = 128, kLeanCtas = 2;  // of a CTA; CTAs an SM

// ---------------------------------------------------------------- who is a worker
// A warp, four of them in a CTA. It serves all query heads of a KV head at once, and its ring keeps copies under way.
template <class T, int kD> struct WarpWorker {
    static constexpr int kWorkers = 4;
    static constexpr int kPanel = 16 * kD * 2, kRoom = (POD_SMEM_PER_SM / kLeanCtas - 1024) / kWorkers - kPanel;
    using Tile = ::Tile<T, kD, 1, 1, 16, ring_slots(kRoom, kPanel)>;
};
// The paper's: a CTA with a tile of 64 query rows, of which decode fills one, against kKeys keys at a time.
template <class T, int kD, int kKeys> struct CtaWorker {
    static constexpr int kWorkers = 1;
    using Tile = ::Tile<T, kD, 4, 1, kKeys, 4>;
};

// ---------------------------------------------------------------- who merges the parts of a head
// Whoever arrives last. Nobody waits for anybody, so the parts need not run at the same time.
struct LastMerges {
    template <class Team> DEV static bool is_me(const Work& work, gptr<int> arrived, const Team& team) {
        int ticket = 0;
        if (team.thread() == 0) ticket = ptx::atomic_add_acq_rel(arrived, 1);
        return team.broadcast(ticket) == work.parts - 1;
    }
};
// The paper's host: whoever has the first tile. It waits for all others, so all of them must be on the GPU at once.
struct HostMerges {
    template <class Team> DEV static bool is_me(const Work& work, gptr<int> arrived, const Team& team) {
        const bool host = work.part == 0;
        int others;
        do {
            others = 0;
            if (team.thread() == 0) others = ptx::atomic_add_acq_rel(arrived, host ? 0 : 1);
        } while (team.broadcast(others) < work.parts - 1 && host);
        return host;
    }
};

// ---------------------------------------------------------------- the kernel
template <class T> struct LeanParams {
    Tensors<T> x;
    gptr<const int> work;    // Work records, in the order of the line
    gptr<const int> pieces;  // [count + 1] first record of each worker's range
    int count;
    Partials partials;
    gptr<int64_t> trace;     // [records, 8], see TRACE_FIELDS in pod/kernels/lean.py
};

// One record: the part of a head that lies in this worker's range.
template <class Tile, class Merge, bool kTrace, class T>
DEV void attend_part(const LeanParams<T>& p, int i, int worker, const typename Tile::Team& team) {
    const int64_t start = kTrace ? ptx::globaltimer() : 0;
    TileAttention<Tile> a(p.x, team, load_work(p.work, i), 0);
    a.run();
    float inverse[Tile::kTiles][2], lse2[Tile::kTiles][2];
    a.rows.finish(inverse, lse2, p.x.scale_log2);
    const int64_t computed = kTrace ? ptx::globaltimer() : 0;
    const Work work = load_work(p.work, i);  // again: the loops needed the registers
    bool merges = false;
    if (work.parts == 1) {
        a.write_out(work, inverse);
        if (p.x.lse && team.lane % 4 == 0)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (a.row(0, h) < work.rows) p.x.lse[a.out_row(work, a.row(0, h))] = lse2[0][h] * kLn2;
    } else {
        store_partial(a, p.partials, work.slot + work.part, inverse, lse2, work.rows, team.lane);
        const gptr<int> arrived = p.partials.arrived + work.group;
        team.sync();  // all have stored their piece
        merges = Merge::is_me(work, arrived, team);
        if (merges) {
            team.sync();
            if (team.thread() == 0) arrived[0] = 0;  // for the next launch
            constexpr int kPieces = Tile::kD / 8;
            for (int j = team.thread(); j < work.rows * kPieces; j += Tile::kThreads)
                merge_piece(a, p.x, work, p.partials, j / kPieces, j % kPieces * 8);
        }
    }
    if constexpr (kTrace) {
        if (team.thread() != 0) return;
        const gptr<int64_t> row = p.trace + int64_t(i) * 8;
        row[0] = worker;
        row[1] = i;
        row[2] = ptx::smid();
        row[3] = start;
        row[4] = computed;
        row[5] = ptx::globaltimer();
        row[6] = merges;
        row[7] = blockIdx.x;
    }
}

template <class Worker, class Merge, bool kTrace, class T>
__global__ void __launch_bounds__(kLeanThreads, kLeanCtas) lean(const __grid_constant__ LeanParams<T> p) {
    using Tile = typename Worker::Tile;
    const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31;
    const int team_number = warp / Tile::kWarps, worker = blockIdx.x * Worker::kWorkers + team_number;
    if (worker >= p.count) return;
    const sptr<unsigned char> smem = ptx::dynamic_smem<unsigned char>() + team_number * Tile::kSmem;
    const typename Tile::Team team{warp % Tile::kWarps, ptx::opaque(lane), smem};
    const int end = p.pieces[worker + 1];
    for (int i = p.pieces[worker]; i < end; ++i) attend_part<Tile, Merge, kTrace>(p, i, worker, team);
}

// ---------------------------------------------------------------- host
template <class Worker, class T> LeanParams<T> lean_params(const HybridArgs& a) {
    using Tile = typename Worker::Tile;
    const size_t ints = size_t(a.decode_works) * kWorkInts;
    LeanParams<T> p;
    p.x = tensors<T>(a, Tile::kD);
    p.work = device_ptr(a.lists, ints, "work");
    p.pieces = device_ptr(a.lists + ints, size_t(a.pieces) + 1, "pieces");
    p.count = a.pieces;
    p.partials = partials<Tile>(a.partials, a.decode_slots, a.counters, a.decode_groups);
    p.trace = device_ptr(a.trace, a.trace_rows * 8, "trace");
    return p;
}

template <class Worker, class Merge, bool kTrace, class T> void launch_lean(const HybridArgs& a, Stream stream) {
    if (a.binding != Binding::decode) return;  // the operator asks for prefill first; there is none
    const int ctas = (a.pieces + Worker::kWorkers - 1) / Worker::kWorkers;
    const size_t smem = size_t(Worker::kWorkers) * Worker::Tile::kSmem;
    launch<lean<Worker, Merge, kTrace, T>>(stream, dim3(ctas), dim3(kLeanThreads), smem, lean_params<Worker, T>(a));
}

// The build adds one line for each kind it wants: POD_LEAN(hybrid_lean_bfloat16_64_warp_last, __nv_bfloat16, false,
// LastMerges, WarpWorker<__nv_bfloat16, 64>)
#define POD_LEAN(NAME, T, TRACE, MERGE, ...) \
    void launch_##NAME(const HybridArgs& a, Stream stream) { launch_lean<__VA_ARGS__, MERGE, TRACE, T>(a, stream); }
