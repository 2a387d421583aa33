// Keys of groups of positions, and what rows score them with, on a CPU.
#pragma once

#include "../simd.h"

namespace trigraph::TRIGRAPH_ISA {

inline vf load_key(const float* p) { return load(p); }
inline vf load_key(const uint16_t* p) { return load_f16(p); }
inline void store_key(float* p, vf x) { store(p, x); }
inline void store_key(uint16_t* p, vf x) { store_f16(p, x); }

// The mean of `group` raw keys, in order: of all but the last one, `own`, as they are stored. `earlier(n, c, memory)`
// is where elements from c on of the key n before the last one lie, which it may write to `memory` [VL].
template <class T, class Earlier>
void pool_keys(const float* own, int64_t group, int64_t width, Earlier&& earlier, float* out) {
  const vf part = splat(1 / static_cast<float>(group));
  for (int64_t c = 0; c < width; c += VL) {
    vf sum = zero();
    for (int64_t n = group - 1; n; --n) {
      T memory[VL];
      const vf key = load_key(earlier(n, c, memory));
      sum = n == group - 1 ? key : add(sum, key);
    }
    sum = group == 1 ? load(own + c) : add(sum, load(own + c));
    store(out + c, mul(sum, part));
  }
}

// The sum over heads of what is positive of their products with a key.
template <class T>
float score_key(const float* q, const T* key, int64_t heads, int64_t width) {
  float sum = 0;
  for (int64_t h = 0; h < heads; ++h, q += width) {
    vf product = zero();
    for (int64_t i = 0; i < width; i += VL) product = fmadd(load(q + i), load_key(key + i), product);
    const float one = reduce_add(product);
    sum += one < 0 ? 0 : one;  // NaN stays NaN
  }
  return sum;
}

}  // namespace trigraph::TRIGRAPH_ISA
