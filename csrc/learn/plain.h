// CUDA's words without a meaning, for the compiler's opinion of a cell as the reader wrote it: its complaints are then about
// the reader's own types and columns.
#pragma once
#include "numbers.h"
#include <cstdio>

#define __shared__
#define __constant__
#define __restrict__
using half = __half;
using std::abs, std::isinf, std::isnan;

extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
constexpr int warpSize = 32;

void __syncthreads();
int __syncthreads_count(int vote);
int __syncthreads_or(int vote);
int __syncthreads_and(int vote);
void __syncwarp(unsigned mask = ~0u);
void __threadfence();
void __threadfence_block();
template <class T> T __ldg(const T* p);
template <class T> T __shfl_sync(unsigned mask, T x, int lane, int width = warpSize);
template <class T> T __shfl_xor_sync(unsigned mask, T x, int bits, int width = warpSize);
template <class T> T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = warpSize);
template <class T> T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = warpSize);
unsigned __ballot_sync(unsigned mask, bool vote);
bool __any_sync(unsigned mask, bool vote);
bool __all_sync(unsigned mask, bool vote);
int __popc(unsigned x);
template <class T> struct Same { using type = T; };
template <class T> T atomicAdd(T* p, typename Same<T>::type v);
template <class T> T atomicSub(T* p, typename Same<T>::type v);
template <class T> T atomicMax(T* p, typename Same<T>::type v);
template <class T> T atomicMin(T* p, typename Same<T>::type v);
template <class T> T atomicExch(T* p, typename Same<T>::type v);
template <class T> T atomicAnd(T* p, typename Same<T>::type v);
template <class T> T atomicOr(T* p, typename Same<T>::type v);
template <class T> T atomicXor(T* p, typename Same<T>::type v);
template <class T> T atomicInc(T* p, typename Same<T>::type v);
template <class T> T atomicDec(T* p, typename Same<T>::type v);
template <class T> T atomicCAS(T* p, typename Same<T>::type compare, typename Same<T>::type v);
