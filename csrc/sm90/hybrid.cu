// Prefill and decode attention of one hybrid batch in one persistent kernel for Hopper (sm_90a). One CTA of 512
// threads per SM: warp 0 produces for prefill, warp 1 for decode, warpgroups 1 and 2 consume prefill tiles, warpgroup
// 3 consumes decode tiles. The two sides never wait for each other; each ends when its own work is gone. There is a
// kernel for each number of rows that decode packs (kRows); two for batches without decode: at head_dim 64, where
// warpgroup 3 is prefill's, too (kRows = 0), and for tiles of few rows, where it has nothing to do (kNarrow); for each
// size of pages; and for each set of rules.
#include <numeric>
#include "sm90/decode.cuh"
#include "sm90/prefill.cuh"
#include "include/hybrid.h"
#include "include/launch.cuh"
#include "include/tensor_map.cuh"
using namespace sm90;

constexpr int kThreads = 512;
constexpr int kNarrow = 1;  // NARROW of pod/schedule/work.py
// Registers of a producer, prefill and decode thread, and of three prefill warpgroups, are those of an SM.
struct Registers {
    int producer, prefill, decode;
};
template <int kRows, int kBits> constexpr Registers kRegisters;
template <> constexpr Registers kRegisters<8, 16> = {32, 200, 80};
template <> constexpr Registers kRegisters<16, 16> = {32, 192, 96};
template <> constexpr Registers kRegisters<0, 16> = {32, 160, 160};
template <> constexpr Registers kRegisters<kNarrow, 16> = {32, 224, 32};
template <> constexpr Registers kRegisters<8, 8> = {24, 192, 104};
template <> constexpr Registers kRegisters<16, 8> = {24, 192, 104};

template <int D, int kRows, int kBits> struct Layout {
    static constexpr int kGroups = kRows ? 2 : 3;  // prefill warpgroups
    using Prefill = prefill::Control<kGroups, kBits>;
    static constexpr bool kDecodes = kRows >= 8, kFew = kRows == kNarrow;
    using DecodeSmem = decode::Smem<D, kDecodes ? kRows : 8, kBits>;
    using Decode = decode::Control<D, kDecodes ? kRows : 8, kBits>;
    static constexpr uint32_t kDecode = prefill::Smem<D, 0, kGroups>::kBytes;
    static constexpr uint32_t kControl = kDecode + DecodeSmem::kBytes;
    static constexpr uint32_t kDecodeControl = kControl + (sizeof(Prefill) + 15) / 16 * 16;
    static constexpr uint32_t kBytes = kDecodeControl + sizeof(Decode);
    static_assert(kBytes <= 232448, "an SM gives one CTA 227 KB");
};

struct Maps {
    TensorMaps prefill, decode;
};

// What every launch reads first, word after word from memory that it waits for: lists, then the pages they name. So
// all CTAs together ask for it at once, a line a lane; what one of them will read another may have brought.
struct Ahead {
    gptr<const int> lists, table;
    int list_ints, table_ints;

    DEV void fetch(int lane) const {
        constexpr int kLine = 32;
        const int at = (blockIdx.x * 32 + lane) * kLine;
        if (at < list_ints) ptx::prefetch_l2(lists + at);
        if (at < table_ints) ptx::prefetch_l2(table + at);
    }
};

// When each role of each CTA began and ended: [CTA][role][2], roles in the order of the warpgroups below.
DEV void stamp(gptr<long long> trace, int role, int which) {
    GPU(asm volatile("" : "+l"(trace));)  // or ptxas keeps (and spills) the test from one stamp to the next
    if (!trace || ptx::thread_id() != (role < 2 ? role * 32 : (role - 1) * 128)) return;
    trace[(blockIdx.x * 5 + role) * 2 + which] = ptx::globaltimer();
}

