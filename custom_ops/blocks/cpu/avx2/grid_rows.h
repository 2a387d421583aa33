// Rows of the IQ types of three bits: AVX2 or AVX-VNNI. Putting vectors together from a table of levels is what takes
// time; signs are given to the activations.
#pragma once

#include "../common/grid_lanes.h"
#include "rows.h"

namespace trigraph::TRIGRAPH_ISA {

// The indices of a block, those of 32 elements at a time.
template <class F>
class RowIndices;

template <>
class RowIndices<IQ3_XXS> {
 public:
  TRIGRAPH_INLINE explicit RowIndices(const uint8_t* p) : index_(p + 2) {}
  TRIGRAPH_INLINE const uint8_t* of(int part) const { return index_ + 8 * part; }

 private:
  const uint8_t* index_;
};

template <>
class RowIndices<IQ3_S> {
 public:
  TRIGRAPH_INLINE explicit RowIndices(const uint8_t* p) {
    const __m128i bit = _mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128), ninth = _mm_set1_epi16(256);
    TRIGRAPH_UNROLL
    for (int part = 0; part < 8; ++part) {
      const __m128i low = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 2 + 8 * part)));
      const __m128i own = _mm_and_si128(_mm_set1_epi16(p[66 + part]), bit);
      const __m128i high = _mm_and_si128(_mm_cmpeq_epi16(own, bit), ninth);
      _mm_store_si128(reinterpret_cast<__m128i*>(index_[part]), _mm_or_si128(low, high));
    }
  }
  TRIGRAPH_INLINE const uint16_t* of(int part) const { return index_[part]; }

 private:
  alignas(16) uint16_t index_[8][8];
};

// Levels of 32 elements by eight indices, which are taken apart in registers: a load each would cost more.
template <class F, class Index>
TRIGRAPH_INLINE Ints row_levels(const Index* index) {
  constexpr int kBits = 8 * sizeof(Index), kWord = 64 / kBits;
  uint64_t words[8 / kWord];
  std::memcpy(words, index, sizeof words);
  const auto at = [&words](int i) TRIGRAPH_INLINE_LAMBDA {
    return kLevels<F>.level[static_cast<Index>(words[i / kWord] >> kBits * (i % kWord))];
  };
  const auto pair = [&at](int i) TRIGRAPH_INLINE_LAMBDA {
    int32_t first;
    std::memcpy(&first, at(i), 4);
    return _mm_unpacklo_epi32(_mm_cvtsi32_si128(first), _mm_loadu_si128(reinterpret_cast<const __m128i*>(at(i + 1))));
  };
  const auto sixteen = [&pair](int i) TRIGRAPH_INLINE_LAMBDA { return _mm_unpacklo_epi64(pair(i), pair(i + 2)); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(sixteen(0)), sixteen(4), 1);
}

// Signs of a block and the scales of its runs, those of 32 elements in each lane.
TRIGRAPH_INLINE void row_head(IQ3_XXS, const uint8_t* p, Ints* signs, Ints* scales) {
  const Ints word = load_ints(p + 66);
  *signs = even_signs(word), *scales = right32(word, 28);
}
TRIGRAPH_INLINE void row_head(IQ3_S, const uint8_t* p, Ints* signs, Ints* scales) {
  const Ints shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  *signs = load_ints(p + 74), *scales = both(_mm256_srlv_epi32(broadcast(p + 106), shifts), ints(15));
}

template <class F>
struct ThreeBitRows {
  static constexpr int kMost = F::kEntries == 256 ? 4 : 2;

  template <int M, class Block, class Part, class Fetch>
  TRIGRAPH_INLINE static void values(Block&& block, Part&& part, Fetch&& fetch, Float8* out) {
    Ints dots[M][8];
    float d[8];
    TRIGRAPH_LOOP
    for (int l = 0; l < 8; ++l) {
      const uint8_t* p = block(l);
      fetch(l);
      d[l] = F::d(p);
      const RowIndices<F> indices(p);
      Ints signs, numbers, sum[M];
      row_head(F(), p, &signs, &numbers);
      const Ints odd = add32(add32(numbers, numbers), ints(1)), scales = either(odd, left32(odd, 16));
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) sum[i] = ints(0);
      TRIGRAPH_UNROLL
      for (int upper = 0; upper < 2; ++upper) {
        const Ints four_signs = either_quad(signs, upper), four_scales = either_quad(scales, upper);
        each_of_four([&](auto k) TRIGRAPH_INLINE_LAMBDA {
          constexpr int kPart = decltype(k)::value;
          const int v = 4 * upper + kPart;
          const Ints level = row_levels<F>(indices.of(v)), minus = minus_where<kPart>(four_signs);
          const Ints scale = _mm256_shuffle_epi32(four_scales, 0x55 * kPart);
          TRIGRAPH_UNROLL
          for (int i = 0; i < M; ++i) {
            const Ints x = _mm256_sign_epi8(load_ints(part(i, l).code + 32 * v), minus);
            sum[i] = add_pairs(sum[i], _mm256_maddubs_epi16(level, x), scale);
          }
        });
      }
      TRIGRAPH_UNROLL
      for (int i = 0; i < M; ++i) dots[i][l] = sum[i];
    }
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) out[i] = _mm256_mul_ps(load_float8(d), to_floats(sum_lanes(dots[i])));
  }

 private:
  template <class Body>
  TRIGRAPH_INLINE static void each_of_four(Body&& body) {
    body(std::integral_constant<int, 0>()), body(std::integral_constant<int, 1>());
    body(std::integral_constant<int, 2>()), body(std::integral_constant<int, 3>());
  }
  // -1 in the bytes whose bits of dword k are set, 1 in the others.
  template <int k>
  TRIGRAPH_INLINE static Ints minus_where(Ints four) {
    const Ints order = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const Ints bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
    const Ints byte = _mm256_shuffle_epi8(four, add8(order, bytes(4 * k)));
    return either(_mm256_cmpeq_epi8(both(byte, bit), bit), bytes(1));
  }
};
template <>
struct RowLoop<IQ3_XXS> : ThreeBitRows<IQ3_XXS> {};
template <>
struct RowLoop<IQ3_S> : ThreeBitRows<IQ3_S> {};

}  // namespace trigraph::TRIGRAPH_ISA
