// How kernels name memory, so that one source serves the GPU and the emulator.
//
//   gptr<T>     pointer to global memory          sptr<T>   pointer to shared memory
//   shared<T>   member of a struct that lies in shared memory, see ptx::smem_struct
//
// On the GPU they are plain T* and T. In the emulator they know their bounds and every access is checked, so a kernel
//   - takes gptr members in its parameters, which the host makes with device_ptr(pointer, elements, "name");
//   - gets shared memory only from ptx::dynamic_smem<T>() (no __shared__ variables), carved by adding offsets;
//   - reads and writes elements as p[i]: v = p[i], p[i] = v, p[i] += v, with T of 2, 4, 8 or 16 bytes. Say the type
//     when you read (`float x = p[i]`, not `auto`), and copy a struct out before you use its members;
//   - casts with ptr_cast<U>(p), and never takes the address of an element: write p + i, not &p[i];
//   - gives instructions that want a shared address a smem_addr = smem_u32(p), counted in bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#ifdef POD_EMULATE
#include "../emulate/cuda.h"
using emulate::shared;
#define DEV inline
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define DEV __device__ __forceinline__

template <class T> using gptr = T*;
template <class T> using sptr = T*;
template <class T> using shared = T;
template <class U, class T> __host__ __device__ __forceinline__ U* ptr_cast(T* p) { return reinterpret_cast<U*>(p); }
template <class T> T* device_ptr(T* p, size_t /*elements*/, const char* /*name*/) { return p; }
#endif

using smem_addr = uint32_t;  // byte address inside the CTA's shared memory, as PTX wants it
