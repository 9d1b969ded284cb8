// Stream-K decode of one request with a machine of one SM, which gives up on whoever waits for longer than two milliseconds.
#include "lean/lean.cu"
#include "host.h"

using T = __nv_bfloat16;

// q, out [heads, 64]; k, v [keys, heads, 64]; lists: work records (12 ints each), then the first record of each piece.
EXPORT const char* run(const T* q, const T* k, const T* v, T* out, int keys, int heads, const int* lists, int works, int* counters,
                       int groups, float* partials, int slots, int hosts) {
    return outcome([=] {
        HybridArgs a = {};
        a.q = q, a.k = k, a.v = v, a.out = out, a.page_shift = 31, a.pages = 1, a.num_q_heads = a.num_kv_heads = heads;
        a.q_token = a.kv_token = heads * 64, a.q_head = a.kv_head = 64, a.kv_page = int64_t(keys) * heads * 64;
        a.q_size = a.out_size = size_t(heads) * 64, a.kv_size = a.kv_page, a.scale_log2 = 0.125f * 1.44269504f;
        a.lists = lists, a.decode_works = a.pieces = works, a.counters = counters, a.decode_groups = groups;
        a.partials = partials, a.decode_slots = slots, a.binding = Binding::decode;
        use_machine(1, 2);
        emulate::machine().time_limit = 2e6;
        if (hosts) launch_lean<CtaWorker<T, 64, 64>, HostMerges, false, T>(a, 0);
        else launch_lean<CtaWorker<T, 64, 64>, LastMerges, false, T>(a, 0);
    });
}
