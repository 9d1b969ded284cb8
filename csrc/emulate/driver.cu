// The POD kernel for one small shape, called with plain arrays: what pod/lab/mutate.py builds from a changed csrc.
int pod_chosen = -1;  // the change that is made, where the source has several to choose from
#include "sm80/hybrid.cu"

#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif
using T = __nv_bfloat16;
using TestShape = Shape<T, HEAD_DIM, 2>;

extern "C" __attribute__((visibility("default"))) void choose(int change) { pod_chosen = change; }

// q, out [tokens, Hq, D]; k, v [pages, 16, Hkv, D]; header and lists as pod/kernels/sm80.py lays them out.
extern "C" __attribute__((visibility("default"))) const char* run(
    const T* q, const T* k, const T* v, T* out, const int* table, int table_stride, int tokens, int pages,
    int sequences, int q_heads, int kv_heads, const Header* header, const int* lists, int* counters, float* partials) {
    static std::string text;
    HybridArgs a{{}, *header};
    a.q = q;
    a.k = k;
    a.v = v;
    a.out = out;
    a.table = table;
    a.table_stride = table_stride;
    a.page_shift = 4;
    a.pages = pages;
    a.q_head = a.kv_head = HEAD_DIM;
    a.q_token = q_heads * HEAD_DIM;
    a.kv_token = kv_heads * HEAD_DIM;
    a.kv_page = 16 * a.kv_token;
    a.q_size = a.out_size = size_t(tokens) * a.q_token;
    a.kv_size = size_t(pages) * a.kv_page;
    a.table_size = size_t(sequences) * table_stride;
    a.num_q_heads = q_heads;
    a.num_kv_heads = kv_heads;
    a.scale_log2 = 1.44269504f / std::sqrt(float(HEAD_DIM));
    a.lists = lists;
    a.counters = counters;
    a.partials = partials;
    a.binding = Binding::pod;
    emulate::machine().sms = a.sms;
    emulate::machine().sm_step = 2;
    try {
        launch_bound<TestShape, ByTicket, false, T>(a, 0);
        return nullptr;
    } catch (const std::exception& e) {
        text = e.what();
        return text.c_str();
    }
}
