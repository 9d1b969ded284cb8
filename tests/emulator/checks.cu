// Small kernels in pairs: with kWrong each breaks one rule, at the line marked BAD <name>, which the report must name.
#include "host.h"
using namespace ptx;

struct Args {
    gptr<int> in, out, counter;  // 128 ints, 128 ints, 1 int
};

template <bool kWrong> __global__ void missing_barrier(Args p) {
    sptr<int> s = dynamic_smem<int>();
    s[threadIdx.x] = threadIdx.x;
    if (!kWrong) __syncthreads();
    p.out[threadIdx.x] = s[(threadIdx.x + 32) % 64];  // BAD missing_barrier
}
template <bool kWrong> __global__ void missing_syncwarp(Args p) {
    sptr<int> s = dynamic_smem<int>();
    s[threadIdx.x] = threadIdx.x;
    if (!kWrong) __syncwarp();
    p.out[threadIdx.x] = s[threadIdx.x ^ 1];  // BAD missing_syncwarp
}
template <bool kWrong> __global__ void overwritten_too_early(Args p) {
    sptr<int> s = dynamic_smem<int>();
    for (int i = 0; i < 2; ++i) {
        s[threadIdx.x] = threadIdx.x + i;  // BAD overwritten_too_early
        __syncthreads();
        p.out[threadIdx.x] = s[63 - threadIdx.x];
        if (!kWrong) __syncthreads();
    }
}
template <bool kWrong> __global__ void shared_past_end(Args) {
    sptr<int> s = dynamic_smem<int>();
    s[threadIdx.x + (kWrong ? 193 : 192)] = 1;  // BAD shared_past_end
}
template <bool kWrong> __global__ void global_past_end(Args p) {
    p.out[threadIdx.x] = p.in[threadIdx.x + (kWrong ? 65 : 64)];  // BAD global_past_end
}
template <bool kWrong> __global__ void global_before_start(Args p) {
    if (threadIdx.x >= 32) return;
    st_global_16(ptr_cast<uint4>(p.out) + (int(threadIdx.x) - kWrong), uint4{});  // BAD global_before_start
}
template <bool kWrong> __global__ void null_pointer(Args p) {
    gptr<int> table = kWrong ? nullptr : p.in;
    p.out[threadIdx.x] = table[threadIdx.x];  // BAD null_pointer
}
template <bool kWrong> __global__ void copy_past_end(Args p) {
    const bool inside = threadIdx.x < 32;
    const smem_addr to = smem_u32(dynamic_smem<uint4>() + threadIdx.x);
    cp_async_16(to, ptr_cast<uint4>(p.in) + threadIdx.x, inside || kWrong);  // BAD copy_past_end
    cp_async_commit();
    cp_async_wait<0>();
}
template <bool kWrong> __global__ void misaligned_row(Args p) {
    sptr<int> s = dynamic_smem<int>();
    s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    uint32_t r[2];
    ldmatrix_x2(r, smem_u32(s) + threadIdx.x % 8 * 16 + kWrong * 4);  // BAD misaligned_row
    p.out[threadIdx.x] = r[0];
}
template <bool kWrong> __global__ void copy_not_awaited(Args p) {
    sptr<int> s = dynamic_smem<int>();
    if (threadIdx.x < 16) cp_async_16(smem_u32(s + threadIdx.x * 4), p.in + threadIdx.x * 4);
    cp_async_commit();
    if (!kWrong) cp_async_wait<0>();
    __syncthreads();
    p.out[threadIdx.x] = s[threadIdx.x];  // BAD copy_not_awaited
}
template <bool kWrong> __global__ void awaited_one_group_too_few(Args p) {
    sptr<int> s = dynamic_smem<int>();
    for (int stage = 0; stage < 2; ++stage) {
        if (threadIdx.x < 8) cp_async_16(smem_u32(s + stage * 32 + threadIdx.x * 4), p.in + threadIdx.x * 4);
        cp_async_commit();
    }
    cp_async_wait<kWrong ? 1 : 0>();
    __syncthreads();
    p.out[threadIdx.x] = s[threadIdx.x];  // BAD awaited_one_group_too_few
}
template <bool kWrong> __global__ void awaited_without_barrier(Args p) {
    sptr<int> s = dynamic_smem<int>();
    if (threadIdx.x < 16) cp_async_16(smem_u32(s + threadIdx.x * 4), p.in + threadIdx.x * 4);
    cp_async_commit();
    cp_async_wait<0>();
    if (!kWrong) __syncthreads();
    p.out[threadIdx.x] = s[threadIdx.x];  // BAD awaited_without_barrier
}
template <bool kWrong> __global__ void refilled_too_early(Args p) {
    sptr<int> s = dynamic_smem<int>();
    for (int i = 0; i < 2; ++i) {
        const smem_addr to = smem_u32(s + threadIdx.x * 4);
        if (threadIdx.x < 16) cp_async_16(to, p.in + threadIdx.x * 4);  // BAD refilled_too_early
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        p.out[threadIdx.x] = s[63 - threadIdx.x];
        if (!kWrong) __syncthreads();
    }
}
template <bool kWrong> __global__ void barrier_in_half_a_warp(Args p) {
    if (!kWrong || threadIdx.x % 32 < 16) __syncthreads();  // BAD barrier_in_half_a_warp
    p.out[threadIdx.x] = 1;
}
template <bool kWrong> __global__ void barrier_in_one_warp(Args p) {
    if (!kWrong || threadIdx.x < 32) __syncthreads();  // BAD barrier_in_one_warp
    p.out[threadIdx.x] = 1;
}
template <bool kWrong> __global__ void lanes_at_different_instructions(Args p) {
    int x = threadIdx.x;
    if (kWrong && x % 2) x = __shfl_xor_sync(~0u, x, 2);  // BAD lanes_at_different_instructions
    else x = __shfl_xor_sync(~0u, x, 2);
    p.out[threadIdx.x] = x;
}
template <bool kWrong> __global__ void barrier_of_wrong_count(Args p) {
    named_barrier_sync(1, kWrong && threadIdx.x >= 32 ? 32 : 64);  // BAD barrier_of_wrong_count
    p.out[threadIdx.x] = 1;
}
template <bool kWrong> __global__ void barrier_waits_for_too_many(Args p) {
    if (threadIdx.x < 32) named_barrier_sync(3, kWrong ? 64 : 32);  // BAD barrier_waits_for_too_many
    p.out[threadIdx.x] = 1;
}
template <bool kWrong> __global__ void flag_never_raised(Args p) {
    const int wanted = kWrong ? 3 : 2;
    if (threadIdx.x % 32 == 0) {
        atomicAdd(p.counter, 1);
        while (atomicAdd(p.counter, 0) < wanted) {}  // BAD flag_never_raised
    }
    __syncthreads();
}
template <bool kWrong> __global__ void constant_that_was_written(Args p) {
    p.out[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const gptr<int> from = p.out + 63 - threadIdx.x;
    p.in[threadIdx.x] = kWrong ? __ldg(from) : __ldcg(from);  // BAD constant_that_was_written
}
// Two CTAs each store half of a result; the one that counts second adds the halves.
enum class Combine { right, no_release, no_acquire, no_syncthreads, plain_fences };
template <Combine kHow> DEV void combine(Args p) {
    p.out[blockIdx.x * 64 + threadIdx.x] = threadIdx.x;
    if (kHow != Combine::no_syncthreads) __syncthreads();
    sptr<int> ticket = dynamic_smem<int>();
    if (threadIdx.x == 0) {
        if (kHow == Combine::no_release) ticket[0] = atomicAdd(p.counter, 1);
        else if (kHow == Combine::plain_fences) {
            __threadfence();
            ticket[0] = atomicAdd(p.counter, 1);
        } else ticket[0] = atomic_add_release(p.counter, 1);
        if (kHow != Combine::no_acquire) fence_acq_rel();
    }
    __syncthreads();
    if (int(ticket[0]) == 0) return;
    p.in[threadIdx.x] = p.out[threadIdx.x] + p.out[64 + threadIdx.x];  // BAD combine
}
template <bool kWrong> __global__ void combine_without_release(Args p) {
    combine<kWrong ? Combine::no_release : Combine::right>(p);
}
template <bool kWrong> __global__ void combine_without_acquire(Args p) {
    combine<kWrong ? Combine::no_acquire : Combine::plain_fences>(p);
}
template <bool kWrong> __global__ void combine_without_barrier(Args p) {
    combine<kWrong ? Combine::no_syncthreads : Combine::right>(p);
}

#define KERNELS(X)                                                                                              \
    X(missing_barrier) X(missing_syncwarp) X(overwritten_too_early) X(shared_past_end) X(global_past_end)       \
    X(global_before_start) X(null_pointer) X(copy_past_end) X(misaligned_row) X(copy_not_awaited)               \
    X(awaited_one_group_too_few) X(awaited_without_barrier) X(refilled_too_early) X(barrier_in_half_a_warp)     \
    X(barrier_in_one_warp) X(lanes_at_different_instructions) X(barrier_of_wrong_count)                         \
    X(barrier_waits_for_too_many) X(flag_never_raised) X(constant_that_was_written)                              \
    X(combine_without_release) X(combine_without_acquire) X(combine_without_barrier)

EXPORT const char* run_check(const char* name, int wrong, int* in, int* out, int* counter) {
    return outcome([=] {
        use_machine(2, 4);
        const Args p{device_ptr(in, 128, "in"), device_ptr(out, 128, "out"), device_ptr(counter, 1, "counter")};
        const std::string which = name;
        const int ctas = which.rfind("combine", 0) == 0 ? 2 : 1;
#define TRY(kernel)                                                                    \
    if (which == #kernel && wrong) return launch<kernel<true>>(0, ctas, 64, 1024, p); \
    if (which == #kernel) return launch<kernel<false>>(0, ctas, 64, 1024, p);
        KERNELS(TRY)
        throw std::runtime_error("no such kernel: " + which);
    });
}
