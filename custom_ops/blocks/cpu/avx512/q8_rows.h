// Rows of Q8_0: AVX-512 with VNNI. Two weight rows at a time, a super-block of each. Codes are interleaved so that each
// 64-bit lane holds those of one block: activations that are interleaved alike then need no sums over lanes, but for
// that of two neighbours. The chains of eight such pairs are added up together. Two rows of half a super-block lie in
// one.
#pragma once

#include <algorithm>

#include "../common/q8_activations.h"
#include "rows.h"

namespace trigraph::TRIGRAPH_ISA {

template <>
inline constexpr int64_t kAhead<Q8_0> = 4096;  // of two rows, which are read side by side

// Interleaves eight blocks of 32 codes, two in each vector: eight codes of each block, in four vectors, whose lanes are
// those of blocks 0, 2, 1, 3, 4, 6, 5 and 7.
TRIGRAPH_INLINE void interleave(const Ints* pair, Ints* out) {
  const Ints even[2] = {_mm512_unpacklo_epi64(pair[0], pair[1]), _mm512_unpacklo_epi64(pair[2], pair[3])};
  const Ints odd[2] = {_mm512_unpackhi_epi64(pair[0], pair[1]), _mm512_unpackhi_epi64(pair[2], pair[3])};
  out[0] = _mm512_shuffle_i32x4(even[0], even[1], 0x88);
  out[1] = _mm512_shuffle_i32x4(odd[0], odd[1], 0x88);
  out[2] = _mm512_shuffle_i32x4(even[0], even[1], 0xdd);
  out[3] = _mm512_shuffle_i32x4(odd[0], odd[1], 0xdd);
}

struct EvenOrder {
  alignas(64) uint8_t byte[64] = {};
  constexpr EvenOrder() {
    for (int i = 0; i < 64; ++i) byte[i] = static_cast<uint8_t>(i < 32 ? (i + 2) % 32 : i);
  }
};

// A super-block of activations as the interleaved codes of weights meet it, which have 128 added.
struct alignas(64) Q8Super {
  static constexpr EvenOrder kOrder = {};
  Ints code[4], bias;
  Floats scales;  // in the order of chains

  explicit Q8Super(const Int8Blocks& part) : scales(in_order(part.scales)) {
    Ints pair[4];
    for (int k = 0; k < 4; ++k)  // the first two codes of an even block come last
      pair[k] = _mm512_permutexvar_epi8(load_ints(kOrder.byte), load_ints(part.code + 64 * k));
    interleave(pair, code);
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m128i sums = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(part.sum32)), order);
    bias = _mm512_maskz_sub_epi32(0x5555, ints(0), _mm512_slli_epi64(_mm512_cvtepi16_epi64(sums), 7));
  }

 private:
  static Floats in_order(const float* scales) {
    const Ints order = _mm512_setr_epi32(0, 2, 0, 2, 1, 3, 1, 3, 4, 6, 4, 6, 5, 7, 5, 7);
    return _mm512_permutexvar_ps(order, _mm512_castps256_ps512(_mm256_loadu_ps(scales)));
  }
};

template <int M>
class Q8Rows {
 public:
  Q8Rows(int64_t row_bytes, int64_t width, const void* const* x)
      : row_bytes_(row_bytes), width_(width), supers_(q8_supers<Q8Super, M>(x, width)) {}

  void product(const uint8_t* w, int64_t n, float* const* y) const {
    if (width_ < kSuper)
      groups<2, true>(w, n, y);
    else if (width_ == kSuper)
      groups<1, true>(w, n, y);
    else
      groups<1, false>(w, n, y);
  }

