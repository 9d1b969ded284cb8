// torch.ops.pod.single_query and its neighbours: the kernels of single_query.cu as torch operators. Checks live in
// Python (pod/kernels/single_query.py).
#include <ATen/ops/empty.h>
#include "include/operators.h"
#include "micro/single_query.h"

void launch_single_query(const SingleQueryArgs&, Stream);
void launch_write_cache(const WriteCacheArgs&, Stream);
Resources single_query_resources(bool half, Idea, int max_len);

namespace {

using at::Tensor;

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& table, const Tensor& lens,
              int64_t max_len, double scale, int64_t idea) {
    const Guard guard(q.device());
    Tensor out = at::empty(q.sizes(), q.options());
    SingleQueryArgs a = {};
    a.q = q.const_data_ptr();
    a.k = k.const_data_ptr();
    a.v = v.const_data_ptr();
    a.out = out.mutable_data_ptr();
    a.table = table.const_data_ptr<int>();
    a.lens = lens.const_data_ptr<int>();
    a.sequences = q.size(0);
    a.heads = q.size(1);
    a.pages = k.size(0);
    a.table_stride = table.size(1);
    a.q_stride = q.stride(0);
    a.max_len = max_len;
    a.scale = scale;
    a.half = q.scalar_type() == at::kHalf;
    a.idea = Idea(idea);
    launch_single_query(a, current_stream());
    return out;
}

void write_tokens(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const Tensor& slots) {
    const Guard guard(k.device());
    WriteCacheArgs a = {};
    a.k = k.const_data_ptr();
    a.v = v.const_data_ptr();
    a.k_cache = k_cache.mutable_data_ptr();
    a.v_cache = v_cache.mutable_data_ptr();
    a.slots = slots.const_data_ptr<int>();
    a.tokens = k.size(0);
    a.heads = k.size(1);
    a.pages = k_cache.size(0);
    a.k_stride = k.stride(0);
    a.v_stride = v.stride(0);
    launch_write_cache(a, current_stream());
}

// `like` says for which device and type.
std::vector<int64_t> resources(const Tensor& like, int64_t idea, int64_t max_len) {
    const Guard guard(like.device());
    const Resources r = single_query_resources(like.scalar_type() == at::kHalf, Idea(idea), max_len);
    return {r.registers, r.spill_bytes, r.smem_bytes, r.ctas_per_sm};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pod, m) {
    define(m, "single_query(Tensor q, Tensor k, Tensor v, Tensor table, Tensor lens, int max_len, float scale, "
              "int idea) -> Tensor");
    define(m, "write_cache(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> ()");
    define(m, "single_query_resources(Tensor like, int idea, int max_len) -> int[]");
}
TORCH_LIBRARY_IMPL(pod, POD_DEVICE, m) {
    m.impl("single_query", &attend);
    m.impl("write_cache", &write_tokens);
    m.impl("single_query_resources", &resources);
}
