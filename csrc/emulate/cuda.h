// The words of CUDA C++ that kernels use, for the host compiler. ptx.cuh adds the instructions that it has no word for.
#pragma once
#include "warp.h"

#define EMULATE_AT emulate::Where at = emulate::Where::here()

inline void __syncthreads(EMULATE_AT) { emulate::barrier(0, int(emulate::self->cta->threads.size()), true, at); }
inline void __syncwarp(uint32_t mask = ~0u, EMULATE_AT) { emulate::need_full(mask, at); emulate::syncwarp(at); }
inline void __threadfence(EMULATE_AT) { emulate::fence(at); }

template <class T> T __shfl_sync(uint32_t mask, T x, int lane, EMULATE_AT) {
    emulate::need_full(mask, at);
    return emulate::shuffle("__shfl_sync", x, at, [=](int) { return lane & 31; });
}
template <class T> T __shfl_xor_sync(uint32_t mask, T x, int bits, EMULATE_AT) {
    emulate::need_full(mask, at);
    return emulate::shuffle("__shfl_xor_sync", x, at, [=](int me) { return (me ^ bits) & 31; });
}
template <class T> T __shfl_up_sync(uint32_t mask, T x, int by, EMULATE_AT) {
    emulate::need_full(mask, at);
    return emulate::shuffle("__shfl_up_sync", x, at, [=](int me) { return me < by ? me : me - by; });
}
template <class T> T __shfl_down_sync(uint32_t mask, T x, int by, EMULATE_AT) {
    emulate::need_full(mask, at);
    return emulate::shuffle("__shfl_down_sync", x, at, [=](int me) { return me + by > 31 ? me : me + by; });
}
inline uint32_t __ballot_sync(uint32_t mask, bool vote, EMULATE_AT) {
    emulate::need_full(mask, at);
    return emulate::ballot("__ballot_sync", vote, at);
}
inline bool __any_sync(uint32_t mask, bool vote, EMULATE_AT) {
    emulate::need_full(mask, at);
    return emulate::ballot("__any_sync", vote, at) != 0;
}
inline bool __all_sync(uint32_t mask, bool vote, EMULATE_AT) {
    emulate::need_full(mask, at);
    return emulate::ballot("__all_sync", vote, at) == ~0u;
}

template <class T> std::remove_const_t<T> __ldg(gptr<T> p, EMULATE_AT) {
    const std::remove_const_t<T> v = p.load(at);
    emulate::need_constant(p, at);
    return v;
}
template <class T> std::remove_const_t<T> __ldcg(gptr<T> p, EMULATE_AT) { return p.load(at); }
template <class T, class V> void __stcg(gptr<T> p, const V& v, EMULATE_AT) { p.store(v, at); }

// P is gptr<T> or sptr<T>.
template <class P, class V> auto atomicAdd(P p, V v, EMULATE_AT) {
    return emulate::atomic_add(p, v, emulate::kRelaxed, at);
}
template <class P, class V> auto atomicMax(P p, V v, EMULATE_AT) {
    return emulate::atomic(p, emulate::kRelaxed, at, [=](auto old) { return max(old, decltype(old)(v)); });
}
