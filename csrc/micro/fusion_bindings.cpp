// torch.ops.pod.fusion: the kernels of fusion.cu as a torch operator. Checks live in Python (pod/kernels/fusion.py).
#include <ATen/ops/zeros.h>
#include "include/operators.h"
#include "micro/fusion.h"

void launch_fusion(const FusionArgs&, Stream);

namespace {

using at::Tensor;

// The order of METHODS in pod/kernels/fusion.py. Serial and streams are two launches, the others are one.
enum Method : int { kComputeAlone, kMemoryAlone, kSerial, kStreams, kOneLaunch };

void run(FusionArgs a, Fusion how, Stream stream, int first_trace_row = 0) {
    a.how = how;
    if (a.trace) a.trace += first_trace_row * 8;
    launch_fusion(a, stream);
}
void run_both(const FusionArgs& a, Stream memory, Stream compute) {
    run(a, Fusion::memory, memory);
    run(a, Fusion::compute, compute, a.memory_tiles);
}
Fusion fusion_of(int method) {
    if (method <= kMemoryAlone) return Fusion(method);
    return Fusion(method - kOneLaunch + int(Fusion::cta));
}

void run_method(const FusionArgs& a, at::Device device) {
    const Stream stream = current_stream();
    if (a.method == kSerial) return run_both(a, stream, stream);
    if (a.method == kStreams) return on_two_streams(device, [&](Stream main, Stream side) { run_both(a, main, side); });
    run(a, fusion_of(a.method), stream);
}

Tensor fusion(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d, const Tensor& deal,
              const Tensor& counters, at::IntArrayRef header, double factor) {
    const Guard guard(d.device());
    FusionArgs args = {read<FusionHeader>(header)};
    Tensor trace = at::zeros({args.trace_rows, 8}, d.options().dtype(at::kLong));
    args.a = a.const_data_ptr<float>();
    args.b = b.const_data_ptr<float>();
    args.c = c.mutable_data_ptr<float>();
    args.d = d.mutable_data_ptr<float>();
    args.compute_elements = d.numel();
    args.memory_elements = c.numel() / 4;
    args.factor = factor;
    args.deal = deal.const_data_ptr<int>();
    args.deals = deal.numel();
    args.counters = counters.mutable_data_ptr<int>();
    args.trace = trace.numel() ? trace.mutable_data_ptr<int64_t>() : nullptr;
    on_sms(args.sms, [&] { run_method(args, d.device()); });
    return trace;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pod, m) {
    define(m, "fusion(Tensor a, Tensor b, Tensor(a!) c, Tensor(b!) d, Tensor deal, Tensor(c!) counters, "
              "int[] header, float factor) -> Tensor");
}
TORCH_LIBRARY_IMPL(pod, POD_DEVICE, m) { m.impl("fusion", &fusion); }
