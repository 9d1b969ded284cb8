// Attention of a hybrid batch: prefill tiles and decode pieces, in one launch or in two. One kernel template; a Shape
// says how large the tiles are, a Binding how a CTA learns which of them to compute.
#include "include/arguments.cuh"
#include "include/binding.cuh"
#include "include/launch.cuh"
#include "include/trace.cuh"

// The paper's tiles. With 2 CTAs an SM: prefill 128 x 64 by four warps; with 4: 64 x 32 by two; with 8, for which an
// A100 has room at head dimension 64 alone: 32 x 16 by one. Decode: 16 rows by
// one warp, as many side by side in a CTA (virtual CTAs) as it has warps; instead of one stage of 32 keys it has
// several of 16 in the same 20 KB, so that copies are always under way. Rings get as many slots as fit into the SM's
// shared memory.
template <class T, int kHeadDim, int kCtasPerSm> struct Shape {
    static constexpr int kCtas = kCtasPerSm, kD = kHeadDim;
    static constexpr int kWarps = 8 / kCtas, kKeys = 16 * kWarps, kVirtual = kWarps;
    static constexpr int kRoom = POD_SMEM_PER_SM / kCtas - 1024;
    using Prefill = Tile<T, kD, kWarps, 2, kKeys, ring_slots(kRoom - kWarps * 32 * kD * 2, kKeys * kD * 2)>;
    // Beside prefill, whose tiles read the same K and V again and again, decode's K and V must not push them out of L2.
    static constexpr int kDecodeSlots = ring_slots(kRoom / kVirtual - 16 * kD * 2, 16 * kD * 2);
    template <bool kBeside> using DecodeTile = Tile<T, kD, 1, 1, 16, kDecodeSlots, kBeside>;
    using Decode = DecodeTile<false>;

    template <class Binding> static constexpr int threads() { return kWarps * 32 * (Binding::kHalves ? 2 : 1); }
    template <class Binding> static constexpr int ctas() { return Binding::kHalves ? kCtas / 2 : kCtas; }
    template <class Binding> static constexpr int smem() {
        const int prefill = Binding::kPrefills ? Prefill::kSmem : 0;
        const int decode = Binding::kDecodes ? kVirtual * Decode::kSmem : 0;
        return Binding::kHalves ? prefill + decode : prefill > decode ? prefill : decode;
    }
};

template <class T> struct Params {
    Tensors<T> x;
    Choice choice;
    gptr<const int> prefill_work, decode_work;  // Work records
    gptr<const int> pieces;                     // [decode pieces + 1] first record of each piece
    int decode_pieces, diagonal;                // diagonal = causal
    Partials prefill_partials, decode_partials;
    gptr<int64_t> trace;
};

template <class Shape, class T> DEV void prefill(const Params<T>& p, int slot, sptr<unsigned char> smem) {
    using Tile = typename Shape::Prefill;
    const typename Tile::Team team{int(threadIdx.x) >> 5, int(threadIdx.x) & 31, smem};
    attend<Tile>(p.x, p.prefill_partials, p.prefill_work, slot, team, p.diagonal);
}

// A slot of decode is one piece for each warp, and a piece is one record or, under stream-K, the few that a range
// crosses.
template <class Shape, bool kBeside, class T>
DEV void decode(const Params<T>& p, int slot, int thread, sptr<unsigned char> smem) {
    using Tile = typename Shape::template DecodeTile<kBeside>;
    const int warp = thread >> 5, piece = slot * Shape::kVirtual + warp;
    if (piece >= p.decode_pieces) return;
    const typename Tile::Team team{0, ptx::opaque(thread & 31), smem + warp * Tile::kSmem};
    const int end = p.pieces[piece + 1];
    for (int i = p.pieces[piece]; i < end; ++i) attend<Tile>(p.x, p.decode_partials, p.decode_work, i, team, 0);
}

// The two halves of a CTA go their own ways: no barrier joins them.
template <class Shape, bool kTrace, class T> DEV void run_halves(const Params<T>& p, sptr<unsigned char> smem) {
    constexpr int kPrefillThreads = Shape::Prefill::kThreads;
    const Trace<kTrace> trace;
    const Assignment a = ByWarp::assign_half<kPrefillThreads>();
    const int thread = threadIdx.x - (a.op == kPrefill ? 0 : kPrefillThreads);
    if (a.id >= p.choice.slots[a.op]) return;
    if (a.op == kPrefill) prefill<Shape>(p, a.id, smem);
    else decode<Shape, true>(p, a.id, thread, smem + Shape::Prefill::kSmem);
    if constexpr (kTrace) {
        ptx::named_barrier_sync(2 + a.op, a.op == kPrefill ? kPrefillThreads : Shape::kVirtual * 32);
        if (thread == 0) trace.write(p.trace, blockIdx.x * 2 + a.op, a);
    }
}

