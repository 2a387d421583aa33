// How a head of a position lies in the cache: as floats, as halves, or rotated in Q8_0 blocks.
#pragma once

#include <cmath>
#include <cstring>
#include <utility>

#include "../simd.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {

// One stage for all elements: pairs half apart become neighbours, so that after log2(size) stages all are in place.
inline void butterflies(const float* TRIGRAPH_RESTRICT from, int64_t half, float* TRIGRAPH_RESTRICT to) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = from[i], b = from[half + i];
    to[2 * i] = a + b;
    to[2 * i + 1] = a - b;
  }
}

// Each `size` elements of x times the Hadamard matrix / sqrt(size), which is its own inverse. Element pairs size / 2
// apart are added and subtracted first, neighbours last.
inline void rotate(float* x, int64_t width, int64_t size) {
  float spare[1024];
  const vf scale = splat(1.0f / std::sqrt(static_cast<float>(size)));
  for (const float* end = x + width; x < end; x += size) {
    float *from = x, *to = spare;
    for (int64_t n = size; n > 1; n /= 2, std::swap(from, to)) butterflies(from, size / 2, to);
    for (int64_t i = 0; i < size; i += VL) store(x + i, mul(load(from + i), scale));
  }
}

// A block as ggml makes it: the scale is the largest magnitude / 127, and ties go away from zero. A block that is not
// finite gets a scale of NaN; one whose largest magnitude is at most 1e-36 counts as zero, for the reciprocal must be
// finite.
inline void quantise_block(const float* x, Q8* out) {
  uint32_t bits[kQ8Width], largest = 0;
  std::memcpy(bits, x, sizeof bits);
  for (uint32_t b : bits) largest = (b & 0x7fffffff) > largest ? (b & 0x7fffffff) : largest;
  float magnitude;
  std::memcpy(&magnitude, &largest, 4);
  const bool finite = largest < 0x7f800000;
  std::memset(out, 0, kQ8Bytes);
  if (finite && magnitude <= 1e-36f) return;
  const float scale = magnitude / 127.0f, inverse = 1.0f / scale;
  const uint16_t half = finite ? float_to_half(scale) : 0x7e00;
  std::memcpy(out, &half, sizeof half);
  if (!finite) return;
  int8_t codes[kQ8Width];
  for (int i = 0; i < kQ8Width; ++i) {
    const float shifted = x[i] * inverse, size = std::fabs(shifted);
    const auto whole = static_cast<int32_t>(size);
    const int32_t code = whole + (size - static_cast<float>(whole) >= 0.5f);
    codes[i] = static_cast<int8_t>(shifted < 0 ? -code : code);
  }
  std::memcpy(out + 2, codes, sizeof codes);
}

// Writes a head, of which nothing else is needed.
inline void write_head(float* head, int64_t width, int64_t, float* out) {
  std::memcpy(out, head, static_cast<size_t>(width) * sizeof(float));
}
inline void write_head(float* head, int64_t width, int64_t, uint16_t* out) {
  for (int64_t i = 0; i < width; i += VL) store_f16(out + i, load(head + i));
}
inline void write_head(float* head, int64_t width, int64_t rotation, Q8* out) {
  rotate(head, width, rotation);
  for (int64_t i = 0; i < width; i += kQ8Width, out += kQ8Bytes) quantise_block(head + i, out);
}

inline Part load_entry_part(const float* p) { return load_part(p); }
inline Part load_entry_part(const uint16_t* p) { return load_f16_part(p); }

// Reads a head, which stays rotated.
template <class T>
void widen(const T* head, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += kPartLanes) store_part(out + i, load_entry_part(head + i));
}
inline void widen(const Q8* head, int64_t width, float* out) {
  for (int64_t b = 0; b < width; b += kQ8Width, head += kQ8Bytes) {
    uint16_t half;
    std::memcpy(&half, head, sizeof half);
    const Part scale = splat_part(fast_half(half));
    const auto* codes = reinterpret_cast<const int8_t*>(head + 2);
    TRIGRAPH_UNROLL
    for (int i = 0; i < kQ8Width; i += kPartLanes) store_part(out + b + i, mul(scale, load_i8_part(codes + i)));
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
