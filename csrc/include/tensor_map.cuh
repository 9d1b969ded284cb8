// The host's half of TMA: a tensor as boxes of rows of 128 bytes (or 64), swizzled, which one copy takes whole.
#pragma once
#include "ptx90.cuh"

#ifdef POD_EMULATE
using emulate::make_map;
inline bool has_context() { return true; }
#else
// The driver makes no map in a thread that has not used the GPU yet: its calls, unlike the runtime's, do not take up
// the device's context by themselves.
inline bool has_context() {
    int device;
    return cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(device) == cudaSuccess;
}
typedef CUresult (*EncodeFn)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                             const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Elements of 2 bytes, floats of 16 bits, or of 1. Strides count bytes, between neighbours of all dimensions but the
// first. `l2`: how much L2 fetches where a box asks for less.
inline bool make_map(CUtensorMap* map, bool half, const void* data, int rank, const cuuint64_t* dims,
                     const cuuint64_t* strides, const cuuint32_t* box, int bytes = 2,
                     CUtensorMapL2promotion l2 = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
    static EncodeFn encode = [] {
        void* f = nullptr;
        cudaDriverEntryPointQueryResult found;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found);
        return EncodeFn(f);
    }();
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    const auto type = bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                      : half     ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const auto swizzle = box[0] * bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
    return encode && encode(map, type, rank, const_cast<void*>(data), dims, strides, box, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, l2,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
#endif
