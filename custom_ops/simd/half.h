// IEEE half to float32 and back, to nearest even.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_avx2)
#include <immintrin.h>
#endif

namespace trigraph::TRIGRAPH_ISA {

// Without the hardware.
inline float half_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff, bits;
  float value;
  if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -24);
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  } else {
    bits = sign | ((exponent == 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
  }
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint16_t float_to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  uint16_t sign = (bits >> 16) & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x47800000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {  // subnormal: scale so that the integer part is the fraction
    float scaled = std::nearbyint(std::ldexp(std::fabs(x), 24));
    return sign | static_cast<uint16_t>(scaled);
  }
  uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}
// One half of a block header: the conversion instruction where there is one.
#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_avx2)
inline float fast_half(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
#else
inline float fast_half(uint16_t h) { return half_to_float(h); }
#endif

}  // namespace trigraph::TRIGRAPH_ISA
