// torch.ops.pod.*: the kernels of sm80, sm90 and lean as torch operators; kernels see no torch header. Checks live in
// Python (pod/attention.py); this file turns tensors into the launch record and puts launches on streams.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include "include/hybrid.h"
#include "include/operators.h"

namespace {

using at::Tensor;
using Launch = void(const HybridArgs&, Stream);

// The order of METHODS in pod/schedule/decide.py. A family of one kernel has one launch, whatever it is called.
enum class Method : int { serial, streams, cta, warp, pod };

size_t reach(const Tensor& x) {  // elements from the first to the last
    size_t last = 0;
    for (int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
    return last + 1;
}

// The kernels of sm80 keep these strides in 32 bits, and multiply them by as much: a register is dear. kv_page stays in
// 64.
void check_32_bits(const Inputs& a) {
    const auto check = [](const char* name, int64_t stride, int64_t times) {
        TORCH_CHECK(stride <= INT_MAX / times, name, ": a stride of ", stride, " elements does not fit 32 bits");
    };
    check("q", a.q_token, 16);
    check("q", a.q_head, std::max(a.num_q_heads, 16));
    check("k_cache", a.kv_token, 16);
    check("k_cache", a.kv_head, a.num_kv_heads);
}

HybridArgs arguments(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& table,
                     const Tensor& lists, const Tensor& counters, const Tensor& partials, at::IntArrayRef header,
                     double scale, double softcap, const std::optional<Tensor>& sinks) {
    HybridArgs a = {inputs(q, k, v, table), read<Header>(header)};
    a.q_size = reach(q);
    a.kv_size = reach(k);
    a.table_size = table ? reach(*table) : 0;
    a.page_shift = table ? __builtin_ctz(a.page_tokens) : 31;
    a.half = q.scalar_type() == at::kHalf;
    constexpr double kLog2E = 1.4426950408889634;
    a.scale_log2 = (softcap ? softcap : scale) * kLog2E;
    a.cap_log2 = softcap ? 2 * kLog2E * scale / softcap : 0;
    a.sinks = sinks ? sinks->const_data_ptr<float>() : nullptr;
    a.lists = lists.const_data_ptr<int>();
    a.counters = counters.mutable_data_ptr<int>();
    a.partials = partials.mutable_data_ptr<float>();
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

void run_method(Launch* launch, const HybridArgs& a, at::Device device) {
    const Stream stream = current_stream();
    switch (Method(a.method)) {
        case Method::serial: return run_both(launch, a, stream, stream);
        case Method::streams:
            return on_two_streams(device, [&](Stream main, Stream side) { run_both(launch, a, main, side); });
        case Method::cta: return run(launch, a, Binding::cta, stream);
        case Method::warp: return run(launch, a, Binding::warp, stream);
        case Method::pod: return run(launch, a, Binding::pod, stream);
    }
}

template <Launch* kLaunch, int kTraceFields, int kStrideBits>
std::tuple<Tensor, Tensor, Tensor> attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const std::optional<Tensor>& table, const Tensor& lists,
                                          const Tensor& counters, const Tensor& partials, at::IntArrayRef header,
                                          double scale, double softcap, const std::optional<Tensor>& sinks, bool lse,
                                          bool trace, const std::optional<Tensor>& into,
                                          const std::optional<Tensor>& k_scale, const std::optional<Tensor>& v_scale) {
    const Guard guard(q.device());
    HybridArgs a = arguments(q, k, v, table, lists, counters, partials, header, scale, softcap, sinks);
    if (kStrideBits == 32) check_32_bits(a);
    a.trace_rows = trace ? a.trace_rows : 0;
    Tensor out = into ? at::empty({0}, q.options()) : at::empty(q.sizes(), q.options());
    const Tensor& written = into ? *into : out;
    Tensor sums = at::empty({lse ? q.size(0) : 0, q.size(1)}, q.options().dtype(at::kFloat));
    Tensor rows = at::zeros({a.trace_rows, kTraceFields}, q.options().dtype(at::kLong));
    a.out = written.mutable_data_ptr();
    a.out_size = written.numel();
    a.lse = lse ? sums.mutable_data_ptr<float>() : nullptr;
    a.trace = trace ? rows.mutable_data_ptr<int64_t>() : nullptr;
    a.k_scale = k_scale ? k_scale->const_data_ptr<float>() : nullptr;
    a.v_scale = v_scale ? v_scale->const_data_ptr<float>() : nullptr;
    on_sms(a.sms, [&] { run_method(kLaunch, a, q.device()); });
    return {out, sums, rows};
}

}  // namespace

// The build adds one line for each operator it wants, with how many numbers a row of its trace has, and how many bits
// the kernel keeps of a stride: POD_OPERATOR(hybrid_bfloat16_128, 8, 32)
#define POD_OPERATOR(NAME, TRACE_FIELDS, STRIDE_BITS)                                                                  \
    void launch_##NAME(const HybridArgs&, Stream);                                                                     \
    TORCH_LIBRARY_FRAGMENT(pod, m) {                                                                                   \
        define(m, #NAME "(Tensor q, Tensor k, Tensor v, Tensor? table, Tensor lists, Tensor(a!) counters, "            \
                  "Tensor(b!) partials, int[] header, float scale, float softcap, Tensor? sinks, bool lse, "           \
                  "bool trace, Tensor(c!)? into=None, Tensor? k_scale=None, Tensor? v_scale=None) -> "                 \
                  "(Tensor, Tensor, Tensor)");                                                                         \
    }                                                                                                                  \
    TORCH_LIBRARY_IMPL(pod, POD_DEVICE, m) { m.impl(#NAME, &attend<launch_##NAME, TRACE_FIELDS, STRIDE_BITS>); }
