// The Hopper kernel with K and V of 8 bits, on an emulated machine with Hopper's shared memory.
#include "sm90/hybrid.cu"
#include "host.h"

template <class T, int D, int kRows, int... kPages> void launch_page(const HybridArgs& a, int page) {
    const bool found = ((page == kPages && (launch_kernel<T, D, kRows, kPages, 0, 8>(a, 0), true)) || ...);
    if (!found) throw std::runtime_error("hybrid90_8.cu is not built for such pages");
}
template <class T, int D, int kRows> void launch_rows(const HybridArgs& a, int page) {
    if constexpr (std::is_same_v<T, __half>) launch_page<T, D, kRows, 0, 16, 64>(a, page);  // each takes a second
    else launch_page<T, D, kRows, 0, 8, 16, 32, 64>(a, page);
}
template <class T, int D> void launch_dim(const HybridArgs& a) {
    const int size = a.page_tokens, page = !a.table ? 0 : size & (size - 1) ? 8 : size >= 128 ? 0 : size;
    a.decode_rows == 8 ? launch_rows<T, D, 8>(a, page) : launch_rows<T, D, 16>(a, page);
}
template <class T> void launch_type(const HybridArgs& a) {
    a.head_dim == 64 ? launch_dim<T, 64>(a) : launch_dim<T, 128>(a);
}

EXPORT const char* run(const HybridArgs* launch, int sms) {
    return outcome([=] {
        emulate::machine().sms = sms;
        emulate::machine().smem_per_sm = 228 << 10, emulate::machine().smem_per_cta = 227 << 10;
        launch->half ? launch_type<__half>(*launch) : launch_type<__nv_bfloat16>(*launch);
    });
}
