// Weights with rows side by side in memory too, as trigraph_repack makes them. kRowLanes rows of a matrix follow as
// many others; of each of their super-blocks, the first 32-bit words of all those rows come first, then the second
// ones, and in the end the half that words leave over. K types have as many bytes as plain rows, IQ2 and IQ3 types
// those of levels.h.
#pragma once

#include "lanes.h"

namespace trigraph::TRIGRAPH_ISA {

// The bytes of those rows from one of a super-block on.
struct Interleaved {
  const uint8_t* p;
  TRIGRAPH_INLINE Interleaved operator+(int64_t bytes) const { return {p + kRowLanes * bytes}; }
};

TRIGRAPH_INLINE void load_rows(Interleaved at, int64_t, Ints* out) {
  TRIGRAPH_UNROLL
  for (int v = 0; v < 4; ++v) out[v] = load_ints(at.p + 4 * kRowLanes * v);
}
TRIGRAPH_INLINE Ints load_halves(Interleaved at, int64_t) {
#if defined(TRIGRAPH_ISA_avx512)
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at.p)));
#else
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at.p)));
#endif
}

// What panels do with either layout: the next group of rows.
TRIGRAPH_INLINE const uint8_t* first_byte(const uint8_t* p) { return p; }
TRIGRAPH_INLINE const uint8_t* first_byte(Interleaved at) { return at.p; }
TRIGRAPH_INLINE const uint8_t* next_rows(const uint8_t* p, int64_t stride) { return p + kRowLanes * stride; }
TRIGRAPH_INLINE Interleaved next_rows(Interleaved at, int64_t stride) { return {at.p + kRowLanes * stride}; }

}  // namespace trigraph::TRIGRAPH_ISA
