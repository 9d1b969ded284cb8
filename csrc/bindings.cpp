// torch.ops.pod.hybrid_*: the kernels of hybrid.cu as torch operators, the only file here that sees a torch header. Checks
// live in Python (pod/ampere.py); this file turns tensors into the launch record and puts launches on streams.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>
#include "include/hybrid.h"

#ifdef POD_EMULATE
#include "include/launch.cuh"
#else
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
using Stream = cudaStream_t;
#endif

namespace {

using at::Tensor;
using Launch = void(const HybridArgs&, Stream);

enum class Method : int64_t { serial, streams, cta, warp, pod };

// The order of `shape`, see pod/ampere.py.
enum Entry { kMethod, kCtasPerSm, kSms, kCausal, kPrefillWorks, kDecodeWorks, kPieces, kDeals, kPrefillGroups,
             kDecodeGroups, kPrefillSlots, kDecodeSlots, kTraceRows };

HybridArgs arguments(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& table, const Tensor& lists,
                     const Tensor& counters, const Tensor& partials, at::IntArrayRef shape, double scale) {
    HybridArgs a = {};
    a.q = q.const_data_ptr(), a.k = k.const_data_ptr(), a.v = v.const_data_ptr();
    a.q_token = q.stride(0), a.q_head = q.stride(1);
    a.kv_page = k.stride(0), a.kv_token = k.stride(1), a.kv_head = k.stride(2);
    const auto reach = [](const Tensor& x) {  // elements from the first to the last
        size_t last = 0;
        for (int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
        return last + 1;
    };
    a.q_size = reach(q), a.kv_size = reach(k);
    a.num_q_heads = q.size(1), a.num_kv_heads = k.size(2);
    a.page_shift = 31;
    if (table) {
        a.table = table->const_data_ptr<int>(), a.table_stride = table->stride(0), a.table_size = reach(*table);
        a.page_shift = __builtin_ctzll(k.size(1));
    }
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

#ifdef POD_EMULATE
void run_method(Launch* launch, const HybridArgs& a, Method method, const Tensor&) {
    emulate::machine().sms = a.sms;
    emulate::Concurrent scope;  // one run of the machine, so that both launches share its clock
    if (method == Method::serial) run_both(launch, a, 1, 1);
    else if (method == Method::streams) run_both(launch, a, 1, 2);
    else run(launch, a, method == Method::cta ? Binding::cta : method == Method::warp ? Binding::warp : Binding::pod, 1);
    scope.run();
}
#else
// What `later` does from now on waits for what `earlier` was given up to now.
void follow(Stream earlier, Stream later) {
    cudaEvent_t event;
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    C10_CUDA_CHECK(cudaEventRecord(event, earlier));
    C10_CUDA_CHECK(cudaStreamWaitEvent(later, event, 0));
    C10_CUDA_CHECK(cudaEventDestroy(event));
}
void run_method(Launch* launch, const HybridArgs& a, Method method, const Tensor& q) {
    const Stream stream = c10::cuda::getCurrentCUDAStream();
    if (method == Method::streams) {
        const Stream side = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, q.device().index());
        follow(stream, side);
        run_both(launch, a, stream, side);
        return follow(side, stream);
    }
    if (method == Method::serial) return run_both(launch, a, stream, stream);
    run(launch, a, method == Method::cta ? Binding::cta : method == Method::warp ? Binding::warp : Binding::pod, stream);
}
#endif

template <Launch* kLaunch, bool kTrace>
std::tuple<Tensor, Tensor, Tensor> hybrid(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& table,
                                          const Tensor& lists, const Tensor& counters, const Tensor& partials, at::IntArrayRef shape,
                                          double scale, bool lse) {
#ifndef POD_EMULATE
    const c10::cuda::CUDAGuard guard(q.device());
#endif
    Tensor out = at::empty(q.sizes(), q.options());
    Tensor sums = at::empty({lse ? q.size(0) : 0, q.size(1)}, q.options().dtype(at::kFloat));
    Tensor trace = at::zeros({kTrace ? shape[kTraceRows] : 0, 8}, q.options().dtype(at::kLong));
    HybridArgs a = arguments(q, k, v, table, lists, counters, partials, shape, scale);
    a.out = out.mutable_data_ptr(), a.out_size = out.numel();
    a.lse = lse ? sums.mutable_data_ptr<float>() : nullptr;
    a.trace = kTrace ? trace.mutable_data_ptr<int64_t>() : nullptr, a.trace_rows = trace.size(0);
    run_method(kLaunch, a, Method(shape[kMethod]), q);
    return {out, sums, trace};
}

}  // namespace

#ifdef POD_EMULATE
#define POD_DEVICE CPU
#else
#define POD_DEVICE CUDA
#endif
// The build adds one line for each kind of tensor it wants: POD_OPERATOR(bfloat16_128, false). A process may load a library
// for the emulator and one for the GPU; the first to come defines the operator, both implement it.
#define POD_OPERATOR(NAME, TRACE)                                                                                              \
    void launch_##NAME(const HybridArgs&, Stream);                                                                             \
    TORCH_LIBRARY_FRAGMENT(pod, m) {                                                                                           \
        if (c10::Dispatcher::singleton().findSchema({"pod::hybrid_" #NAME, ""})) return;                                        \
        m.def("hybrid_" #NAME "(Tensor q, Tensor k, Tensor v, Tensor? table, Tensor lists, Tensor(a!) counters, "              \
              "Tensor(b!) partials, int[] shape, float scale, bool lse) -> (Tensor, Tensor, Tensor)");                         \
    }                                                                                                                          \
    TORCH_LIBRARY_IMPL(pod, POD_DEVICE, m) { m.impl("hybrid_" #NAME, &hybrid<launch_##NAME, TRACE>); }
