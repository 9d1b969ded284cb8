// The plan of the Hopper kernel, made on the device: from lengths in its memory to the lists in its memory, so that
// nobody waits and a CUDA graph can hold it. The specification is pod/schedule (decide.hopper): the same lists to the
// last number, hence no floating point here. One half of the CTAs is for prefill, the other for decode; each finds out
// all about its side, and writes its share of the records.
#include "sm90/plan.h"
#include "include/launch.cuh"
#include "include/ptx.cuh"

namespace {

constexpr int kDecodeKeys = 64, kPrefillKeys = 128;                     // of a tile, of a block
constexpr int kPieceCost = 5, kPartCost = 29, kMergeCost = 4, kFan = 8; // the cost model of pod/schedule/choose.py
constexpr int kShortestPart = 2, kMostParts = 128, kBeside = 7, kFraction = 24;
constexpr int kLengths = 16, kBins = 16, kScanned = 4;                  // lengths of parts that are tried
constexpr int kMostSms = 512, kMostThreads = 512;  // a thread a cut, so at least as many threads as SMs
constexpr int kYields = 4;                                              // ints before the first list

using ints = sptr<int>;
using Wide = long long;

DEV int ceil_div(int a, int b) { return (a + b - 1) / b; }
DEV int share_of_sm(int n) { return n < 5 ? n + 2 : n == 5 ? 8 : n == 6 ? 12 : 16; }  // SHARES, quarters
DEV int lane() { return threadIdx.x % 32; }
DEV int warp() { return threadIdx.x / 32; }
DEV int warps() { return blockDim.x / 32; }

template <typename T> DEV T warp_sum(T x) {
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
    return x;
}
template <typename T> DEV T warp_max(T x) {
    for (int i = 16; i; i >>= 1) {
        const T y = __shfl_xor_sync(~0u, x, i);
        x = x < y ? y : x;
    }
    return x;
}
// How many of x[0 .. n), which do not fall, are less than `value`, or no more than it.
template <bool kOrEqual> DEV int count_less(ints x, int n, int value) {
    int low = 0;
    while (low < n) {
        const int middle = (low + n) / 2, y = x[middle];
        if (y < value || (kOrEqual && y == value)) low = middle + 1;
        else n = middle;
    }
    return low;
}
// In each of kArrays arrays, x[i] becomes the sum of those before it, x[n] the sum of all. Every thread sums some
// neighbours; `sums` has room for a number a warp and array.
template <int kArrays> DEV void sums_before(const ints (&x)[kArrays], int n, ints sums) {
    const int each = ceil_div(n, blockDim.x), first = min(n, int(threadIdx.x) * each), last = min(n, first + each);
    int mine[kArrays], upto[kArrays];
    for (int a = 0; a < kArrays; a++) {
        mine[a] = 0;
        for (int i = first; i < last; i++) mine[a] += x[a][i];
        upto[a] = mine[a];
        for (int i = 1; i < 32; i <<= 1) {
            const int y = __shfl_up_sync(~0u, upto[a], i);
            if (lane() >= i) upto[a] += y;
        }
        if (lane() == 31) sums[a * 32 + warp()] = upto[a];
    }
    __syncthreads();
    for (int a = 0; a < kArrays; a++) {
        int before = upto[a] - mine[a] + warp_sum(lane() < warp() ? int(sums[a * 32 + lane()]) : 0);
        for (int i = first; i < last; i++) {
            const int y = x[a][i];
            x[a][i] = before;
            before += y;
        }
        if (threadIdx.x == blockDim.x - 1) x[a][n] = before;
    }
    __syncthreads();
}

// Shared memory. Runs are neighbouring tiles of prefill of a sequence that read the same blocks; cuts are where ranges
// of decode end.
struct Tables {
    ints q_len, kv_len, token;        // of each sequence; its first token
    ints tiles, few, first_run;       // sums over the sequences before: of decode's tiles, of those that are decode,
    ints run_tiles, run_parts;        // and of runs; of each run: tiles, and parts of each
    ints cut, cut_unit, ended;        // of each cut: where; the unit that it cuts apart, or -1; units ended there
    ints inner, fresh;                // sums over the cuts before: of those inside of a unit, of the first there
    ints tried, kept;                 // before ranges of nothing go
    ints times, lengths, bins, sums;
    sptr<unsigned long long> key;     // of each run: they are drawn in this order

