// The types and plain functions of CUDA C++ that the kernels use, for the host compiler.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct uint3 { uint32_t x, y, z; };
struct dim3 {
    uint32_t x, y, z;
    constexpr dim3(uint32_t x = 1, uint32_t y = 1, uint32_t z = 1) : x(x), y(y), z(z) {}
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

namespace emulate {

template <class To, class From> To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}
// fp16 <-> fp32. The multiplication moves the exponent to the other bias and normalises subnormals on the way.
inline float half_bits_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = uint32_t(h & 0x7fff) << 13;
    if ((h & 0x7c00) == 0x7c00) return bit_cast<float>(sign | rest | 0x7f800000);
    return bit_cast<float>(sign | bit_cast<uint32_t>(bit_cast<float>(rest) * 0x1p112f));
}
inline uint16_t float_to_half_bits(float f) {
    const uint32_t u = bit_cast<uint32_t>(f), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000) return 0x7fff;          // NaN, as the GPU writes it
    if (mag >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
    // Below 2^-14, adding 0.5 lets the FPU round to multiples of 2^-24, the spacing of subnormals.
    if (mag < 0x38800000) return sign | uint16_t(bit_cast<uint32_t>(bit_cast<float>(mag) + 0.5f) - 0x3f000000);
    return sign | uint16_t((mag - 0x38000000 + 0xfff + (mag >> 13 & 1)) >> 13);
}
// bf16 is the upper half of fp32; rounding is to nearest, ties to even.
inline float bfloat_bits_to_float(uint16_t b) { return bit_cast<float>(uint32_t(b) << 16); }
// e4m3 has no infinity, and one NaN for each sign.
inline float e4m3_bits_to_float(uint8_t b) {
    const int exponent = b >> 3 & 15, mantissa = b & 7;
    const float size = exponent ? std::ldexp(8.f + mantissa, exponent - 10) : std::ldexp(float(mantissa), -9);
    return (b & 0x7f) == 0x7f ? NAN : b & 0x80 ? -size : size;
}
inline uint16_t float_to_bfloat_bits(float f) {
    const uint32_t u = bit_cast<uint32_t>(f);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

}  // namespace emulate

struct __half { uint16_t bits; };
struct __nv_bfloat16 { uint16_t bits; };
inline float __half2float(__half x) { return emulate::half_bits_to_float(x.bits); }
inline __half __float2half(float x) { return {emulate::float_to_half_bits(x)}; }
inline float __bfloat162float(__nv_bfloat16 x) { return emulate::bfloat_bits_to_float(x.bits); }
inline __half __float2half_rn(float x) { return __float2half(x); }
inline __nv_bfloat16 __float2bfloat16(float x) { return {emulate::float_to_bfloat_bits(x)}; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __float2bfloat16(x); }

template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }

namespace emulate {

template <class T> float to_float(uint16_t bits) {
    if constexpr (std::is_same<T, __half>::value) return half_bits_to_float(bits);
    else return bfloat_bits_to_float(bits);
}
template <class T> uint32_t pack2(float lo, float hi) {
    constexpr auto bits = std::is_same<T, __half>::value ? float_to_half_bits : float_to_bfloat_bits;
    return bits(lo) | uint32_t(bits(hi)) << 16;
}
inline uint32_t widen(uint32_t x) {
    return pack2<__half>(e4m3_bits_to_float(x & 0xff), e4m3_bits_to_float(x >> 8 & 0xff));
}
template <class T> float2 unpack2(uint32_t x) { return {to_float<T>(x & 0xffff), to_float<T>(x >> 16)}; }

}  // namespace emulate
