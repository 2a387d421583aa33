// What rows of n-grams add to residual streams on a CPU.
#pragma once

#include <algorithm>

#include "../rms_norm/norm.h"
#include "../simd.h"
#include "hash.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {

// Gates one stream of one row: y = x + v with v = gate value, and the column that the convolution reads, v's norm. The
// gate is what key and query have in common.
inline void gate_stream(const float* x, const float* key, const float* query, const float* value, const float* norm,
                        int64_t hidden, float eps, float* y, float* column) {
  vf sum = zero();
  for (int64_t j = 0; j < hidden; j += VL)
    sum = fmadd(load_first(key + j, hidden - j), load_first(query + j, hidden - j), sum);
  const vf factor = splat(sigmoid(signed_root(reduce_add(sum) / std::sqrt(static_cast<float>(hidden)))));
  for (int64_t j = 0; j < hidden; j += VL) {
    const int64_t left = hidden - j;
    const vf gated = mul(factor, load_first(value + j, left));
    store_first(y + j, add(load_first(x + j, left), gated), left);
    store_first(column + j, gated, left);
  }
  normalize(column, norm, hidden, eps, column);
}

// y += silu(convolution) of `tokens` rows of `width` channels, for channels `first` to `first + count`. Row t's taps
// meet columns t, t + dilation and so on; nullptr: zeros.
inline void convolve_channels(const float* const* columns, int64_t tokens, int64_t dilation, const float* taps,
                              int64_t first, int64_t count, int64_t width, float* y) {
  constexpr int64_t kTaps = NgramMixSignature::kTaps;
  for (int64_t c = first; c < first + count; c += VL) {
    const int64_t left = first + count - c;
    float turned[kTaps][VL] = {};
    for (int64_t i = 0; i < std::min<int64_t>(left, VL); ++i)
      for (int64_t j = 0; j < kTaps; ++j) turned[j][i] = taps[(c + i) * kTaps + j];
    for (int64_t t = 0; t < tokens; ++t) {
      vf sum = zero();
      for (int64_t j = 0; j < kTaps; ++j) {
        const float* column = columns[t + j * dilation];
        const vf part = column ? load_first(column + c, left) : zero();
        sum = j ? fmadd(part, load(turned[j]), sum) : mul(part, load(turned[j]));
      }
      float* to = y + t * width + c;
      store_first(to, add(load_first(to, left), silu(sum)), left);
    }
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
