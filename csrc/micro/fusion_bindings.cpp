// torch.ops.pod.fusion: the kernels of fusion.cu as a torch operator. Checks live in Python (pod/micro.py).
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>
#include "micro/fusion.h"

#ifdef POD_EMULATE
#include "include/launch.cuh"
#else
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
using Stream = cudaStream_t;
#endif

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

#ifdef POD_EMULATE
void run_method(const FusionArgs& a, int64_t method, const Tensor&) {
    emulate::machine().sms = a.sms;
    emulate::Concurrent scope;  // one run of the machine, so that both launches share its clock
    if (method == kSerial || method == kStreams) run_both(a, 1, method == kSerial ? 1 : 2);
    else run(a, fusion_of(method), 1);
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
void run_method(const FusionArgs& a, int64_t method, const Tensor& d) {
    const Stream stream = c10::cuda::getCurrentCUDAStream();
    if (method == kStreams) {
        const Stream side = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, d.device().index());
        follow(stream, side);
        run_both(a, stream, side);
        return follow(side, stream);
    }
    if (method == kSerial) return run_both(a, stream, stream);
    run(a, fusion_of(method), stream);
}
#endif

Tensor fusion(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d, const Tensor& deal, const Tensor& counters,
              at::IntArrayRef shape, double factor) {
#ifndef POD_EMULATE
    const c10::cuda::CUDAGuard guard(d.device());
#endif
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
    run_method(args, shape[kMethod], d);
    return trace;
}

}  // namespace

#ifdef POD_EMULATE
#define POD_DEVICE CPU
#else
#define POD_DEVICE CUDA
#endif
TORCH_LIBRARY_FRAGMENT(pod, m) {
    if (c10::Dispatcher::singleton().findSchema({"pod::fusion", ""})) return;  // the emulator's library and the GPU's may meet
    m.def("fusion(Tensor a, Tensor b, Tensor(a!) c, Tensor(b!) d, Tensor deal, Tensor(c!) counters, int[] shape, float factor) "
          "-> Tensor");
}
TORCH_LIBRARY_IMPL(pod, POD_DEVICE, m) { m.impl("fusion", &fusion); }
