// Products of weight rows with int8 activations. The definition, which every instruction set and CUDA equal to the bit:
//
//   step b of a weight row, counted from its start, has the exact integers
//       S = sum over its runs of scale * sum(code * activation code)
//       T = sum over its runs of min * sum(activation code)
//   and the value  v = fma(d, float(S), -(dmin * float(T))),  or d * float(S) for a type without mins;
//   chain[b mod 8] = fma(scale of its activations, v, chain[b mod 8]), in the order of steps, from +0;
//   the product is ((c0 + c4) + (c2 + c6)) + ((c1 + c5) + (c3 + c7)).
//
// Conversions are to nearest even. A step is 256 elements of a K, TQ or IQ type, 32 of any other and of IQ4_NL. Scales
// of NVFP4 are too wide for integers: S is the sum(code * activation code) of the first of two runs, d its scale; T and
// -dmin are those of the second one.
#pragma once

#include "activations.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kChains = 8;
constexpr int kGroup = 64;  // activation rows for which a super-block is unpacked once

inline float sum_of(const float* chain) {
  return ((chain[0] + chain[4]) + (chain[2] + chain[6])) + ((chain[1] + chain[5]) + (chain[3] + chain[7]));
}

// Adds the first `steps` steps of a super-block to the chains of one activation row. `first`: of the step's number.
template <class F>
void add_super(const Codes& weight, int steps, int64_t first, const Int8Of<F>& x, float* chain) {
  constexpr int kRuns = kStep<F> / F::kRun;
  for (int b = 0; b < steps; ++b) {
    int32_t S = 0, T = 0;
    for (int run = b * kRuns; run < (b + 1) * kRuns; ++run) {
      int32_t dot = 0, sum = 0;
      for (int i = run * F::kRun; i < (run + 1) * F::kRun; ++i) {
        dot += weight.code[i] * x.code[i];
        sum += x.code[i];
      }
      if constexpr (F::kPaired)
        (run % 2 ? T : S) = dot;
      else
        S += weight.scale[run] * dot;
      if constexpr (F::kMin) T += weight.min[run] * sum;
    }
    float value = weight.d[b] * static_cast<float>(S);
    if constexpr (kTwoSums<F>)
      value = std::fma(weight.d[b], static_cast<float>(S), -(weight.dmin[b] * static_cast<float>(T)));
    float& c = chain[(first + b) % kChains];
    c = std::fma(x.scale_of(b), value, c);
  }
}

// One weight row with up to kGroup activation rows.
template <class F>
void int8_row(const uint8_t* w, int64_t width, const void* const* x, int64_t m, float* const* y, int64_t j) {
  float chain[kGroup][kChains] = {};
  for (int64_t s = 0; s < supers(width); ++s) {
    const int count = static_cast<int>(width - s * kSuper < kSuper ? width - s * kSuper : kSuper);
    Codes codes;
    decode<F>(w + s * super_bytes<F>, count, &codes);
    for (int64_t i = 0; i < m; ++i)
      add_super<F>(codes, count / kStep<F>, s * (kSuper / kStep<F>), static_cast<const Int8Of<F>*>(x[i])[s], chain[i]);
  }
  for (int64_t i = 0; i < m; ++i) y[i][j] = sum_of(chain[i]);
}

template <class F>
void int8_product(const uint8_t* w, int64_t n, int64_t row_bytes, int64_t width, const void* const* x, int64_t m,
                  float* const* y) {
  for (int64_t i = 0; i < m; i += kGroup)
    for (int64_t j = 0; j < n; ++j)
      int8_row<F>(w + j * row_bytes, width, x + i, m - i < kGroup ? m - i : kGroup, y + i, j);
}

}  // namespace trigraph::TRIGRAPH_ISA
