// All lanes, in plain C++: the definition that every other instruction set equals to the bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kPartLanes = 16;
struct Part {
  float lane[kPartLanes];
};
#define TRIGRAPH_LANES(expression)                               \
  Part r;                                                        \
  for (int i = 0; i < kPartLanes; ++i) r.lane[i] = (expression); \
  return r
inline Part load_part(const float* p) { TRIGRAPH_LANES(p[i]); }
inline Part load_once(const float* p) { return load_part(p); }
inline void store_part(float* p, Part x) { std::memcpy(p, x.lane, sizeof x.lane); }
inline Part splat_part(float x) { TRIGRAPH_LANES(x); }
inline Part zero_part() { return splat_part(0); }
inline Part add(Part a, Part b) { TRIGRAPH_LANES(a.lane[i] + b.lane[i]); }
inline Part sub(Part a, Part b) { TRIGRAPH_LANES(a.lane[i] - b.lane[i]); }
inline Part mul(Part a, Part b) { TRIGRAPH_LANES(a.lane[i] * b.lane[i]); }
inline Part div(Part a, Part b) { TRIGRAPH_LANES(a.lane[i] / b.lane[i]); }
inline Part max(Part a, Part b) { TRIGRAPH_LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
inline Part min(Part a, Part b) { TRIGRAPH_LANES(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); }
inline Part fmadd(Part a, Part b, Part c) { TRIGRAPH_LANES(std::fma(a.lane[i], b.lane[i], c.lane[i])); }
inline Part round(Part x) { TRIGRAPH_LANES(std::nearbyint(x.lane[i])); }
inline Part pow2(Part n) { TRIGRAPH_LANES(std::ldexp(1.0f, static_cast<int>(n.lane[i]))); }
inline float reduce_add(Part x) {
  for (int n = kPartLanes / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) x.lane[i] += x.lane[i + n];
  return x.lane[0];
}
inline void reduce_add4(Part a, Part b, Part c, Part d, float* out) {
  out[0] = reduce_add(a), out[1] = reduce_add(b), out[2] = reduce_add(c), out[3] = reduce_add(d);
}
inline void load_transposed4_part(const float* p, Part* out) {
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < kPartLanes; ++i) out[j].lane[i] = p[4 * i + j];
}
inline Part load_f16_part(const uint16_t* p) { TRIGRAPH_LANES(half_to_float(p[i])); }
inline Part load_bf16_part(const uint16_t* p) {
  uint32_t bits[kPartLanes];
  for (int i = 0; i < kPartLanes; ++i) bits[i] = static_cast<uint32_t>(p[i]) << 16;
  Part r;
  std::memcpy(r.lane, bits, sizeof bits);
  return r;
}
inline Part load_i8_part(const int8_t* p) { TRIGRAPH_LANES(static_cast<float>(p[i])); }
inline void store_f16_part(uint16_t* p, Part x) {
  for (int i = 0; i < kPartLanes; ++i) p[i] = float_to_half(x.lane[i]);
}
#undef TRIGRAPH_LANES

}  // namespace trigraph::TRIGRAPH_ISA
