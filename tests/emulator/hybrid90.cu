// The whole Hopper kernel, on an emulated machine with Hopper's shared memory.
int pod_chosen = -1;  // as in emulate/driver.cu
#include "sm90/hybrid.cu"
#include "host.h"

template <class T, int D> void launch_dim(const HybridArgs& a) {
    if constexpr (D == 64)
        if (a.prefill_rows == 192) return launch_any_page<T, D, 0>(a, 0);
    a.decode_rows == 8 ? launch_any_page<T, D, 8>(a, 0) : launch_any_page<T, D, 16>(a, 0);
}
template <class T> void launch_type(const HybridArgs& a) {
    a.head_dim == 64 ? launch_dim<T, 64>(a) : launch_dim<T, 128>(a);
}

EXPORT void choose(int change) { pod_chosen = change; }

EXPORT const char* run(const HybridArgs* launch, int sms) {
    return outcome([=] {
        emulate::machine().sms = sms;
        emulate::machine().smem_per_sm = 228 << 10, emulate::machine().smem_per_cta = 227 << 10;
        launch->half ? launch_type<__half>(*launch) : launch_type<__nv_bfloat16>(*launch);
    });
}
