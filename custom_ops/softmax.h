// Softmax: the sum that it divides by, and the parts of one over many values, which is made in splits.
#pragma once

#include <algorithm>
#include <limits>

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

// The largest of no scores: what merging multiplies with has no NaN.
constexpr float kNoScore = std::numeric_limits<float>::lowest();

// Turns `count` scores into exp(score - largest), those of the first `hidden` into 0; returns largest and the sum.
struct Weights {
  float largest, sum;
};
inline Weights exponentiate(float* scores, int64_t count, int64_t hidden = 0) {
  std::fill(scores, scores + hidden, kNoScore);
  const int64_t whole = count / VL * VL, padded = whole < count ? whole + VL : whole;
  for (int64_t p = count; p < padded; ++p) scores[p] = scores[0];
  vf most = load(scores);
  for (int64_t p = VL; p < padded; p += VL) most = max(most, load(scores + p));
  float lanes[VL];
  store(lanes, most);
  const float largest = *std::max_element(lanes, lanes + VL);
  vf sum = zero();
  for (int64_t p = 0; p < padded; p += VL) {
    store(scores + p, exp(sub(load(scores + p), splat(largest))));
    if (p == whole) std::fill(scores + count, scores + padded, 0.0f);
    if (p < hidden) std::fill(scores + p, scores + std::min(hidden, p + VL), 0.0f);
    sum = add(sum, load(scores + p));
  }
  return {largest, reduce_add(sum)};
}

// Puts a softmax over further values behind one over those before: what it weights is then before * keep + further *
// take. Of both there is the largest score, and the sum of e^(score - largest).
struct Merge {
  vf keep, take;

  Merge(float* largest, float* sum, float further_largest, float further_sum) {
    const float most = std::max(*largest, further_largest);
    keep = exp(splat(*largest - most)), take = exp(splat(further_largest - most));
    *largest = most;
    *sum = lane0(fmadd(splat(*sum), keep, mul(splat(further_sum), take)));
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