template <typename T, int D, int kPage, int kRows, int kRules, int kBits>
__global__ void __launch_bounds__(kThreads, 1)
hybrid90(const __grid_constant__ Maps maps, const __grid_constant__ prefill::Params pp,
         const __grid_constant__ decode::Params dp, const __grid_constant__ KvLayout kv, gptr<long long> trace,
         const __grid_constant__ Scales scales, const __grid_constant__ Ahead ahead,
         const __grid_constant__ Slabs slabs) {
    using L = Layout<D, kRows, kBits>;
    constexpr int kOwnPage = kBits == 16 ? kPage : 0;  // of prefill's tiles: of 8 bits those that are widened
    constexpr Registers kOf = kRegisters<kRows, kBits>;
    static_assert((kOf.producer + 2 * kOf.prefill + kOf.decode) * 128 == 65536, "all of an SM's");
    const smem_addr base = ptx::smem_u32(ptx::dynamic_smem<uint8_t>());
    auto& pc = ptx::smem_struct<typename L::Prefill>(L::kControl);
    auto& dc = ptx::smem_struct<typename L::Decode>(L::kDecodeControl);
    const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0);

    if (threadIdx.x == 0) {
        pc.init();
        dc.init();
        ptx::fence_mbar_init();
        maps.prefill.prefetch();
        maps.decode.prefetch();
    }
    if (warp == 3) ahead.fetch(ptx::lane_id());
    prefill::clear_padding<prefill::Smem<D, kOwnPage, L::kGroups>, L::kGroups>(pp.pack, base, kThreads);
    __syncthreads();

    if (warp < 4) {
        ptx::setmaxnreg_dec<kOf.producer>();
        stamp(trace, warp, 0);
        if (warp == 0)
            prefill::Producer<D, kPage, L::kGroups, kBits>{maps.prefill, pp, kv, slabs, base, pc, ptx::lane_id()}.run();
        if constexpr (L::kDecodes)
            if (warp == 1)
                decode::Producer<D, kRows, kPage, kBits>{maps.decode, dp, kv, base + L::kDecode, dc, ptx::lane_id()}
                    .run();
        if constexpr (kBits == 8) {
            prefill::Widener<D, L::kGroups> widener{base, pc, ptx::lane_id()};
            if (warp == 2) widener.template run<false>();
            if (warp == 3) widener.template run<true>();
        }
        stamp(trace, warp, 1);
    } else if (warp < 4 + 4 * L::kGroups) {
        ptx::setmaxnreg_inc<kOf.prefill>();
        stamp(trace, 1 + warp / 4, 0);
        prefill::consume<T, D, kOwnPage, L::kFew, L::kGroups, kRules>(
            pp, scales, base, pc, dc.done, warp / 4 - 1, warp - 4, ptx::lane_id());
        stamp(trace, 1 + warp / 4, 1);
    } else if constexpr (kRows != 0) {
        ptx::setmaxnreg_dec<kOf.decode>();
        stamp(trace, 4, 0);
        if constexpr (L::kDecodes)
            decode::Consumer<T, D, kRows, kRules, kBits>{dp, scales, base + L::kDecode, dc, warp - 12, ptx::lane_id()}
                .run();
        stamp(trace, 4, 1);
    }
}

// ---------------------------------------------------------------- host: one launch, no memset, no second kernel
// How prefill's tiles are packed.
static prefill::Pack pack_of(const HybridArgs& a) {
    const int groups = a.prefill_rows / prefill::kGroupRows, tokens = a.pack_tokens / groups;
    const bool by_tokens = a.pack_tokens % groups == 0 && tokens * a.pack_heads <= prefill::kGroupRows;
    if (by_tokens) return {a.pack_heads, tokens, 0, tokens, 65535 / a.pack_heads + 1};
    const int heads = (a.pack_heads + groups - 1) / groups;
    return {heads, a.pack_tokens, heads, 0, 65535 / heads + 1};
}
// Query heads of one KV head that a pass of decode packs: a power of two, so that a row tells its token by a shift.
static int pack_shift(const HybridArgs& a) {
    int shift = 0;
    while (1 << shift < std::min(a.num_q_heads / a.num_kv_heads, a.decode_rows)) shift++;
    return shift;
}

