// torch.ops.pod.fusion: the kernels of fusion.cu as a torch operator. Checks live in Python (pod/micro.py).
#include <ATen/ops/zeros.h>
#include "include/operators.h"
#include "micro/fusion.h"

void launch_fusion(const FusionArgs&, Stream);

namespace {

using at::Tensor;

// The order of METHODS in pod/micro.py. Serial and streams are two launches, the others are one.
enum Method : int64_t { kComputeAlone, kMemoryAlone, kSerial, kStreams, kOneLaunch };
// The order of `shape`, likewise.
enum Entry { kMethod, kMultiplications, kComputeTiles, kMemoryTiles, kSms, kSmemBytes, kTraceRows };

void run(FusionArgs a, Fusion how, Stream stream, int first_trace_row = 0) {
    a.how = how;
    if (a.trace) a.trace += first_trace_row * 8;
    launch_fusion(a, stream);
}
void run_both(const FusionArgs& a, Stream memory, Stream compute) {
    run(a, Fusion::memory, memory);
    run(a, Fusion::compute, compute, a.memory_tiles);
}
Fusion fusion_of(int64_t method) {
    if (method <= kMemoryAlone) return Fusion(method);
    return Fusion(method - kOneLaunch + int(Fusion::cta));
}

void run_method(const FusionArgs& a, int64_t method, at::Device device) {
    const Stream stream = current_stream();
    if (method == kSerial) return run_both(a, stream, stream);
    if (method == kStreams) return on_two_streams(device, [&](Stream main, Stream side) { run_both(a, main, side); });
    run(a, fusion_of(method), stream);
}

Tensor fusion(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d, const Tensor& deal, const Tensor& counters,
              at::IntArrayRef shape, double factor) {
    const Guard guard(d.device());
    Tensor trace = at::zeros({shape[kTraceRows], 8}, d.options().dtype(at::kLong));
    FusionArgs args = {};
    args.a = a.const_data_ptr<float>(), args.b = b.const_data_ptr<float>();
    args.c = c.mutable_data_ptr<float>(), args.d = d.mutable_data_ptr<float>();
    args.compute_elements = d.numel(), args.memory_elements = c.numel() / 4;
    args.multiplications = shape[kMultiplications], args.factor = factor;
    args.compute_tiles = shape[kComputeTiles], args.memory_tiles = shape[kMemoryTiles];
    args.deal = deal.const_data_ptr<int>(), args.deals = deal.numel();
    args.counters = counters.mutable_data_ptr<int>(), args.sms = shape[kSms], args.smem_bytes = shape[kSmemBytes];
    args.trace = trace.numel() ? trace.mutable_data_ptr<int64_t>() : nullptr, args.trace_rows = trace.size(0);
    on_sms(args.sms, [&] { run_method(args, shape[kMethod], d.device()); });
    return trace;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pod, m) {
    define(m, "fusion(Tensor a, Tensor b, Tensor(a!) c, Tensor(b!) d, Tensor deal, Tensor(c!) counters, int[] shape, float factor) "
              "-> Tensor");
}
TORCH_LIBRARY_IMPL(pod, POD_DEVICE, m) { m.impl("fusion", &fusion); }
