// Activation rows as products take them: super-blocks of 256 elements in their own order, the last one padded with
// zeros. Each step of a weight row meets codes of one scale: those of a super-block for types with steps of 256, of 32
// elements for all others.
#pragma once

#if defined(TRIGRAPH_ISA_avx512) || defined(TRIGRAPH_ISA_avx2)
#include "quantise_x86.h"
#endif
#include "../row_kernel.h"
#include "unpack.h"

namespace trigraph::TRIGRAPH_ISA {

inline int64_t supers(int64_t width) { return ceil_div(width, kSuper); }

#if defined(TRIGRAPH_ISA_avx2) && !defined(__AVXVNNI__)
constexpr bool kCentres = true;
#else
constexpr bool kCentres = false;
#endif
// Types whose dot products of a run are counted in 16 bits from the run's centre on: they fit without what kBias adds,
// and may pass 32767 on the way.
template <class F>
constexpr bool kCentred = kCentres && F::kBits == 6;

struct Int8Codes {
  int8_t code[kSuper];
  int16_t sum16[kSuper / 16], sum32[kSuper / 32];  // of as many codes each
};
struct alignas(64) Int8Super : Int8Codes {
#if defined(TRIGRAPH_ISA_avx2) && !defined(__AVXVNNI__)
  int16_t centre[kSuper / 16][2];  // -32 times the sum of a run's elements that meet in one lane of 16 bits
#endif
  float scale;

  float scale_of(int) const { return scale; }
};
struct alignas(64) Int8Blocks : Int8Codes {
  float scales[kSuper / 32];

  float scale_of(int step) const { return scales[step]; }
};
template <class F>
using Int8Of = std::conditional_t<kStep<F> == kSuper, Int8Super, Int8Blocks>;
struct alignas(64) FloatSuper {
  float value[kSuper];
  float apart[16];  // rows a power of two apart would share sets of the cache
};

#if !defined(TRIGRAPH_ISA_avx512) && !defined(TRIGRAPH_ISA_avx2)
// The largest magnitude's bits, of kCount elements.
template <int kCount>
uint32_t largest_bits(const float* x) {
  alignas(64) uint32_t bits[kCount];
  std::memcpy(bits, x, sizeof bits);
  uint32_t largest = 0;
  for (uint32_t b : bits) largest = (b & 0x7fffffff) > largest ? (b & 0x7fffffff) : largest;
  return largest;
}
// The codes x * inverse, rounded: the integers are in the last bits of the fractions.
template <int kCount>
void round_codes(const float* x, float inverse, float shift, int8_t* out) {
  for (int i = 0; i < kCount; ++i) {
    const float shifted = x[i] * inverse + shift;
    uint32_t bits;
    std::memcpy(&bits, &shifted, 4);
    out[i] = static_cast<int8_t>(bits);
  }
}
// The sums of each 16 codes and of each 32.
inline void sum_codes(const int8_t* code, int16_t* sum16, int16_t* sum32, int16_t*) {
  for (int i = 0; i < kSuper / 16; ++i) {
    int sum = 0;
    for (int k = 0; k < 16; ++k) sum += code[16 * i + k];
    sum16[i] = static_cast<int16_t>(sum);
  }
  for (int i = 0; i < kSuper / 32; ++i) sum32[i] = static_cast<int16_t>(sum16[2 * i] + sum16[2 * i + 1]);
}
#endif

// What codes of a largest magnitude, given by its bits, are rounded by, and their scale. Elements that are not finite
// get a scale of NaN, so that their products are NaN too; those of at most 1e-36 count as zeros, for the reciprocal
// must be finite. Returns whether they are finite.
inline bool factors_of(uint32_t largest, float* inverse, float* scale) {
  float magnitude;
  std::memcpy(&magnitude, &largest, 4);
  const bool finite = largest < 0x7f800000, zero = !finite || magnitude <= 1e-36f;
  *inverse = zero ? 0.0f : 127.0f / magnitude;
  *scale = zero ? (finite ? 0.0f : std::nanf("")) : magnitude / 127.0f;
  return finite;
}
#if !defined(TRIGRAPH_ISA_avx512) && !defined(TRIGRAPH_ISA_avx2)
// Factors of each 32 elements of a super-block; returns a bit for each that is finite.
inline unsigned factors_of_runs(const float* x, float* inverse, float* scale) {
  unsigned finite = 0;
  for (unsigned i = 0; i < kSuper / 32; ++i)
    finite |= static_cast<unsigned>(factors_of(largest_bits<32>(x + 32 * i), inverse + i, scale + i)) << i;
  return finite;
}
#endif

// Codes in [-127, 127], rounded to nearest even, or zeros where elements are not finite.
template <int kCount>
void round_finite(const float* x, float inverse, bool finite, int8_t* out) {
  if (finite)
    round_codes<kCount>(x, inverse, 12582912.0f, out);
  else
    std::memset(out, 0, kCount);
}
inline void quantise(const float* x, Int8Super* out) {
  float inverse;
  const bool finite = factors_of(largest_bits<kSuper>(x), &inverse, &out->scale);
  round_finite<kSuper>(x, inverse, finite, out->code);
}
inline void quantise(const float* x, Int8Blocks* out) {
  float inverse[kSuper / 32];
  const unsigned finite = factors_of_runs(x, inverse, out->scales);
  for (int i = 0; i < kSuper / 32; ++i) round_finite<32>(x + 32 * i, inverse[i], finite >> i & 1, out->code + 32 * i);
}

// Calls body(i, values) for each super-block i of a row.
template <class Body>
void each_super(const float* x, int64_t width, Body&& body) {
  const int64_t whole = width / kSuper;
  for (int64_t i = 0; i < whole; ++i) body(i, x + i * kSuper);
  if (width % kSuper == 0) return;
  alignas(64) float padded[kSuper] = {};
  std::memcpy(padded, x + whole * kSuper, static_cast<size_t>(width % kSuper) * 4);
  body(whole, static_cast<const float*>(padded));
}

template <class Part>
int64_t int8_bytes(int64_t width) {
  return supers(width) * static_cast<int64_t>(sizeof(Part));
}
template <class Part>
void prepare_int8(const float* x, int64_t width, void* prepared) {
  each_super(x, width, [prepared](int64_t s, const float* values) {
    Part& part = static_cast<Part*>(prepared)[s];
    quantise(values, &part);
    int16_t* centre = nullptr;
#if defined(TRIGRAPH_ISA_avx2) && !defined(__AVXVNNI__)
    if constexpr (std::is_same_v<Part, Int8Super>) centre = part.centre[0];  // of Q6_K
#endif
    sum_codes(part.code, part.sum16, part.sum32, centre);
  });
}

// Half a super-block's codes, their sums and scales, twice: for rows of weights of which two lie in a super-block.
inline Int8Blocks repeated(const Int8Blocks& part) {
  Int8Blocks both = part;
  std::memcpy(both.scales + kSuper / 64, part.scales, sizeof part.scales / 2);
  std::memcpy(both.code + kSuper / 2, part.code, kSuper / 2);
  std::memcpy(both.sum32 + kSuper / 64, part.sum32, sizeof part.sum32 / 2);
  return both;
}

inline int64_t float_bytes(int64_t width) { return supers(width) * static_cast<int64_t>(sizeof(FloatSuper)); }
inline void prepare_float(const float* x, int64_t width, void* prepared) {
  each_super(x, width, [prepared](int64_t s, const float* values) {
    std::memcpy(static_cast<FloatSuper*>(prepared)[s].value, values, sizeof(FloatSuper::value));
  });
}

}  // namespace trigraph::TRIGRAPH_ISA