// Strides of maps count bytes, elements take two. Q for prefill: (64 columns, heads, tokens, panels). For decode: (64
// columns, heads of a group, tokens, panels, groups), so that a box is filled up with zeros where the group is smaller.
static bool q_maps(Maps* m, const HybridArgs& a) {
    const cuuint64_t heads = a.num_q_heads, group = heads / a.num_kv_heads, tokens = a.tokens, panels = a.head_dim / 64;
    const cuuint64_t head = a.q_head * 2, token = a.q_token * 2;
    const cuuint64_t pd[4] = {64, heads, tokens, panels}, ps[3] = {head, token, 128};
    const cuuint64_t dd[5] = {64, group, tokens, panels, cuuint64_t(a.num_kv_heads)};
    const cuuint64_t ds[4] = {head, token, 128, head * group};
    const prefill::Pack pack = pack_of(a);
    const cuuint32_t decode_heads = 1u << pack_shift(a), decode_tokens = a.decode_rows / decode_heads;
    const cuuint32_t pb[4] = {64, cuuint32_t(pack.heads), cuuint32_t(pack.tokens), 1};
    const cuuint32_t db[5] = {64, decode_heads, decode_tokens, 1, 1};
    return make_map(&m->prefill.q, a.half, a.q, 4, pd, ps, pb) && make_map(&m->decode.q, a.half, a.q, 5, dd, ds, db);
}
// KV [pages, page, Hk, D]: (64 columns, tokens of a page, panels, heads, pages), in boxes of so many rows; of 8 bits a
// panel has all columns.
static bool kv_map(CUtensorMap* map, const HybridArgs& a, const void* data, int rows) {
    const int bytes = a.k_scale ? 1 : 2;
    const cuuint64_t columns = bytes == 1 ? a.head_dim : 64, panels = a.head_dim / columns;
    const cuuint64_t tokens = a.page_tokens, heads = a.num_kv_heads, pages = a.pages;
    const cuuint64_t dims[5] = {columns, tokens, panels, heads, pages};
    const cuuint64_t token = a.kv_token * bytes, head = a.kv_head * bytes, page = a.kv_page * bytes;
    const cuuint64_t strides[4] = {token, columns * bytes, head, page};
    const cuuint32_t box[5] = {cuuint32_t(columns), cuuint32_t(rows), 1, 1, 1};
    return make_map(map, a.half, data, 5, dims, strides, box, bytes);
}

// Heads and pages begin where slabs do: at multiples of the greatest common divisor of their strides, so many elements.
static int64_t slab_of(const HybridArgs& a) {
    const int64_t step = std::gcd(a.pages > 1 ? a.kv_page : 0, a.num_kv_heads > 1 ? a.kv_head : 0);
    return step ? step : 64;
}
static Slabs slabs_of(const HybridArgs& a) {
    return {a.pages, int(a.kv_page / slab_of(a)), int(a.kv_head / slab_of(a))};
}
// The same as whole rows in groups of 8: (64 columns, 8 tokens, panels, groups of a page, slabs).
static bool grouped_map(CUtensorMap* map, const HybridArgs& a, const void* data, int rows) {
    const cuuint64_t panels = a.head_dim / 64, groups = a.page_tokens / 8, token = a.kv_token * 2, step = slab_of(a);
    const cuuint64_t slabs = ((a.pages - 1) * a.kv_page + (a.num_kv_heads - 1) * a.kv_head) / step + 1;
    const cuuint64_t dims[5] = {64, 8, panels, groups, slabs}, strides[4] = {token, 128, 8 * token, 2 * step};
    const cuuint32_t box[5] = {64, 8, cuuint32_t(panels), cuuint32_t(rows / 8), 1};
    return slabs >> 31 == 0 && make_map(map, a.half, data, 5, dims, strides, box);
}

template <int kPage, int kBits> static Maps maps_of(const HybridArgs& a) {
    Maps m = {};
    const auto both = [&](TensorMaps* of, auto* map, int rows) {
        return map(&of->k, a, a.k, kPage ? kPage : rows) && map(&of->v, a, a.v, kPage ? kPage : rows);
    };
    if (!has_context() || !q_maps(&m, a) || !both(&m.decode, kv_map, decode::kTokens) ||
        !both(&m.prefill, kPage && kBits == 16 ? grouped_map : kv_map, prefill::kKeys))
        throw std::runtime_error("the Hopper kernel could not be launched: no tensor map could be made");
    return m;
}

