// The sum that a softmax divides by.
#pragma once

#include "simd.h"

namespace trigraph::TRIGRAPH_ISA {

// Sum of e^(x - max) over n values: lanes take every sixteenth value, in order, and then add up.
inline float exp_sum(const float* x, int64_t n, float max) {
  vf sum = zero();
  for (int64_t i = 0; i < n; i += VL) {
    vf term = exp(sub(load_first(x + i, n - i), splat(max)));
    if (n - i < VL) {  // e^(0 - max) of the lanes past the end does not count
      float lanes[VL];
      store(lanes, term);
      term = load_first(lanes, n - i);
    }
    sum = add(sum, term);
  }
  return reduce_add(sum);
}

}  // namespace trigraph::TRIGRAPH_ISA
