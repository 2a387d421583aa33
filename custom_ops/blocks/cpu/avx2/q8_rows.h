// Rows of Q8_0: AVX2, or AVX-VNNI in registers of as many bits. A super-block at a time, whose codes are interleaved so
// that each 64-bit lane holds those of one block: activations that are interleaved alike then need no sums over lanes,
// but for that of two neighbours. The chains of eight rows are added up together. Two rows of half a super-block lie in
// one.
#pragma once

#include <algorithm>

#include "../common/q8_activations.h"
#include "rows.h"

namespace trigraph::TRIGRAPH_ISA {

// Interleaves blocks 0, 1, 4 and 5, or 2, 3, 6 and 7, of 32 codes: eight codes of each block, in four vectors.
TRIGRAPH_INLINE void interleave(const Ints* block, Ints* out) {
  const Ints even[2] = {_mm256_unpacklo_epi64(block[0], block[1]), _mm256_unpacklo_epi64(block[4], block[5])};
  const Ints odd[2] = {_mm256_unpackhi_epi64(block[0], block[1]), _mm256_unpackhi_epi64(block[4], block[5])};
  out[0] = _mm256_permute2x128_si256(even[0], even[1], 0x20);
  out[1] = _mm256_permute2x128_si256(even[0], even[1], 0x31);
  out[2] = _mm256_permute2x128_si256(odd[0], odd[1], 0x20);
  out[3] = _mm256_permute2x128_si256(odd[0], odd[1], 0x31);
}
TRIGRAPH_INLINE void interleave_super(Ints* code) {
  Ints block[8];
  std::memcpy(block, code, sizeof block);
  interleave(block, code);
  interleave(block + 2, code + 4);
}

// A super-block of activations as the codes of weights meet it. For a single row, interleaving them takes as long
// without VNNI as what it saves.
template <bool kInterleaved>
struct alignas(32) Q8Super {
  Ints code[8];
#if defined(__AVXVNNI__)
  Ints bias[2];  // takes off the 128 that is added to weights
#endif
  Float8 scales;

  explicit Q8Super(const Int8Blocks& part) : scales(load_float8(part.scales)) {
    for (int b = 0; b < 8; ++b) code[b] = load_ints(part.code + 32 * b);
    if (kInterleaved) interleave_super(code);
#if defined(__AVXVNNI__)
    for (int k = 0; k < 2; ++k) {
      const int16_t* sum = part.sum32 + 2 * k;
      bias[k] = _mm256_setr_epi32(-128 * sum[0], 0, -128 * sum[1], 0, -128 * sum[4], 0, -128 * sum[5], 0);
    }
#endif
  }

  // The dot products of each block, with the codes of a super-block of weights.
  TRIGRAPH_INLINE Ints dots(const Ints* weights) const {
    if constexpr (kInterleaved) {
      const Floats two[2] = {as_floats(pairs(weights, 0)), as_floats(pairs(weights, 1))};
      return add32(_mm256_castps_si256(_mm256_shuffle_ps(two[0], two[1], 0x88)),
                   _mm256_castps_si256(_mm256_shuffle_ps(two[0], two[1], 0xdd)));
    } else {
      Ints sums[8];
      TRIGRAPH_UNROLL
      for (int b = 0; b < 8; ++b) sums[b] = signed_dots(weights[b], code[b]);
      return sum_lanes(sums);
    }
  }

 private:
  // Two sums for each block of four interleaved vectors.
  TRIGRAPH_INLINE Ints pairs(const Ints* weights, int k) const {
#if defined(__AVXVNNI__)
    Ints sum = bias[k];
    TRIGRAPH_UNROLL
    for (int q = 4 * k; q < 4 * k + 4; ++q) sum = _mm256_dpbusd_avx_epi32(sum, weights[q], code[q]);
    return sum;
#else
    const auto dot = [&](int q) TRIGRAPH_INLINE_LAMBDA { return signed_dots(weights[4 * k + q], code[4 * k + q]); };
    return add32(add32(dot(0), dot(1)), add32(dot(2), dot(3)));
#endif
  }
};

template <int M>
class Q8Rows {
#if defined(__AVXVNNI__)
  static constexpr bool kInterleaved = true;
#else
  static constexpr bool kInterleaved = M > 1;
#endif
  using Super = Q8Super<kInterleaved>;

