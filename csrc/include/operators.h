// What every file of torch operators needs: the device that it is built for, its streams, and how operators are defined.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <climits>
#include <string>
#include "inputs.h"

#ifdef POD_EMULATE
#include "launch.cuh"
#define POD_DEVICE CPU

struct Guard {
    explicit Guard(at::Device) {}
};
inline Stream current_stream() { return 1; }
template <class Work> void on_two_streams(at::Device, Work&& work) { work(1, 2); }
// What `work` launches runs at its end, in one run of a machine of so many SMs: all launches share its clock.
template <class Work> void on_sms(int sms, Work&& work) {
    emulate::Concurrent scope;
    emulate::machine().sms = sms;
    work();
    scope.run();
}

#else
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#define POD_DEVICE CUDA

using Stream = cudaStream_t;
using Guard = c10::cuda::CUDAGuard;
inline Stream current_stream() { return c10::cuda::getCurrentCUDAStream(); }
// What `later` does from now on waits for what `earlier` was given up to now.
inline void follow(Stream earlier, Stream later) {
    cudaEvent_t event;
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    C10_CUDA_CHECK(cudaEventRecord(event, earlier));
    C10_CUDA_CHECK(cudaStreamWaitEvent(later, event, 0));
    C10_CUDA_CHECK(cudaEventDestroy(event));
}
// work(the current stream, one beside it); what comes later on the current stream waits for both.
template <class Work> void on_two_streams(at::Device device, Work&& work) {
    const Stream stream = current_stream(), side = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
    follow(stream, side);
    work(stream, side);
    follow(side, stream);
}
template <class Work> void on_sms(int, Work&& work) { work(); }
#endif

// A dimension of one entry may have any stride; such an entry is never stepped over.
inline int64_t step(const at::Tensor& x, int64_t dim) { return x.size(dim) == 1 ? x.size(-1) : x.stride(dim); }
inline Inputs inputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& table) {
    Inputs at = {q.const_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), table ? table->const_data_ptr<int>() : nullptr};
    at.q_token = step(q, 0), at.q_head = step(q, 1);
    at.kv_page = step(k, 0), at.kv_token = step(k, 1), at.kv_head = step(k, 2);
    at.table_stride = table ? step(*table, 0) : 0;
    at.tokens = q.size(0), at.num_q_heads = q.size(1), at.head_dim = q.size(2);
    at.pages = k.size(0), at.page_tokens = k.size(1), at.num_kv_heads = k.size(2);
    return at;
}

// A process may load a library for the emulator and one for the GPU: the first to come defines the operator, both implement it.
inline void define(torch::Library& m, const std::string& schema) {
    if (!c10::Dispatcher::singleton().findSchema({"pod::" + schema.substr(0, schema.find('(')), ""})) m.def(schema.c_str());
}
