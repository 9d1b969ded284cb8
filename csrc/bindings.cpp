// torch.ops.pod.hybrid_*: the kernels of hybrid.cu and lean.cu as torch operators; kernels see no torch header. Checks live
// in Python (pod/ampere.py); this file turns tensors into the launch record and puts launches on streams.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include "include/hybrid.h"
#include "include/operators.h"

namespace {

using at::Tensor;
using Launch = void(const HybridArgs&, Stream);

enum class Method : int64_t { serial, streams, cta, warp, pod };

// The order of `shape`, see pod/ampere.py.
enum Entry { kMethod, kCtasPerSm, kSms, kCausal, kPrefillWorks, kDecodeWorks, kPieces, kDeals, kPrefillGroups,
             kDecodeGroups, kPrefillSlots, kDecodeSlots, kTraceRows };

// The kernels keep these strides in 32 bits, and multiply them by as much: a register is dear. kv_page stays in 64.
void check_32_bits(const Inputs& a) {
    const auto check = [](const char* name, int64_t stride, int64_t times) {
        TORCH_CHECK(stride <= INT_MAX / times, name, ": a stride of ", stride, " elements does not fit 32 bits");
    };
    check("q", a.q_token, 16), check("q", a.q_head, std::max(a.num_q_heads, 16));
    check("k_cache", a.kv_token, 16), check("k_cache", a.kv_head, a.num_kv_heads), check("block_table", a.table_stride, 1);
}

HybridArgs arguments(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& table, const Tensor& lists,
                     const Tensor& counters, const Tensor& partials, at::IntArrayRef shape, double scale) {
    HybridArgs a = {inputs(q, k, v, table)};
    check_32_bits(a);
    const auto reach = [](const Tensor& x) {  // elements from the first to the last
        size_t last = 0;
        for (int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
        return last + 1;
    };
    a.q_size = reach(q), a.kv_size = reach(k);
    a.page_shift = 31;
    if (table) a.table_size = reach(*table), a.page_shift = __builtin_ctz(a.page_tokens);
    a.scale_log2 = scale * 1.4426950408889634;
    a.lists = lists.const_data_ptr<int>();
    a.counters = counters.mutable_data_ptr<int>(), a.partials = partials.mutable_data_ptr<float>();
    a.prefill_works = shape[kPrefillWorks], a.decode_works = shape[kDecodeWorks], a.pieces = shape[kPieces], a.deals = shape[kDeals];
    a.prefill_groups = shape[kPrefillGroups], a.decode_groups = shape[kDecodeGroups];
    a.prefill_slots = shape[kPrefillSlots], a.decode_slots = shape[kDecodeSlots];
    a.sms = shape[kSms], a.ctas_per_sm = shape[kCtasPerSm], a.causal = shape[kCausal];
    return a;
}

void run(Launch* launch, HybridArgs a, Binding binding, Stream stream, int first_trace_row = 0) {
    a.binding = binding;
    if (a.trace) a.trace += first_trace_row * 8;
    launch(a, stream);
}
void run_both(Launch* launch, const HybridArgs& a, Stream prefill, Stream decode) {
    run(launch, a, Binding::prefill, prefill);
    run(launch, a, Binding::decode, decode, a.prefill_works);
}

void run_method(Launch* launch, const HybridArgs& a, Method method, at::Device device) {
    const Stream stream = current_stream();
    switch (method) {
        case Method::serial: return run_both(launch, a, stream, stream);
        case Method::streams:
            return on_two_streams(device, [&](Stream main, Stream side) { run_both(launch, a, main, side); });
        case Method::cta: return run(launch, a, Binding::cta, stream);
        case Method::warp: return run(launch, a, Binding::warp, stream);
        case Method::pod: return run(launch, a, Binding::pod, stream);
    }
}

template <Launch* kLaunch, bool kTrace>
std::tuple<Tensor, Tensor, Tensor> hybrid(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& table,
                                          const Tensor& lists, const Tensor& counters, const Tensor& partials, at::IntArrayRef shape,
                                          double scale, bool lse) {
    const Guard guard(q.device());
    Tensor out = at::empty(q.sizes(), q.options());
    Tensor sums = at::empty({lse ? q.size(0) : 0, q.size(1)}, q.options().dtype(at::kFloat));
    Tensor trace = at::zeros({kTrace ? shape[kTraceRows] : 0, 8}, q.options().dtype(at::kLong));
    HybridArgs a = arguments(q, k, v, table, lists, counters, partials, shape, scale);
    a.out = out.mutable_data_ptr(), a.out_size = out.numel();
    a.lse = lse ? sums.mutable_data_ptr<float>() : nullptr;
    a.trace = kTrace ? trace.mutable_data_ptr<int64_t>() : nullptr, a.trace_rows = trace.size(0);
    on_sms(a.sms, [&] { run_method(kLaunch, a, Method(shape[kMethod]), q.device()); });
    return {out, sums, trace};
}

}  // namespace

// The build adds one line for each kind of tensor it wants: POD_OPERATOR(bfloat16_128, false)
#define POD_OPERATOR(NAME, TRACE)                                                                                              \
    void launch_##NAME(const HybridArgs&, Stream);                                                                             \
    TORCH_LIBRARY_FRAGMENT(pod, m) {                                                                                           \
        define(m, "hybrid_" #NAME "(Tensor q, Tensor k, Tensor v, Tensor? table, Tensor lists, Tensor(a!) counters, "          \
                  "Tensor(b!) partials, int[] shape, float scale, bool lse) -> (Tensor, Tensor, Tensor)");                     \
    }                                                                                                                          \
    TORCH_LIBRARY_IMPL(pod, POD_DEVICE, m) { m.impl("hybrid_" #NAME, &hybrid<launch_##NAME, TRACE>); }
