// Keys of groups of positions, and what rows score them with, on a CPU.
#pragma once

#include <algorithm>

#include "../paged_attention/tile.h"
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

// Scores of `count` keys, at most kSplit, for `rows` rows of queries [rows, heads, width], `stride` apart: sums over
// heads of what is positive of their products. keys: those, and kAhead more to ask memory for. memory: [rows, heads,
// kSplit].
template <class T>
void score_keys(const float* q, int64_t rows, int64_t heads, const T* const* keys, int64_t count, int64_t width,
                float* memory, float* scores, int64_t stride) {
  const int64_t blocks = (rows * heads + kTileRows - 1) / kTileRows, share = (kGroup + blocks - 1) / blocks;
  for (int64_t p = 0; p < count; p += kGroup) {
    for (int64_t block = 0, m = 0; block < blocks; ++block) {
      const int64_t n = rows * heads / blocks + (block < rows * heads % blocks);
      with_rows(n, [&](auto tile_rows) {
        dot<tile_rows>(q + m * width, Entries<T>{keys + p, block * share, share}, std::min(kGroup, count - p), width,
                       memory + m * kSplit + p);
      });
      m += n;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* sum = scores + r * stride;
    std::fill(sum, sum + count, 0.0f);
    for (int64_t h = 0; h < heads; ++h, memory += kSplit)
      for (int64_t i = 0; i < count; ++i) sum[i] += memory[i] < 0 ? 0 : memory[i];  // NaN stays NaN
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