 public:
  Q8Rows(int64_t row_bytes, int64_t width, const void* const* x)
      : row_bytes_(row_bytes), width_(width), supers_(q8_supers<Super, M>(x, width)) {}

  void product(const uint8_t* w, int64_t n, float* const* y) const {
    if (width_ < kSuper)
      groups<2>(w, n, y);
    else
      groups<1>(w, n, y);
  }

 private:
  // Eight rows at a time: kRows of them in a super-block, or each in one or several.
  template <int kRows>
  void groups(const uint8_t* w, int64_t n, float* const* y) const {
    constexpr int64_t kLines = kRowLanes / kRows;
    Float8 sum[kLines][M];
    for (int64_t j = 0; j < n; j += kRowLanes) {
      const int64_t rows = std::min<int64_t>(n - j, kRowLanes), lines = rows / kRows;
      for (int64_t k = 0; k < lines; ++k, w += kRows * row_bytes_) chains(w, sum[k]);
      for (int64_t k = lines; k < kLines; ++k)
        for (int i = 0; i < M; ++i) sum[k][i] = zero_float8();
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) {
        const auto at = [&sum, i](int k) TRIGRAPH_INLINE_LAMBDA { return sum[k][i]; };
        Float8 total;
        if constexpr (kRows == 1) {
          total = row_sums(halves_added(at(0), at(4)), halves_added(at(1), at(5)), halves_added(at(2), at(6)),
                           halves_added(at(3), at(7)));
        } else {  // the chains that are missing are 0
          const auto whole = [&at](int k) TRIGRAPH_INLINE_LAMBDA { return add(at(k), zero_float8()); };
          const Ints order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
          total = _mm256_permutevar8x32_ps(row_sums(whole(0), whole(1), whole(2), whole(3)), order);
        }
        if (rows == kRowLanes) {
          store(y[i] + j, total);
        } else {
          float lanes[kRowLanes];
          store(lanes, total);
          std::memcpy(y[i] + j, lanes, static_cast<size_t>(rows) * sizeof(float));
        }
      }
    }
  }

  // Chains c and c + 4 of two rows.
  TRIGRAPH_INLINE static Float8 halves_added(Float8 a, Float8 b) {
    return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
  TRIGRAPH_INLINE static Float8 row_sums(Float8 a, Float8 b, Float8 c, Float8 d) {
    const Float8 ab = add(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    const Float8 cd = add(_mm256_shuffle_ps(c, d, 0x44), _mm256_shuffle_ps(c, d, 0xee));
    return add(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xdd));
  }

  // The chains of the super-blocks at p.
  TRIGRAPH_INLINE void chains(const uint8_t* p, Float8* sum) const {
    Float8 chain[M];
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) chain[i] = zero_float8();
    const Super* part = supers_;
    for (int64_t s = 0; s < supers(width_); ++s, p += super_bytes<Q8_0>, part += M) {
      for (int i = 0; i < super_bytes<Q8_0>; i += 64) prefetch(p + kAhead<Q8_0> + i);
      Ints code[8];
      const Float8 d = codes(p, code);
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) {
        chain[i] = fmadd(part[i].scales, _mm256_mul_ps(d, to_floats(part[i].dots(code))), chain[i]);
      }
    }
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) sum[i] = chain[i];
  }

  // The codes of a super-block, and the scales of its blocks.
  TRIGRAPH_INLINE static Float8 codes(const uint8_t* p, Ints* code) {
    alignas(16) uint16_t d[8];
    TRIGRAPH_UNROLL
    for (int b = 0; b < 8; ++b, p += Q8_0::kBytes) {
      std::memcpy(d + b, p, 2);
      code[b] = load_ints(p + 2);
#if defined(__AVXVNNI__)
      code[b] = sub8(code[b], bytes(-128));
#endif
    }
    if (kInterleaved) interleave_super(code);
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(d)));
  }

  int64_t row_bytes_, width_;
  const Super* supers_;
};

}  // namespace trigraph::TRIGRAPH_ISA
