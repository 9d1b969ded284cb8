// Kernels that ask the machine about itself: where CTAs run, in which order and for how long.
#include "host.h"
using namespace ptx;

struct Log {               // one row a CTA, in order of tickets: CTA, SM, start, end, launch
    gptr<int> rows, ticket;
};
DEV void write_row(const Log& log, uint64_t start, int launch) {
    const int row = atomicAdd(log.ticket, 1) * 5;
    log.rows[row] = blockIdx.x, log.rows[row + 1] = smid(), log.rows[row + 2] = start;
    log.rows[row + 3] = globaltimer(), log.rows[row + 4] = launch;
}
// CTA i issues work[i] tensor-core products in each warp.
template <int kLaunch> __global__ void busy_kernel(Log log, gptr<const int> work) {
    const uint64_t start = globaltimer();
    float d[4] = {};
    const uint32_t a[4] = {};
    const int n = work[blockIdx.x];
    for (int i = 0; i < n; ++i) mma_16816<__half>(d, a, 0, 0);
    __syncthreads();
    if (threadIdx.x == 0) write_row(log, start, kLaunch);
}
Log log_of(int* rows, int* ticket, int ctas) {
    return {device_ptr(rows, ctas * 5, "rows"), device_ptr(ticket, 1, "ticket")};
}

EXPORT const char* run_busy(int sms, int slots, int smem_per_sm, int ctas, int warps, int smem, int* work, int* rows,
                            int* ticket) {
    return outcome([=] {
        use_machine(sms, slots, smem_per_sm);
        launch<busy_kernel<0>>(0, ctas, warps * 32, smem, log_of(rows, ticket, ctas), input(work, ctas, "work"));
    });
}
// On SMs whose numbers have gaps.
EXPORT const char* run_gaps(int sms, int step, int* work, int* rows, int* ticket) {
    return outcome([=] {
        use_machine(sms, 1);
        emulate::machine().sm_step = step;
        launch<busy_kernel<0>>(0, sms, 32, 0, log_of(rows, ticket, sms), input(work, sms, "work"));
        emulate::machine().sm_step = 1;
    });
}
// The same kernel twice, of `ctas` CTAs each, on these two streams.
EXPORT const char* run_streams(int first, int second, int sms, int slots, int ctas, int* work, int* rows, int* ticket) {
    return outcome([=] {
        use_machine(sms, slots);
        emulate::Concurrent together;
        const Log log = log_of(rows, ticket, 2 * ctas);
        launch<busy_kernel<0>>(first, ctas, 32, 0, log, input(work, ctas, "work"));
        launch<busy_kernel<1>>(second, ctas, 32, 0, log, input(work, ctas, "work"));
        together.run();
    });
}
EXPORT int run_resident(int threads, int smem) {
    use_machine(4, 32);
    return resident_ctas<busy_kernel<0>>(threads, smem);
}

// Each thread of each CTA adds its number; then maximum and exchange; old [threads] are the tickets.
__global__ void atomics_kernel(gptr<int> cells, gptr<int> old) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    old[t] = atomicAdd(cells, 1);
    atomicAdd(cells + 1, t);
    atomicMax(cells + 2, t);
    sptr<int> count = dynamic_smem<int>();
    if (threadIdx.x == 0) count[0] = 0;
    __syncthreads();
    atomicAdd(count, 2);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(cells + 3, int(count[0]));
}
EXPORT const char* run_atomics(int ctas, int threads, int* cells, int* old) {
    return outcome([=] {
        use_machine(4, 32);
        const auto tickets = device_ptr(old, ctas * threads, "old");
        launch<atomics_kernel>(0, ctas, threads, 64, device_ptr(cells, 4, "cells"), tickets);
    });
}

// CTA 0 waits for the last CTA to raise a flag.
__global__ void flag_kernel(gptr<int> flag, gptr<int> data, gptr<int> seen) {
    if (blockIdx.x == gridDim.x - 1) {
        data[threadIdx.x] = 7 + threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) atomic_add_release(flag, 1);
    } else if (blockIdx.x == 0) {
        if (threadIdx.x == 0) while (atomic_add_acq_rel(flag, 0) == 0) {}
        __syncthreads();
        seen[threadIdx.x] = data[threadIdx.x];
    }
}
EXPORT const char* run_flag(int ctas, int* flag, int* data, int* seen) {
    return outcome([=] {
        use_machine(4, 32);
        const auto from = device_ptr(data, 64, "data"), to = device_ptr(seen, 64, "seen");
        launch<flag_kernel>(0, ctas, 64, 0, device_ptr(flag, 1, "flag"), from, to);
    });
}

// Warp 0 produces, warps 1 and 2 consume, through one slot and two named barriers ("full" and "empty").
__global__ void pipeline_kernel(gptr<int> out, int rounds) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    sptr<int> slot = dynamic_smem<int>();
    for (int i = 0; i < rounds; ++i) {
        if (warp == 0) {
            if (i) named_barrier_sync(2, 96);
            slot[lane] = i * 100 + lane;
            named_barrier_arrive(1, 96);
        } else {
            named_barrier_sync(1, 96);
            out[(i * 2 + warp - 1) * 32 + lane] = slot[31 - lane];
            if (i + 1 < rounds) named_barrier_arrive(2, 96);
        }
    }
}
EXPORT const char* run_pipeline(int rounds, int* out) {
    return outcome([=] { launch<pipeline_kernel>(0, 1, 96, 128, device_ptr(out, rounds * 64, "out"), rounds); });
}

// Time of a chain of dependent loads, and of the same number of independent ones.
__global__ void latency_kernel(gptr<const int> x, gptr<int> out, int n) {
    const uint64_t start = globaltimer();
    int i = 0;
    for (int k = 0; k < n; ++k) i = x[i], __syncwarp();
    const uint64_t chained = globaltimer();
    int sum = 0;
    for (int k = 0; k < n; ++k) sum += x[k];
    __syncwarp();
    if (threadIdx.x == 0) out[0] = chained - start, out[1] = globaltimer() - chained, out[2] = i + sum;
}
EXPORT const char* run_latency(int n, int* x, int* out) {
    return outcome([=] { launch<latency_kernel>(0, 1, 32, 0, input(x, n, "x"), device_ptr(out, 3, "out"), n); });
}

// Shared memory that nobody has written.
__global__ void poison_kernel(gptr<uint32_t> out) { out[threadIdx.x] = dynamic_smem<uint32_t>()[threadIdx.x]; }
EXPORT const char* run_poison(uint32_t* out) {
    return outcome([=] { launch<poison_kernel>(0, 1, 32, 128, device_ptr(out, 32, "out")); });
}
EXPORT const char* run_shape(int threads, int smem) {
    static uint32_t out[1024];
    return outcome([=] { launch<poison_kernel>(0, 1, threads, smem, device_ptr(out, 1024, "out")); });
}
