// What is computed for one row of residual streams on a CPU.
#pragma once

#include "../simd.h"

namespace trigraph::TRIGRAPH_ISA {

// sum = x + 2 sigmoid(inject / streams) block, of one stream.
inline void add_block(const float* x, const float* block, float inject, int64_t streams, int64_t hidden, float* sum) {
  const vf factor = splat(2 * sigmoid(inject / static_cast<float>(streams)));
  for (int64_t i = 0; i < hidden; i += VL) {
    const int64_t left = hidden - i;
    store_first(sum + i, fmadd(factor, load_first(block + i, left), load_first(x + i, left)), left);
  }
}

// The mean of the streams of x, each times sigmoid(logits). They are added in order, the first one to nothing.
inline void mean_of_streams(const float* x, const float* logits, int64_t streams, int64_t hidden, float* y) {
  const vf part = splat(1 / static_cast<float>(streams));
  for (int64_t i = 0; i < hidden; i += VL) {
    const int64_t left = hidden - i;
    vf sum = mul(sigmoid(load_first(logits + i, left)), load_first(x + i, left));
    for (int64_t at = hidden + i; at < streams * hidden; at += hidden)
      sum = add(sum, mul(sigmoid(load_first(logits + at, left)), load_first(x + at, left)));
    store_first(y + i, mul(sum, part), left);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