// `lists`, `counters` and `partials` hold first what is prefill's, then what is decode's, as pod/kernels/sm90.py lays
// them out. The lists begin with the one number that is no list.
constexpr int kFirstList = 4;
template <int D> static size_t prefill_floats(const HybridArgs& a) {  // pieces take the most
    return size_t(a.prefill_slots) * a.prefill_rows * 8 * (D / 32 * prefill::Piece::kVecs);
}
static Rules rules_of(const HybridArgs& a) {
    return {a.window, a.cap_log2, device_ptr(a.sinks, a.sinks ? a.num_q_heads : 0, "sinks")};
}
static int prefill_arrivals(const HybridArgs& a) { return a.prefill_rows / 16 * a.prefill_groups; }

template <int D> static prefill::Params prefill_params(const HybridArgs& a, gptr<uint16_t> out, gptr<float> lse) {
    return {device_ptr(reinterpret_cast<const Work*>(a.lists + kFirstList), a.prefill_works, "prefill_work"),
            device_ptr(a.lists, 1, "yields"), out, lse, device_ptr(a.counters, 2, "counters of prefill"),
            device_ptr(a.partials, prefill_floats<D>(a), "partial results of prefill"),
            device_ptr(a.counters + 4, prefill_arrivals(a), "prefill_arrived"), a.num_q_heads,
            a.num_q_heads / a.num_kv_heads, a.causal, pack_of(a), a.scale_log2, rules_of(a)};
}
template <int D> static decode::Params decode_params(const HybridArgs& a, gptr<uint16_t> out, gptr<float> lse) {
    const Work* const work = reinterpret_cast<const Work*>(a.lists + kFirstList) + a.prefill_works;
    const size_t floats = size_t(a.decode_slots) * a.decode_rows * (D + 2);
    return {device_ptr(work, a.decode_works, "decode_work"),
            device_ptr(reinterpret_cast<const int*>(work + a.decode_works), a.pieces + 1, "decode_chunks"), out, lse,
            device_ptr(a.counters + 2, 2, "counters of decode"),
            device_ptr(a.partials + prefill_floats<D>(a), floats, "partial results of decode"),
            device_ptr(a.counters + 4 + prefill_arrivals(a), a.decode_groups, "decode_arrived"), a.num_q_heads,
            a.num_q_heads / a.num_kv_heads, a.causal, pack_shift(a), a.decode_rows * 128, a.scale_log2, rules_of(a)};
}

template <typename T, int D, int kRows, int kPage, int kRules, int kBits = 16>
static void launch_kernel(const HybridArgs& a, Stream stream) {
    const size_t rows = size_t(a.tokens) * a.num_q_heads;
    const gptr<uint16_t> out = device_ptr(static_cast<uint16_t*>(a.out), rows * D, "out");
    const gptr<float> lse = device_ptr(a.lse, rows, "lse");
    const int page = kPage == kAnyPage ? a.page_tokens / kAnyPage : a.page_shift;
    const KvLayout kv = {device_ptr(a.table, a.table_size, "block_table"), int(a.table_stride), page};
    const auto trace = device_ptr(reinterpret_cast<long long*>(a.trace), size_t(a.trace_rows) * 10, "trace");
    const Scales scales = {device_ptr(a.k_scale, a.num_kv_heads, "k_scale"),
                           device_ptr(a.v_scale, a.num_kv_heads, "v_scale")};
    const int list_ints = kFirstList + (a.prefill_works + a.decode_works) * int(sizeof(Work) / 4) + a.pieces + 1;
    const Ahead ahead = {device_ptr(a.lists, list_ints, "lists"), kv.table, list_ints,
                         kv.table ? int(std::min(a.table_size, size_t(1) << 20)) : 0};
    launch<hybrid90<T, D, kPage, kRows, kRules, kBits>>(
        stream, dim3(a.sms), dim3(kThreads), Layout<D, kRows, kBits>::kBytes, maps_of<kPage, kBits>(a),
        prefill_params<D>(a, out, lse), decode_params<D>(a, out, lse), kv, trace, scales, ahead, slabs_of(a));
}

// The build adds one line for each kind of kernel it wants, its rules and, if not 16, bits of K and V at the end:
// POD_KERNELS(hopper_x, __half, 128, 8, 16, kWindow | kSinks)
#define POD_KERNELS(NAME, T, D, ROWS, PAGE, ...)                                                                       \
    void launch_##NAME(const HybridArgs& a, Stream stream) { launch_kernel<T, D, ROWS, PAGE, __VA_ARGS__>(a, stream); }
