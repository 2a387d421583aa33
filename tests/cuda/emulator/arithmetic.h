// Functions of CUDA on numbers, and halves: the host's IEEE operations, whose bits are a device's too.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 4; ++i) sum += int8_t(uint32_t(a) >> 8 * i) * int8_t(uint32_t(b) >> 8 * i);
  return sum;
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return uint32_t((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return out;
}
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline uint32_t __brev(uint32_t x) {
  uint32_t out = 0;
  for (int i = 0; i < 32; ++i) out |= (x >> i & 1) << (31 - i);
  return out;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyintf(x)); }
inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
using std::isfinite;

struct __half {
  uint16_t bits;
};
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half half) { return half.bits; }
inline float __half2float(__half half) {
  const uint32_t sign = uint32_t{half.bits & 0x8000u} << 16, rest = half.bits & 0x7fffu;
  if (rest >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  const float value = __uint_as_float(rest << 13) * 0x1p112f;  // the exponent's new bias; subnormals come out right
  return __uint_as_float(sign | __float_as_uint(value));
}
inline __half __float2half_rn(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(x);
  if (!(magnitude < 65520.0f)) return {static_cast<uint16_t>(sign | (magnitude == magnitude ? 0x7c00 : 0x7e00))};
  if (magnitude < 0x1p-14f)
    return {static_cast<uint16_t>(sign | static_cast<int>(std::nearbyintf(magnitude * 0x1p24f)))};
  const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);  // to nearest even in the 10 bits that stay
  return {static_cast<uint16_t>(sign | ((rounded >> 13) - (112 << 10)))};
}
inline __half __short2half_rn(short x) { return __float2half_rn(x); }
