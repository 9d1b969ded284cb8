// torch.ops.pod.hopper_plan: the kernel of plan.cu as a torch operator. Checks live in Python
// (pod/kernels/workspace.py).
#include "include/operators.h"
#include "sm90/plan.h"

void launch_hopper_plan(const PlanArgs&, Stream);

namespace {

using at::Tensor;

void plan(const Tensor& q_lens, const Tensor& kv_lens, const Tensor& lists, at::IntArrayRef limits) {
    const Guard guard(lists.device());
    const PlanArgs a = {q_lens.const_data_ptr<int>(), kv_lens.const_data_ptr<int>(), lists.mutable_data_ptr<int>(),
                        int(q_lens.size(0)), read<Limits>(limits)};
    on_sms(a.limits.ctas, [&] { launch_hopper_plan(a, current_stream()); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pod, m) {
    define(m, "hopper_plan(Tensor q_lens, Tensor kv_lens, Tensor(a!) lists, int[] limits) -> ()");
}
TORCH_LIBRARY_IMPL(pod, POD_DEVICE, m) { m.impl("hopper_plan", &plan); }
