// Eight floats, one for each chain of a product: AVX2 and AVX-512.
#pragma once

#include "lanes.h"

namespace trigraph::TRIGRAPH_ISA {

// Bytes between blocks of a weight row in use and those to ask memory for.
template <class F>
constexpr int64_t kAhead = 16384;

using Float8 = __m256;
TRIGRAPH_INLINE Float8 load_float8(const float* p) { return _mm256_loadu_ps(p); }
TRIGRAPH_INLINE Float8 splat_float8(float x) { return _mm256_set1_ps(x); }
TRIGRAPH_INLINE Float8 zero_float8() { return _mm256_setzero_ps(); }
TRIGRAPH_INLINE Float8 swapped_neighbours(Float8 a) { return _mm256_permute_ps(a, 0xb1); }  // lanes 1, 0, 3, 2 ..
TRIGRAPH_INLINE Float8 swapped_pairs(Float8 a) { return _mm256_permute_ps(a, 0x4e); }       // lanes 2, 3, 0, 1 ..
// Lane n first, those before it last.
TRIGRAPH_INLINE Float8 rotated(Float8 a, int64_t n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_permutevar8x32_ps(a, _mm256_add_epi32(lanes, _mm256_set1_epi32(static_cast<int>(n))));
}
// The first n lanes, zeros behind them.
TRIGRAPH_INLINE Float8 first(Float8 x, int64_t n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lanes)));
}
TRIGRAPH_INLINE float sum_of(Float8 chain) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(chain), _mm256_extractf128_ps(chain, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace trigraph::TRIGRAPH_ISA