 private:
  // Sixteen rows at a time: kRows of them in a super-block, or each in one (kSingle) or several.
  template <int kRows, bool kSingle>
  void groups(const uint8_t* w, int64_t n, float* const* y) const {
    constexpr int64_t kLines = kRowLanes / kRows, kPairs = kLines / 2;
    const int64_t line_bytes = kRows * row_bytes_;
    Floats sum[kPairs][M];
    for (int64_t j = 0; j < n; j += kRowLanes) {
      const int64_t rows = std::min<int64_t>(n - j, kRowLanes), lines = rows / kRows;
      for (int64_t k = 0; k < lines / 2; ++k, w += 2 * line_bytes) chains<kSingle>(w, w + line_bytes, sum[k]);
      if (lines % 2) chains<kSingle>(w, w, sum[lines / 2]);
      for (int64_t k = (lines + 1) / 2; k < kPairs; ++k)
        for (int i = 0; i < M; ++i) sum[k][i] = floats(0);
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) {
        const auto at = [&sum, i](int k) TRIGRAPH_INLINE_LAMBDA { return sum[k][i]; };
        Floats total;
        if constexpr (kRows == 1) {
          total = row_sums(halves_added(at(0), at(2)), halves_added(at(1), at(3)), halves_added(at(4), at(6)),
                           halves_added(at(5), at(7)));
        } else {  // the chains that are missing are 0
          const auto whole = [&at](int k) TRIGRAPH_INLINE_LAMBDA { return add(at(k), floats(0)); };
          const Ints order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
          total = _mm512_permutexvar_ps(order, row_sums(whole(0), whole(1), whole(2), whole(3)));
        }
        _mm512_mask_storeu_ps(y[i] + j, static_cast<__mmask16>((1u << rows) - 1), total);
      }
    }
  }

  // Chains c and c + 4 of two pairs.
  TRIGRAPH_INLINE static Floats halves_added(Floats a, Floats b) {
    return add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  TRIGRAPH_INLINE static Floats row_sums(Floats a, Floats b, Floats c, Floats d) {
    const Floats ab = add(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
    const Floats cd = add(_mm512_shuffle_ps(c, d, 0x88), _mm512_shuffle_ps(c, d, 0xdd));
    return add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  }

  // The chains of rows a and b: two of a and the same two of b in each quarter, 0 and 2, 1 and 3, 4 and 6, 5 and 7.
  template <bool kSingle>
  TRIGRAPH_INLINE void chains(const uint8_t* a, const uint8_t* b, Floats* sum) const {
    constexpr int kBytes = super_bytes<Q8_0>;
    const __m256i order = _mm256_setr_epi16(8, 10, 24, 26, 9, 11, 25, 27, 12, 14, 28, 30, 13, 15, 29, 31);
    Floats chain[M];
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) chain[i] = floats(0);
    const Q8Super* part = supers_;
    const int64_t supers = kSingle ? 1 : width_ / kSuper;
    for (int64_t s = 0; s < supers; ++s, a += kBytes, b += kBytes, part += M) {
      Ints first[4], second[4];
      const __m256i high = codes(a, first), higher = codes(b, second);
      const Floats d = _mm512_cvtph_ps(_mm256_permutex2var_epi16(high, order, higher));
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) {
        Ints dot[2] = {part[i].bias, part[i].bias};
        TRIGRAPH_UNROLL
        for (int q = 0; q < 4; ++q) {
          const Ints x = part[i].code[q];
          dot[0] = _mm512_dpbusd_epi32(dot[0], first[q], x);
          dot[1] = _mm512_dpbusd_epi32(dot[1], second[q], x);
        }
        const Floats lanes[2] = {_mm512_castsi512_ps(dot[0]), _mm512_castsi512_ps(dot[1])};
        const Ints total = add32(_mm512_castps_si512(_mm512_shuffle_ps(lanes[0], lanes[1], 0x88)),
                                 _mm512_castps_si512(_mm512_shuffle_ps(lanes[0], lanes[1], 0xdd)));
        chain[i] = fmadd(part[i].scales, mul(d, to_floats(total)), chain[i]);
      }
    }
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) sum[i] = chain[i];
  }

  // The interleaved codes of a super-block with 128 added, an even block's first two last. Returns the halves of its
  // blocks, in the upper half of a vector. Two blocks are four bytes, the half and two codes, and 64 more: 30 codes,
  // the other half, 32 codes.
  TRIGRAPH_INLINE static __m256i codes(const uint8_t* p, Ints* code) {
    for (int i = 0; i < super_bytes<Q8_0>; i += 64) prefetch(p + kAhead<Q8_0> + i);
    constexpr uint32_t kHalf = 1 << 15;  // the place of the other half, among words of two bytes
    Ints pair[4];
    __m256i half[4];
    TRIGRAPH_UNROLL
    for (int k = 0; k < 4; ++k, p += 2 * Q8_0::kBytes) {
      int32_t word;
      std::memcpy(&word, p, sizeof word);
      const Ints start = ints(word), rest = load_ints(p + 4);
      pair[k] = sub8(_mm512_mask_mov_epi16(rest, kHalf, start), bytes(-128));
      half[k] = _mm512_castsi512_si256(_mm512_mask_mov_epi16(start, kHalf, rest));
    }
    interleave(pair, code);
    return _mm256_unpackhi_epi64(_mm256_unpackhi_epi32(half[0], half[1]), _mm256_unpackhi_epi32(half[2], half[3]));
  }

  int64_t row_bytes_, width_;
  const Q8Super* supers_;
};

}  // namespace trigraph::TRIGRAPH_ISA