template <class Shape, class Binding, bool kTrace, class T>
__global__ void __launch_bounds__(Shape::template threads<Binding>(), Shape::template ctas<Binding>())
hybrid(const __grid_constant__ Params<T> p) {
    const sptr<unsigned char> smem = ptx::dynamic_smem<unsigned char>();
    if constexpr (Binding::kHalves) {
        run_halves<Shape, kTrace>(p, smem);
    } else {
        const Trace<kTrace> trace;
        const Assignment a = Binding::assign(p.choice, ptr_cast<Assignment>(smem));
        if (Binding::kDraws && a.id >= p.choice.slots[a.op]) return;
        if (Binding::kPrefills && (!Binding::kDecodes || a.op == kPrefill)) {
            if constexpr (Binding::kPrefills) prefill<Shape>(p, a.id, smem);
        } else {
            if constexpr (Binding::kDecodes) decode<Shape, Binding::kPrefills>(p, a.id, threadIdx.x, smem);
        }
        if constexpr (kTrace) {
            __syncthreads();
            if (threadIdx.x == 0) trace.write(p.trace, blockIdx.x, a);
        }
    }
}

// ---------------------------------------------------------------- host
template <class Shape, class T> Params<T> params(const HybridArgs& a) {
    Params<T> p;
    p.x = tensors<T>(a, Shape::kD);
    const int* list = a.lists;
    const auto take = [&](size_t n, const char* name) {
        list += n;
        return device_ptr(list - n, n, name);
    };
    p.prefill_work = take(size_t(a.prefill_works) * kWorkInts, "prefill work");
    p.decode_work = take(size_t(a.decode_works) * kWorkInts, "decode work");
    p.pieces = take(a.pieces + 1, "decode pieces");
    p.choice.deal = take(a.deals, "deal");
    p.choice.tickets = device_ptr(a.counters, a.sms + 3, "tickets");
    p.choice.sms = a.sms;
    p.choice.deals = a.deals;
    p.decode_pieces = a.pieces;
    p.diagonal = a.causal;
    p.choice.slots[kPrefill] = a.prefill_works;
    p.choice.slots[kDecode] = (a.pieces + Shape::kVirtual - 1) / Shape::kVirtual;
    int* const arrived = a.counters + a.sms + 3;
    using Prefill = typename Shape::Prefill;
    using Decode = typename Shape::Decode;
    p.prefill_partials = partials<Prefill>(a.partials, a.prefill_slots, arrived, a.prefill_groups);
    float* const decode_partials = a.partials + size_t(a.prefill_slots) * Prefill::kRows * (Prefill::kD + 1);
    p.decode_partials = partials<Decode>(decode_partials, a.decode_slots, arrived + a.prefill_groups, a.decode_groups);
    p.trace = device_ptr(a.trace, a.trace_rows * kTraceFields, "trace");
    return p;
}

template <class Shape, class Binding, bool kTrace, class T> void launch_bound(const HybridArgs& a, Stream stream) {
    const Params<T> p = params<Shape, T>(a);
    const int prefills = Binding::kPrefills ? p.choice.slots[kPrefill] : 0;
    const int decodes = Binding::kDecodes ? p.choice.slots[kDecode] : 0;
    const int grid = Binding::kHalves ? max(prefills, decodes) : prefills + decodes;
    if (grid == 0) return;
    launch<hybrid<Shape, Binding, kTrace, T>>(stream, dim3(grid), dim3(Shape::template threads<Binding>()),
                                              Shape::template smem<Binding>(), p);
}
template <class Shape, bool kTrace, class T> void launch_shape(const HybridArgs& a, Stream stream) {
    switch (a.binding) {
        case Binding::prefill: return launch_bound<Shape, OnlyPrefill, kTrace, T>(a, stream);
        case Binding::decode: return launch_bound<Shape, OnlyDecode, kTrace, T>(a, stream);
        case Binding::cta: return launch_bound<Shape, ByBlock, kTrace, T>(a, stream);
        case Binding::warp: return launch_bound<Shape, ByWarp, kTrace, T>(a, stream);
        case Binding::pod: return launch_bound<Shape, ByTicket, kTrace, T>(a, stream);
    }
}
template <class T, int kD, bool kTrace> void launch_hybrid(const HybridArgs& a, Stream stream) {
    if (a.ctas_per_sm == 2) launch_shape<Shape<T, kD, 2>, kTrace, T>(a, stream);
    else if (a.ctas_per_sm == 4) launch_shape<Shape<T, kD, 4>, kTrace, T>(a, stream);
    else launch_shape<Shape<T, kD, 8>, kTrace, T>(a, stream);
}

// The build adds one line for each kind of tensor it wants: POD_KERNELS(hybrid_bfloat16_128, __nv_bfloat16, 128, false)
#define POD_KERNELS(NAME, T, D, TRACE) \
    void launch_##NAME(const HybridArgs& a, Stream stream) { launch_hybrid<T, D, TRACE>(a, stream); }
