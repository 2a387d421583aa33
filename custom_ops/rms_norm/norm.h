// The norm of one row on a CPU.
#pragma once

#include "../simd.h"

namespace trigraph::TRIGRAPH_ISA {

// 1 / sqrt(mean(x^2) + eps). Squares are added in order in each lane, then over the lanes.
inline float norm_factor(const float* x, int64_t width, float eps) {
  vf squares = zero();
  for (int64_t i = 0; i < width; i += VL) {
    const vf part = load_first(x + i, width - i);
    squares = fmadd(part, part, squares);
  }
  return 1 / std::sqrt(reduce_add(squares) / static_cast<float>(width) + eps);
}

// y = x norm_factor(x) weight
inline void normalize(const float* x, const float* weight, int64_t width, float eps, float* y) {
  const vf factor = splat(norm_factor(x, width, eps));
  for (int64_t i = 0; i < width; i += VL) {
    const int64_t left = width - i;
    store_first(y + i, mul(mul(load_first(x + i, left), factor), load_first(weight + i, left)), left);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
