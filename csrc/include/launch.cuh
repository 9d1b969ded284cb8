// Starting a kernel from the host: the same call on the GPU and in the emulator.
//   launch<my_kernel<Config, Binding>>(stream, grid, block, smem_bytes, params);
// Emulated launches run at once, unless an emulate::Concurrent scope is open: then all launches of the scope share the
// machine at its end, in order within a stream and side by side across streams.
#pragma once
#include "memory.cuh"
#include <stdexcept>
#include <string>

#ifdef POD_EMULATE
#include "../emulate/machine.h"
using Stream = emulate::Stream;

template <auto Kernel, class... Args>
void launch(Stream stream, dim3 grid, dim3 block, size_t smem_bytes, const Args&... args) {
    emulate::launch<Kernel>(stream, grid, block, smem_bytes, args...);
}
inline int sm_count() { return emulate::machine().sms; }
// CTAs of this kernel that one SM holds at a time.
template <auto Kernel> int resident_ctas(int threads, size_t smem_bytes) {
    return emulate::machine().resident_ctas(threads, smem_bytes);
}

#elif defined(__CUDACC__)
using Stream = cudaStream_t;

inline void check_cuda(cudaError_t error, const char* what) {
    if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}
// More than 48 KB of dynamic shared memory must be asked for, once per kernel and device.
template <auto Kernel> void allow_smem(size_t bytes) {
    if (bytes <= 48 * 1024) return;
    check_cuda(cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), "shared memory");
}
template <auto Kernel, class... Args>
void launch(Stream stream, dim3 grid, dim3 block, size_t smem_bytes, const Args&... args) {
    allow_smem<Kernel>(smem_bytes);
    Kernel<<<grid, block, smem_bytes, stream>>>(args...);
    check_cuda(cudaGetLastError(), "kernel launch");
}
inline int sm_count() {
    int device = 0, sms = 0;
    check_cuda(cudaGetDevice(&device), "device");
    check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "SM count");
    return sms;
}
template <auto Kernel> int resident_ctas(int threads, size_t smem_bytes) {
    int ctas = 0;
    allow_smem<Kernel>(smem_bytes);
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, Kernel, threads, smem_bytes), "occupancy");
    return ctas;
}
#endif