    DEV Tables(const Limits& l) {
        key = ptx::dynamic_smem<unsigned long long>();
        ints at = ptr_cast<int>(key + l.runs);
        const auto take = [&](int n) {
            const ints mine = at;
            at = at + n;
            return mine;
        };
        for (ints* x : {&q_len, &kv_len, &token, &tiles, &few, &first_run}) *x = take(l.sequences + 1);
        for (ints* x : {&run_tiles, &run_parts}) *x = take(l.runs);
        for (ints* x : {&cut, &cut_unit, &ended, &inner, &fresh, &tried, &kept}) *x = take(kMostSms + 1);
        times = take(kLengths);
        lengths = take(kLengths);
        bins = take(kLengths * kBins);
        sums = take(kScanned * 32);
    }
};
constexpr size_t table_bytes(const Limits& l) {
    return 8 * size_t(l.runs) + 4 * (6 * size_t(l.sequences + 1) + 2 * size_t(l.runs) + 7 * (kMostSms + 1) +
                                     kLengths * (2 + kBins) + 32 * kScanned);
}

// What a sliding window adds costs nothing where there is none.
template <bool kWindow> struct Planner {
    const Limits& l;
    const int n;  // sequences
    const gptr<int> records, decode_records, pieces;
    Tables t;

    // ------------------------------------------------------------ the lengths, kept within the limits
    DEV void read(gptr<const int> q_lens, gptr<const int> kv_lens) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            const int q = max(0, min(min(int(q_lens[i]), l.tokens), l.kv_len)), given = kv_lens[i];
            t.kv_len[i] = q == 1 && given <= 0 ? 0 : min(max(given, q), l.kv_len);
            take(i, q);
        }
        add_up();
        if (int(t.token[n]) <= l.tokens) return;
        // More tokens than there are rows: what comes too late has fewer, or none.
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            take(i, min(int(t.q_len[i]), max(0, l.tokens - int(t.token[i]))));
        add_up();
    }
    DEV void take(int seq, int q) {
        const bool is_few = q > 0 && q <= l.decode_tokens;
        t.q_len[seq] = q;
        t.token[seq] = q;
        t.few[seq] = is_few;
        t.tiles[seq] = is_few ? max(1, ceil_div(t.kv_len[seq], kDecodeKeys) - unseen(pos(seq)) / kDecodeKeys) : 0;
        t.first_run[seq] = q > l.decode_tokens ? steps(seq) + last_blocks(seq) - first_blocks(seq) + 1 : 0;
    }
    DEV void add_up() {
        __syncthreads();
        sums_before({t.token, t.few, t.tiles, t.first_run}, n, t.sums);
    }

    // ------------------------------------------------------------ prefill: runs of tiles
    DEV int pos(int seq) const { return int(t.kv_len[seq]) - int(t.q_len[seq]); }
    // Keys that have left the window of the token at `pos`.
    DEV int unseen(int pos) const { return kWindow ? max(0, pos + 1 - l.window) : 0; }
    DEV int last_blocks(int seq) const { return max(1, ceil_div(t.kv_len[seq], kPrefillKeys)); }
    DEV int first_blocks(int seq) const {
        if (!l.causal) return last_blocks(seq);
        return max(1, ceil_div(pos(seq) + min(l.pack_tokens, int(t.q_len[seq])), kPrefillKeys));
    }
    DEV int runs() const { return t.first_run[n]; }
    DEV int run_seq(int run) const { return count_less<true>(t.first_run, n, run) - 1; }
    DEV int run_blocks(int run, int seq) const { return first_blocks(seq) + run - int(t.first_run[seq]); }
    DEV int all_tiles(int seq) const { return ceil_div(t.q_len[seq], l.pack_tokens); }
    // The first tile of a sequence whose keys end so many blocks behind the sequence's beginning.
    DEV int first_tile(int seq, int blocks) const {
        if (blocks <= first_blocks(seq)) return 0;
        if (blocks > last_blocks(seq)) return all_tiles(seq);
        return ((blocks - 1) * kPrefillKeys - pos(seq)) / l.pack_tokens;
    }
    // With a window, a run ends where the end of a tile's keys or their beginning comes to the next block. Runs of a
    // sequence may read equally many, then.
    DEV int begin_block(int seq, int tile) const { return unseen(pos(seq) + tile * l.pack_tokens) / kPrefillKeys; }
    // How often the beginning does.
    DEV int steps(int seq) const { return begin_block(seq, all_tiles(seq) - 1) - begin_block(seq, 0); }
    // The first tile whose keys begin so many blocks behind the first one's.
    DEV int stepped(int seq, int blocks) const {
        if (blocks == 0) return 0;
        const int key = (begin_block(seq, 0) + blocks) * kPrefillKeys;
        return min(ceil_div(key + l.window - 1 - pos(seq), l.pack_tokens), all_tiles(seq));
    }
    struct Run { int first, tiles, begin, blocks; };  // the first tile, and the first block of its keys
    // Both kinds of borders lie in one order; where they meet, the beginning's comes first, so that a run of no tiles
    // has no more blocks than its neighbours. `nth` of them are before the run: as many ends as this finds.
    DEV Run run_between(int seq, int nth) const {
        const int ends = last_blocks(seq) - first_blocks(seq), begins = steps(seq), upto = first_blocks(seq);
        int low = max(0, nth - begins), high = min(nth, ends);
        while (low < high) {
            const int middle = (low + high + 1) / 2;
            if (first_tile(seq, upto + middle) < stepped(seq, nth - middle + 1)) low = middle;
            else high = middle - 1;
        }
        const int begin = nth - low, first = max(first_tile(seq, upto + low), stepped(seq, begin));
        const int next = begin < begins ? stepped(seq, begin + 1) : all_tiles(seq);
        return {first, min(first_tile(seq, upto + low + 1), next) - first, begin_block(seq, 0) + begin,
                max(1, upto + low - begin_block(seq, 0) - begin)};
    }
    DEV int passes() const { return l.num_kv_heads * ceil_div(l.group, l.pack_heads); }
    // KV heads of a sequence whose keys and values fit in L2 together.
    DEV int together(int seq) const { return min(max(l.l2_keys / max(1, int(t.kv_len[seq])), 1), l.num_kv_heads); }

    // Longest first; but sequences with no room in L2 as a whole, the longest of them first.
    DEV void list_runs() {
        for (int r = threadIdx.x; r < runs(); r += blockDim.x) {
            const int seq = run_seq(r);
            const Run run = kWindow ? run_between(seq, r - int(t.first_run[seq])) : Run{};
            const int blocks = kWindow ? run.blocks : run_blocks(r, seq);
            const unsigned long long shorter = (1 << 18) - 1 - blocks, kv = (1 << 24) - 1 - int(t.kv_len[seq]);
            t.run_tiles[r] = kWindow ? run.tiles : first_tile(seq, blocks + 1) - first_tile(seq, blocks);
            t.key[r] = together(seq) == l.num_kv_heads ? 1ull << 63 | shorter << 12 | seq
                                                       : kv << 30 | (unsigned long long)seq << 18 | shorter;
        }
        __syncthreads();
    }
    static DEV int blocks_of(unsigned long long key) {
        return (1 << 18) - 1 - int((key >> 63 ? key >> 12 : key) & ((1 << 18) - 1));
    }
    static DEV int parts_of(int blocks, int length) {  // length in sixteenths of a block
        return min(ceil_div(16 * blocks, max(length, 16 * kShortestPart)), kMostParts);
    }

    // ------------------------------------------------------------ prefill: in how many parts
    struct Blocks {
        Wide total;
        int longest;
    };
    DEV Blocks prefill_work() const {  // by every warp for itself
        Blocks w = {0, 1};
        for (int r = lane(); r < runs(); r += 32) {
            const int blocks = blocks_of(t.key[r]);
            w.total += Wide(blocks) * int(t.run_tiles[r]) * passes();
            w.longest = max(w.longest, blocks);
        }
        return {warp_sum(w.total), warp_max(w.longest)};
    }
    DEV int length(int i, const Blocks& w) const {
        const Wide least = 4 * w.total * share_of_sm(0) / l.sms;
        const Wide mine = i < 8 ? 16 * w.longest / (i + 1) : 4 * w.total * share_of_sm(i - 8) / l.sms;
        return int(min(max(mine, least), Wide(1) << 26));
    }
    static DEV int merge_steps(int parts) {
        return parts == 1 ? 0 : parts <= kFan ? parts : kFan + ceil_div(parts, kFan);
    }
    static DEV int cost(int blocks, int parts) {
        return 10 * ceil_div(blocks, parts) + kPieceCost + kPartCost * (parts > 1);
    }
    // About when all SMs have ended; see prefill_time in pod/schedule/choose.py. By a warp.
    DEV int time(int i, int length) const {
        const ints bin = t.bins + i * kBins;
        if (lane() < kBins) bin[lane()] = 0;
        Wide sum = 0;
        int most = 0, most_parts = 1;
        for (int r = lane(); r < runs(); r += 32) {
            const int blocks = blocks_of(t.key[r]), parts = parts_of(blocks, length), mine = cost(blocks, parts);
            sum += Wide(mine) * int(t.run_tiles[r]) * passes() * parts;
            most = max(most, mine);
            most_parts = max(most_parts, parts);
        }
        sum = warp_sum(sum);
        most = warp_max(most) + 1;
        most_parts = warp_max(most_parts);
        __syncwarp();
        for (int r = lane(); r < runs(); r += 32) {
            const int blocks = blocks_of(t.key[r]), parts = parts_of(blocks, length);
            atomicAdd(bin + cost(blocks, parts) * kBins / most, int(t.run_tiles[r]) * passes() * parts);
        }
        __syncwarp();
        Wide crowded = 0;
        if (lane() < kBins) {
            int at_least = 0;
            for (int b = lane(); b < kBins; b++) at_least += bin[b];
            const int length = min((2 * lane() + 1) * most / (2 * kBins), most - 1);
            crowded = Wide(length) * ceil_div(at_least, l.sms);
        }
        const Wide end = max((sum + l.sms - 1) / l.sms, warp_max(crowded)) + kMergeCost * merge_steps(most_parts);
        return int(min(end, Wide(1) << 30));
    }
    DEV Wide decode_tiles() const { return Wide(int(t.tiles[n])) * l.num_kv_heads; }
    // Returns the length of parts: the longest that ends before `beside`, or the one that ends first.
    DEV int choose_length(const Blocks& w) {
        for (int i = warp(); i < kLengths; i += warps()) {
            const int mine = length(i, w), end = time(i, mine);
            if (lane() == 0) {
                t.lengths[i] = mine;
                t.times[i] = end;
            }
        }
        const Wide beside = decode_tiles() * l.tile_ticks * kBeside / 10 >> kFraction;
        __syncthreads();
        int best = 0;
        for (int i = 1; i < kLengths; i++)
            if (better(i, best, beside)) best = i;
        return t.lengths[best];
    }
    DEV bool better(int i, int best, Wide beside) const {
        const int time = t.times[i], best_time = t.times[best];
        const bool longer = int(t.lengths[i]) > int(t.lengths[best]), soon = time < beside;
        if (soon != (best_time < beside)) return soon;
        return soon || time == best_time ? longer : time < best_time;
    }

    // ------------------------------------------------------------ prefill: records
    struct Sums {  // of runs: pieces, partial results and tiles in parts, for each pass
        int pieces = 0, kept = 0, split = 0;
        DEV void add(int tiles, int parts) {
            pieces += tiles * parts;
            kept += parts > 1 ? tiles * parts : 0;
            split += parts > 1 ? tiles : 0;
        }
        DEV void sum_up() {
            pieces = warp_sum(pieces);
            kept = warp_sum(kept);
            split = warp_sum(split);
        }
    };
    // What is drawn before a run: of other sequences, or of all where heads come together; of the same, where they come
    // in sections, earlier runs and all.
    struct Before {
        Sums others, earlier, own;
        int alike = 0, sooner = 0;  // tiles of other runs of the sequence with as many blocks, and of earlier ones
    };
    DEV Before before(unsigned long long key, int run, bool sections) const {
        Before b;
        for (int r = lane(); r < runs(); r += 32) {
            const unsigned long long other = t.key[r];
            const int tiles = t.run_tiles[r], parts = t.run_parts[r];
            if (sections && other >> 18 == key >> 18) {
                b.own.add(tiles, parts);
                if (other < key) b.earlier.add(tiles, parts);
            } else if (other < key) b.others.add(tiles, parts);
            if (kWindow && other == key) {
                b.alike += r == run ? 0 : tiles;
                b.sooner += r < run ? tiles : 0;
            }
        }
        if constexpr (kWindow) {
            b.alike = warp_sum(b.alike);
            b.sooner = warp_sum(b.sooner);
        }
        b.others.sum_up();
        b.earlier.sum_up();
        b.own.sum_up();
        return b;
    }
    DEV void write_run(int run) const {
        const unsigned long long key = t.key[run];
        const int seq = run_seq(run), blocks = blocks_of(key), tiles = t.run_tiles[run], parts = t.run_parts[run];
        const int per_head = passes() / l.num_kv_heads, heads = together(seq);
        const Before b = before(key, run, heads < l.num_kv_heads);
        const Run mine = kWindow ? run_between(seq, run - int(t.first_run[seq])) : Run{};
        const int first = kWindow ? mine.first : first_tile(seq, blocks), begin = mine.begin;
        for (int i = lane(); i < passes() * tiles * parts; i += 32) {
            const int part = i % parts, tile = i / parts % tiles, pass = i / parts / tiles, kv_head = pass / per_head;
            const int section = kv_head / heads * heads, in_section = min(heads, l.num_kv_heads - section) * per_head;
            const int nth = (pass - section * per_head) * (tiles + b.alike) + b.sooner + tile;
            const auto place = [&](int others, int own, int earlier, int each) {
                return others * passes() + own * section * per_head + earlier * in_section + nth * each;
            };
            const int at = place(b.others.pieces, b.own.pieces, b.earlier.pieces, parts) + part;
            const int slot = place(b.others.kept, b.own.kept, b.earlier.kept, parts > 1 ? parts : 0);
            const int group = place(b.others.split, b.own.split, b.earlier.split, parts > 1);
            const int token = (first + tile) * l.pack_tokens, tokens = min(l.pack_tokens, int(t.q_len[seq]) - token);
            const int head = kv_head * l.group + pass % per_head * l.pack_heads;
            if (at >= l.prefill_works) continue;
            write(records, at, int(t.token[seq]) + token, tokens, head, seq, pos(seq) + token, t.kv_len[seq],
                  begin + blocks * part / parts, begin + blocks * (part + 1) / parts, part, parts, slot,
                  group * l.prefill_counters);
        }
    }
    template <typename... Fields> static DEV void write(gptr<int> to, int at, Fields... fields) {
        const uint32_t x[12] = {uint32_t(int(fields))...};
        const auto quads = ptr_cast<uint4>(to + size_t(at) * 12);
        for (int i = 0; i < 3; i++) quads[i] = make_uint4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
    DEV void prefill(int cta, int ctas) {
        Blocks work = {0, 1};
        if (runs() > 0) {
            list_runs();
            work = prefill_work();
            const int length = choose_length(work);
            for (int r = threadIdx.x; r < runs(); r += blockDim.x)
                t.run_parts[r] = parts_of(blocks_of(t.key[r]), length);
            __syncthreads();
            for (int r = cta * warps() + warp(); r < runs(); r += ctas * warps()) write_run(r);
        }
        if (cta) return;
        int pieces = 0;
        for (int r = lane(); r < runs(); r += 32) pieces += int(t.run_tiles[r]) * int(t.run_parts[r]);
        pieces = min(warp_sum(pieces) * passes(), l.prefill_works);
        for (int i = threadIdx.x; i < l.sms; i += blockDim.x)
            write(records, pieces + i, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        const Wide blocks = 10 * work.total << kFraction, tiles = decode_tiles() * l.tile_ticks * l.sms;
        if (threadIdx.x == 0) (records - kYields)[0] = 0 < work.total && blocks < tiles;
    }

    // ------------------------------------------------------------ decode: equal ranges
    DEV int units_each() const { return l.num_kv_heads / l.alike; }  // of a sequence
    DEV int units() const { return int(t.few[n]) * units_each(); }
    DEV int tiles_of(int seq) const { return int(t.tiles[seq + 1]) - int(t.tiles[seq]); }
    // A line of all units, on which beginning one counts as well: where a sequence begins.
    DEV int padded(int seq) const { return units_each() * (int(t.tiles[seq]) + l.pad * int(t.few[seq])); }

    struct Cut {
        int where, unit;  // on the line of all tiles; the last unit that has some of them
        int left;         // of that unit, behind the cut
    };
    DEV Cut cut_at(int at) const {
        int seq = 0, high = n - 1;  // the first that ends there or behind
        while (seq < high) {
            const int middle = (seq + high) / 2;
            if (padded(middle + 1) < at) seq = middle + 1;
            else high = middle;
        }
        const int tiles = tiles_of(seq), nth = (at - padded(seq) - 1) / (tiles + l.pad);
        const int left = min(max(padded(seq) + (nth + 1) * (tiles + l.pad) - at, 0), tiles);
        const int unit = int(t.few[seq]) * units_each() + nth;
        const int where = int(t.tiles[seq]) * units_each() + (nth + 1) * tiles - left;
        return {where, left == tiles ? unit - 1 : unit, left % tiles};
    }
    // A thread a cut. Returns how many there are: ranges of nothing go.
    DEV int cut_up() {
        if (int(t.few[n]) == 0) return 0;
        const int total = int(t.tiles[n]) * units_each(), ranges = max(1, min(l.sms / l.alike, total / l.least));
        const int k = threadIdx.x;
        Cut cut;
        if (k < ranges) {
            cut = cut_at(int(Wide(k + 1) * padded(n) / ranges));
            t.tried[k] = cut.where;
        }
        __syncthreads();
        if (k < ranges) t.kept[k] = cut.where > (k ? int(t.tried[k - 1]) : 0);
        __syncthreads();
        sums_before({t.kept}, ranges, t.sums);
        const int mine = k < ranges ? int(t.kept[k]) : 0, cuts = t.kept[ranges];
        const bool stays = k < ranges && int(t.kept[k + 1]) > mine;
        if (stays) {
            t.cut[mine] = cut.where;
            t.cut_unit[mine] = cut.left ? cut.unit : -1;
            t.ended[mine] = cut.left ? cut.unit : cut.unit + 1;
            t.inner[mine] = cut.left > 0;
        }
        __syncthreads();
        if (stays) t.fresh[mine] = cut.left > 0 && (mine == 0 || int(t.cut_unit[mine - 1]) != cut.unit);
        __syncthreads();
        sums_before({t.inner, t.fresh}, cuts, t.sums);
        return cuts;
    }
    // Segments, of the line between two borders of units or ranges, before a range.
    DEV int segments_before(int range) const { return range ? int(t.ended[range - 1]) + int(t.inner[range]) : 0; }
    DEV int piece(int range, int nth) const {
        const int first = segments_before(range);
        return l.alike * first + nth * (segments_before(range + 1) - first);
    }
    // The segments of a unit, for one of the KV heads that are cut alike.
    DEV void write_unit(int unit, int nth, int cuts) const {
        const int seq = count_less<true>(t.few, n, unit / units_each()) - 1, tiles = tiles_of(seq);
        const int begin = int(t.tiles[seq]) * units_each() + unit % units_each() * tiles, end = begin + tiles;
        const int range = count_less<true>(t.cut, cuts, begin), parts = count_less<false>(t.cut, cuts, end) - range + 1;
        const int kv_head = unit % units_each() * l.alike + nth, row = int(t.token[seq]) * l.num_kv_heads + kv_head;
        const int slot = (int(t.inner[range]) + int(t.fresh[range])) * l.alike + nth * parts;
        const int group = (int(t.fresh[range]) * l.alike + nth) * l.decode_counters;
        const int first = unit + int(t.inner[range]);  // segment
        const int origin = begin - unseen(pos(seq)) / kDecodeKeys;
        for (int i = 0; i < parts; i++) {
            const int from = i ? int(t.cut[range + i - 1]) : begin, to = i + 1 < parts ? int(t.cut[range + i]) : end;
            const int at = piece(range + i, nth) + first + i - segments_before(range + i);
            if (at >= l.decode_works) continue;
            write(decode_records, at, row * l.group, t.q_len[seq], kv_head, seq, 0, t.kv_len[seq], from - origin,
                  to - origin, i, parts, slot, group);
        }
    }
    DEV void decode(int cta, int ctas) {
        const int cuts = cut_up(), last = cuts ? l.alike * segments_before(cuts) : 0;
        const int me = cta * blockDim.x + threadIdx.x, all = ctas * blockDim.x;
        for (int i = me; i < units() * l.alike; i += all) write_unit(i / l.alike, i % l.alike, cuts);
        for (int i = me; i <= 2 * l.sms; i += all)
            pieces[i] = i < cuts * l.alike ? piece(i / l.alike, i % l.alike) : last;
    }
};

template <bool kWindow> __global__ void __launch_bounds__(kMostThreads)
make_plan(gptr<const int> q_lens, gptr<const int> kv_lens, gptr<int> lists, int sequences, Limits limits) {
    const gptr<int> records = lists + kYields, decode_records = records + 12 * (limits.prefill_works + limits.sms);
    Planner<kWindow> planner = {limits, sequences, records, decode_records, decode_records + 12 * limits.decode_works,
                       Tables(limits)};
    planner.read(q_lens, kv_lens);
    const int half = gridDim.x / 2, cta = blockIdx.x;
    if (cta < half) planner.prefill(cta, half);
    else planner.decode(cta - half, gridDim.x - half);
}

}  // namespace

void launch_hopper_plan(const PlanArgs& a, Stream stream) {
    const Limits& l = a.limits;
    const size_t ints = kYields + 12 * size_t(l.prefill_works + l.sms + l.decode_works) + 2 * l.sms + 1;
    const auto q_lens = device_ptr(a.q_lens, a.sequences, "q_lens");
    const auto kv_lens = device_ptr(a.kv_lens, a.sequences, "kv_lens");
    const auto lists = device_ptr(a.lists, ints, "lists");
    const auto make = [&](auto windowed) {
        launch<make_plan<decltype(windowed)::value>>(stream, dim3(l.ctas), dim3(l.threads), table_bytes(l), q_lens,
                                                     kv_lens, lists, a.sequences, l);
    };
    l.window ? make(std::true_type()) : make(std::false_type());
}
