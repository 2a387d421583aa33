// Activations as eight-bit codes, and the sums of these: what activations.h says, with AVX2 and AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace trigraph::TRIGRAPH_ISA {

constexpr int kCodes = 256;  // of a super-block

// The largest magnitude's bits, of kCount elements.
template <int kCount>
uint32_t largest_bits(const float* x) {
#if defined(TRIGRAPH_ISA_avx512)
  __m512i most[4];
  for (int i = 0; i < kCount / 16; ++i) {
    const __m512i bits = _mm512_and_si512(_mm512_loadu_si512(x + 16 * i), _mm512_set1_epi32(0x7fffffff));
    most[i % 4] = i < 4 ? bits : _mm512_max_epu32(most[i % 4], bits);
  }
  const __m512i both = _mm512_max_epu32(_mm512_max_epu32(most[0], most[1]), _mm512_max_epu32(most[2], most[3]));
  const __m256i eight = _mm256_max_epu32(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1));
#else
  __m256i most[4];
  for (int i = 0; i < kCount / 8; ++i) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 8 * i));
    const __m256i bits = _mm256_and_si256(raw, _mm256_set1_epi32(0x7fffffff));
    most[i % 4] = i < 4 ? bits : _mm256_max_epu32(most[i % 4], bits);
  }
  const __m256i eight = _mm256_max_epu32(_mm256_max_epu32(most[0], most[1]), _mm256_max_epu32(most[2], most[3]));
#endif
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1))));
}

// Factors of the eight runs of a super-block, as activations.h defines them.
inline unsigned factors_of_runs(const float* x, float* inverse, float* scale) {
  const auto most = [x](int run) {
    __m256i bits = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 32 * run + 8 * i));
      bits = _mm256_max_epu32(bits, _mm256_and_si256(raw, _mm256_set1_epi32(0x7fffffff)));
    }
    return bits;
  };
  const auto two = [&most](int run) {
    const __m256i a = most(run), b = most(run + 1);
    return _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  };
  const auto four = [&two](int run) {
    const __m256i a = two(run), b = two(run + 2);
    return _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  };
  const __m256i low = four(0), high = four(4);
  const __m256i bits =
      _mm256_max_epu32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
  const __m256 magnitude = _mm256_castsi256_ps(bits), most_code = _mm256_set1_ps(127);
  const __m256 finite = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), bits));
  const __m256 used = _mm256_and_ps(finite, _mm256_cmp_ps(magnitude, _mm256_set1_ps(1e-36f), _CMP_GT_OQ));
  _mm256_storeu_ps(inverse, _mm256_and_ps(used, _mm256_div_ps(most_code, magnitude)));
  const __m256 found = _mm256_and_ps(used, _mm256_div_ps(magnitude, most_code));
  _mm256_storeu_ps(scale, _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), found, finite));
  return static_cast<unsigned>(_mm256_movemask_ps(finite));
}

// The codes x * inverse, rounded: the integers are in the last bits of the fractions.
template <int kCount>
void round_codes(const float* x, float inverse, float shift, int8_t* out) {
#if defined(TRIGRAPH_ISA_avx512)
  for (int i = 0; i < kCount; i += 16) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse));
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(scaled, _mm512_set1_ps(shift)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtepi32_epi8(bits));
  }
#else
  const auto rounded = [=](const float* p) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(p), _mm256_set1_ps(inverse));
    const __m256i bits = _mm256_castps_si256(_mm256_add_ps(scaled, _mm256_set1_ps(shift)));
    return _mm256_srai_epi32(_mm256_slli_epi32(bits, 24), 24);
  };
  for (int i = 0; i < kCount; i += 32) {
    const __m256i low = _mm256_packs_epi32(rounded(x + i), rounded(x + i + 8));
    const __m256i high = _mm256_packs_epi32(rounded(x + i + 16), rounded(x + i + 24));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
  }
#endif
}

// The sums of each 16 codes of four blocks of 32, in two parts: the first of each block in the low quad, the second in
// the high one. A part has every second pair of the codes.
inline __m256i sums_of_four(const int8_t* code) {
  const auto pairs = [code](int b) {
    const __m256i block = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(code + 32 * b));
    return _mm256_maddubs_epi16(_mm256_set1_epi8(1), block);
  };
  const auto joined = [&pairs](int b) {
    const __m256i a = pairs(b), c = pairs(b + 1);
    return _mm256_add_epi16(_mm256_unpacklo_epi32(a, c), _mm256_unpackhi_epi32(a, c));
  };
  const __m256i first = joined(0), second = joined(2);
  return _mm256_add_epi16(_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second));
}

// The sums of each 16 codes and of each 32. `parts`, if any: of each 16 both parts, times -32.
inline void sum_codes(const int8_t* code, int16_t* sum16, int16_t* sum32, int16_t* parts) {
  const __m256i half[2] = {sums_of_four(code), sums_of_four(code + kCodes / 2)}, ones = _mm256_set1_epi16(1);
  const __m256i sums = _mm256_packs_epi32(_mm256_madd_epi16(half[0], ones), _mm256_madd_epi16(half[1], ones));
  const __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
  auto* to = reinterpret_cast<__m128i*>(sum16);
  _mm_storeu_si128(to, _mm_unpacklo_epi16(first, second));
  _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(first, second));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sum32), _mm_add_epi16(first, second));
  for (int k = 0; parts && k < 2; ++k) {
    const __m256i runs = _mm256_shuffle_epi32(_mm256_permute4x64_epi64(half[k], 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts) + k, _mm256_mullo_epi16(runs, _mm256_set1_epi16(-32)));
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
