// Rows of the IQ types of three bits: AVX-512 with VBMI. A super-block has 64 indices, a byte each, so that one vector
// of them looks up all its entries; signs are given to the activations.
#pragma once

#include "grids.h"
#include "rows.h"

namespace trigraph::TRIGRAPH_ISA {

// The first cache holds a grid too.
template <>
inline constexpr int64_t kAhead<IQ3_XXS> = 4096;
template <>
inline constexpr int64_t kAhead<IQ3_S> = 4096;

// Signs of 64 elements in each mask, the ninth bits of indices, and the scales of runs, those of 32 elements in each
// lane.
struct GridHead {
  uint64_t signs[4], ninth;
  __m256i scales;
};
TRIGRAPH_INLINE GridHead grid_head(IQ3_XXS, const uint8_t* p) {
  GridHead head;
  const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 66));
  const Ints signs = even_signs(_mm512_castsi256_si512(word));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(head.signs), _mm512_castsi512_si256(signs));
  head.ninth = 0, head.scales = _mm256_srli_epi32(word, 28);
  return head;
}
TRIGRAPH_INLINE GridHead grid_head(IQ3_S, const uint8_t* p) {
  GridHead head;
  int32_t nibbles;
  std::memcpy(&head.ninth, p + 66, sizeof head.ninth);
  std::memcpy(head.signs, p + 74, sizeof head.signs);
  std::memcpy(&nibbles, p + 106, sizeof nibbles);
  const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  head.scales = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(nibbles), shifts), _mm256_set1_epi32(15));
  return head;
}

// Which bytes of two planes make the entries of 64 elements: each byte twice.
struct PairOrder {
  alignas(64) uint8_t byte[4][64] = {};
  constexpr PairOrder() {
    for (int v = 0; v < 4; ++v)
      for (int i = 0; i < 64; ++i) byte[v][i] = static_cast<uint8_t>(16 * v + i / 4 + i % 4 / 2 * 64);
  }
};
inline constexpr PairOrder kPairOrder;

// The levels of a super-block.
template <class F>
TRIGRAPH_INLINE void row_levels(Ints index, uint64_t ninth, Ints* level) {
  const __mmask64 bits[2] = {_mm512_movepi8_mask(index), ninth};
  const Ints first = table_bytes<F::kEntries>(kPlanes<F>.plane[0], index, bits);
  const Ints second = table_bytes<F::kEntries>(kPlanes<F>.plane[1], index, bits);
  const Ints shifts = _mm512_set1_epi64(0x3c302c201c100c00);  // to the number of each byte; bits above it are ignored
  TRIGRAPH_UNROLL
  for (int v = 0; v < 4; ++v) {
    const Ints pairs = _mm512_permutex2var_epi8(first, load_ints(kPairOrder.byte[v]), second);
    level[v] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shifts, pairs), load_ints(kPlanes<F>.level));
  }
}

template <class F>
struct ThreeBitRows {
  static constexpr int kMost = F::kEntries == 256 ? 3 : 4;

  template <int M, class Block, class Part, class Fetch>
  TRIGRAPH_INLINE static void values(Block&& block, Part&& part, Fetch&& fetch, Float8* out) {
    float d[8];
    __m256i dots[M];
    sum_lanes<M>(
        [&](auto l, Ints* sum) TRIGRAPH_INLINE_LAMBDA {
          const uint8_t* p = block(l);
          fetch(l);
          d[l] = F::d(p);
          const GridHead head = grid_head(F(), p);
          Ints level[4], scales[2];
          row_levels<F>(load_ints(p + 2), head.ninth, level);
          const __m256i odd = _mm256_add_epi32(_mm256_add_epi32(head.scales, head.scales), _mm256_set1_epi32(1));
          TRIGRAPH_UNROLL
          for (int k = 0; k < 2; ++k) scales[k] = _mm512_permutexvar_epi16(order(k), _mm512_castsi256_si512(odd));
          TRIGRAPH_UNROLL
          for (int i = 0; i < M; ++i) {
            const int8_t* x = part(i, l).code;
            const auto dot = [&](int v) TRIGRAPH_INLINE_LAMBDA {
              const Ints own = load_ints(x + 64 * v);
              return _mm512_dpbusd_epi32(ints(0), level[v], _mm512_mask_sub_epi8(own, head.signs[v], ints(0), own));
            };
            sum[i] = add_pairs(ints(0), _mm512_packs_epi32(dot(0), dot(1)), scales[0]);
            sum[i] = add_pairs(sum[i], _mm512_packs_epi32(dot(2), dot(3)), scales[1]);
          }
        },
        dots);
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) out[i] = _mm256_mul_ps(load_float8(d), _mm256_cvtepi32_ps(dots[i]));
  }

 private:
  // The low words of lanes 4 k to 4 k + 3, four times each, as packs joins the sums of two vectors.
  TRIGRAPH_INLINE static Ints order(int k) {
    const int64_t word = 0x0001000100010001, r = 8 * k;
    return _mm512_setr_epi64(r * word, (r + 4) * word, r * word, (r + 4) * word, (r + 2) * word, (r + 6) * word,
                             (r + 2) * word, (r + 6) * word);
  }
};
template <>
struct RowLoop<IQ3_XXS> : ThreeBitRows<IQ3_XXS> {};
template <>
struct RowLoop<IQ3_S> : ThreeBitRows<IQ3_S> {};

}  // namespace trigraph::TRIGRAPH_ISA
