// Levels of grids on AVX-512 with VBMI: look-ups of bytes in registers, and none in memory.
#pragma once

#include "../../formats/formats.h"
#include "lanes.h"

namespace trigraph::TRIGRAPH_ISA {

// The two bytes of the entries, apart, and the levels by their numbers, repeated.
template <class F>
struct GridPlanes {
  alignas(64) uint8_t plane[2][F::kEntries] = {}, level[64] = {};
  constexpr GridPlanes() {
    for (int k = 0; k < F::kEntries; ++k)
      for (int b = 0; b < 2; ++b) plane[b][k] = static_cast<uint8_t>(F::grid()[k] >> 8 * b);
    for (int i = 0; i < 64; ++i) level[i] = static_cast<uint8_t>(F::level(i & ((1 << 16 / F::kOf) - 1)));
  }
};
template <class F>
inline constexpr GridPlanes<F> kPlanes;

// Bytes of a table of kCount; bit i of each index, from bit 7 on, is bits[i].
template <int kCount>
TRIGRAPH_INLINE Ints table_bytes(const uint8_t* table, Ints low, const __mmask64* bits) {
  if constexpr (kCount == 128) {
    return _mm512_permutex2var_epi8(load_ints(table), low, load_ints(table + 64));
  } else {
    constexpr int kHalf = kCount / 2, kBit = kHalf == 128 ? 0 : kHalf == 256 ? 1 : kHalf == 512 ? 2 : 3;
    return _mm512_mask_blend_epi8(bits[kBit], table_bytes<kHalf>(table, low, bits),
                                  table_bytes<kHalf>(table + kHalf, low, bits));
  }
}

// The bits from `first` + `step` * i on of each 32, for byte i of them; the higher ones of a byte are not cleared.
TRIGRAPH_INLINE Ints bits_of_lane(Ints x, int first, int step) {
  const auto four = static_cast<uint32_t>(first * 0x01010101 + step * 0x03020100);
  return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(static_cast<int64_t>(four | (four + 0x20202020ull) << 32)), x);
}

// Signs as `even_signs` of formats: a matrix of bits gives each byte its parity.
TRIGRAPH_INLINE Ints even_signs(Ints bits) {
  return _mm512_gf2p8affine_epi64_epi8(bits_of_lane(bits, 0, 7), _mm512_set1_epi64(0x010204081020407f), 0);
}

// Levels of 4 * kOf elements by four indices of each row, 16 bits each.
template <class F>
TRIGRAPH_INLINE void levels_of(const uint16_t (*index)[4], Ints* level) {
  const Ints rows[2] = {load_ints(index), load_ints(index + 8)};
  const auto bytes_of = [&rows](unsigned shift) TRIGRAPH_INLINE_LAMBDA {
    const __m256i a = _mm512_cvtepi16_epi8(right16(rows[0], shift)), b = _mm512_cvtepi16_epi8(right16(rows[1], shift));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  };
  const Ints low = bytes_of(0), high = bytes_of(8);
  __mmask64 bits[4] = {_mm512_movepi8_mask(low)};
  for (int i = 1; 128 << i < F::kEntries; ++i) bits[i] = _mm512_test_epi8_mask(high, bytes(1 << (i - 1)));
  const Ints first = table_bytes<F::kEntries>(kPlanes<F>.plane[0], low, bits);
  const Ints second = table_bytes<F::kEntries>(kPlanes<F>.plane[1], low, bits);
  const Ints table = load_ints(kPlanes<F>.level);
  if constexpr (F::kOf == 8) {
    TRIGRAPH_UNROLL
    for (int k = 0; k < 4; ++k) {
      level[2 * k] = _mm512_permutexvar_epi8(bits_of_lane(first, 8 * k, 2), table);
      level[2 * k + 1] = _mm512_permutexvar_epi8(bits_of_lane(second, 8 * k, 2), table);
    }
  } else {
    const Ints lower = ints(0x00ff00ff);
    const Ints even = _mm512_ternarylogic_epi32(lower, first, _mm512_slli_epi16(second, 8), 0xca);
    const Ints odd = _mm512_ternarylogic_epi32(lower, right16(first, 8), second, 0xca);
    TRIGRAPH_UNROLL
    for (int k = 0; k < 4; ++k)
      level[k] = _mm512_permutexvar_epi8(bits_of_lane(k % 2 ? odd : even, k / 2 * 16, 4), table);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
