// What every file of torch operators needs: the device that it is built for, its streams, and how operators are
// defined.
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
    const Stream stream = current_stream();
    const Stream side = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
    follow(stream, side);
    work(stream, side);
    follow(side, stream);
}
template <class Work> void on_sms(int, Work&& work) { work(); }
#endif

// A dimension of one entry may have any stride; such an entry is never stepped over.
inline int64_t step(const at::Tensor& x, int64_t dim) { return x.size(dim) == 1 ? x.size(-1) : x.stride(dim); }
inline Inputs inputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& table) {
    const int64_t table_stride = table ? step(*table, 0) : 0;
    TORCH_CHECK(table_stride <= INT_MAX, "block_table: a stride of ", table_stride, " elements does not fit 32 bits");
    return {
        .q = q.const_data_ptr(),
        .k = k.const_data_ptr(),
        .v = v.const_data_ptr(),
        .table = table ? table->const_data_ptr<int>() : nullptr,
        .q_token = step(q, 0),
        .q_head = step(q, 1),
        .kv_page = step(k, 0),
        .kv_token = step(k, 1),
        .kv_head = step(k, 2),
        .table_stride = table_stride,
        .tokens = int(q.size(0)),
        .num_q_heads = int(q.size(1)),
        .num_kv_heads = int(k.size(2)),
        .head_dim = int(q.size(2)),
        .pages = int(k.size(0)),
        .page_tokens = int(k.size(1)),
    };
}

// A record of ints, as Python writes it: a NamedTuple with the same names in the same order.
template <class Record> Record read(at::IntArrayRef numbers) {
    Record record;
    constexpr size_t kNumbers = sizeof(Record) / sizeof(int);
    TORCH_CHECK(numbers.size() == kNumbers, "header: got ", numbers.size(), " numbers, the kernels know ", kNumbers);
    for (size_t i = 0; i < kNumbers; ++i) reinterpret_cast<int*>(&record)[i] = numbers[i];
    return record;
}

// A process may load a library for the emulator and one for the GPU: the first to come defines the operator, both
// implement it.
inline void define(torch::Library& m, const std::string& schema) {
    const std::string name = "pod::" + schema.substr(0, schema.find('('));
    if (!c10::Dispatcher::singleton().findSchema({name, ""})) m.def(schema.c_str());
}
