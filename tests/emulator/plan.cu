// The plan of the Hopper kernel, made by an emulated GPU.
#include "sm90/plan.cu"
#include "host.h"

EXPORT const char* run(const int* q_lens, const int* kv_lens, int* lists, int sequences, const Limits* limits) {
    return outcome([=] {
        emulate::machine().sms = limits->ctas;
        emulate::machine().smem_per_sm = 228 << 10, emulate::machine().smem_per_cta = 227 << 10;
        launch_hopper_plan({q_lens, kv_lens, lists, sequences, *limits}, 0);
    });
}
