// torch.ops.pod.hopper: the Hopper kernel as a torch operator. Checks live in Python (pod/hopper.py); this file only
// turns tensors into the launch record.
#include <ATen/ATen.h>
#include "include/operators.h"
#include "sm90/launch.h"

namespace {

using at::Tensor;

// `lists` holds the prefill work, the decode work and the decode chunks, one after the other (int32). `state` holds the
// queue and arrival counters, zero before and after; `scratch` the partial results. `shape`: prefill units, decode works,
// decode chunks, split prefill tiles, floats of the prefill partials, CTAs (one an SM), log2 of the query heads that share a
// prefill tile, rows of a prefill tile (the last two only where there is prefill).
std::tuple<Tensor, Tensor, Tensor> hopper(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& table,
                                          const Tensor& lists, const Tensor& state, const Tensor& scratch, at::IntArrayRef shape,
                                          double scale, bool causal, bool yields, bool lse, bool trace) {
    const Guard guard(q.device());
    constexpr int kWork = 12;
    const int units = shape[0], works = shape[1], chunks = shape[2], ctas = shape[5], rows = units ? shape[7] : 128;
    Tensor out = at::empty(q.sizes(), q.options());
    Tensor sums = at::empty({lse ? q.size(0) : 0, q.size(1)}, q.options().dtype(at::kFloat));
    Tensor stamps = trace ? at::zeros({ctas, 5, 2}, q.options().dtype(at::kLong)) : at::empty({0, 5, 2}, q.options().dtype(at::kLong));
    Pod90Launch a = {inputs(q, k, v, table)};
    TORCH_CHECK(a.table_stride <= INT_MAX, "block_table: a stride of ", a.table_stride, " elements does not fit 32 bits");
    a.out = out.data_ptr(), a.lse = lse ? sums.data_ptr() : nullptr;
    const int* list = lists.const_data_ptr<int>();
    a.prefill_work = list, a.decode_work = list + units * kWork, a.decode_chunks = list + (units + works) * kWork;
    a.counters = state.mutable_data_ptr<int>(), a.prefill_arrived = a.counters + 4, a.decode_arrived = a.prefill_arrived + rows / 16 * shape[3];
    a.prefill_part = scratch.mutable_data_ptr<float>(), a.decode_part = a.prefill_part + shape[4];
    a.trace = trace ? stamps.data_ptr() : nullptr;
    a.stream = current_stream();
    a.half = q.scalar_type() == at::kHalf, a.causal = causal;
    a.prefill_units = units, a.n_decode_chunks = chunks, a.prefill_yields = yields, a.pack_shift = shape[6];
    a.prefill_rows = rows, a.ctas = ctas, a.scale = scale;
    a.sequences = table ? table->size(0) : 0, a.decode_works = works, a.prefill_groups = shape[3];
    a.decode_groups = state.numel() - 4 - rows / 16 * shape[3];
    a.prefill_floats = shape[4], a.decode_floats = scratch.numel() - shape[4];
    const int error = pod90_launch(&a);
    TORCH_CHECK(error == 0, "the Hopper kernel could not be launched: ",
                error > 0 ? cudaGetErrorString(cudaError_t(error)) : error == -1 ? "no tensor map could be made" : "no such configuration");
    return {out, sums, stamps};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pod, m) {
    m.def("hopper(Tensor q, Tensor k, Tensor v, Tensor? table, Tensor lists, Tensor(a!) state, Tensor(b!) scratch, int[] shape, "
          "float scale, bool causal, bool yields, bool lse, bool trace) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(pod, CUDA, m) { m.impl("hopper", &hopper); }
