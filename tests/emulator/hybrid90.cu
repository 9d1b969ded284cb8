// The whole Hopper kernel, on an emulated machine with Hopper's shared memory.
int pod_chosen = -1;  // as in emulate/driver.cu
#include "sm90/hybrid.cu"
#include "host.h"

template <class T, int D, int kRows, int kRules, int... kPages> void launch_page(const HybridArgs& a, int page) {
    const bool found = ((page == kPages && (launch_kernel<T, D, kRows, kPages, kRules>(a, 0), true)) || ...);
    if (!found) throw std::runtime_error("hybrid90.cu is not built for such pages");
}
// All rules at once: each alone is these with numbers that do not matter for the others.
constexpr int kAll = kWindow | kSoftcap | kSinks;
template <class T, int D, int kRows> void launch_rows(const HybridArgs& a, int page) {
    constexpr bool kFew = std::is_same_v<T, __half>;  // each kernel takes the compiler a second
    if (!a.sinks) return launch_page<T, D, kRows, 0, 0, 16, 32, 64, kFew ? 0 : kAnyPage>(a, page);
    if constexpr (!kFew && kRows != kNarrow) launch_page<T, D, kRows, kAll, 0, 16>(a, page);
}
template <class T, int D> void launch_dim(const HybridArgs& a) {
    const int size = a.page_tokens, page = !a.table ? 0 : size & (size - 1) ? 8 : size >= 128 ? 0 : size;
    if constexpr (D == 64)
        if (a.prefill_rows == 192) return launch_rows<T, D, 0>(a, page);
    if (a.decode_rows == kNarrow) return launch_rows<T, D, kNarrow>(a, page);
    a.decode_rows == 8 ? launch_rows<T, D, 8>(a, page) : launch_rows<T, D, 16>(a, page);
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
