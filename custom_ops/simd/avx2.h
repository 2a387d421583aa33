// Half of the lanes: one ymm register.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace trigraph::TRIGRAPH_ISA {

constexpr int kPartLanes = 8;
using Part = __m256;
inline Part load_part(const float* p) { return _mm256_loadu_ps(p); }
// In a register: GCC would load what is used several times as often.
inline Part load_once(const float* p) {
  Part x = load_part(p);
  asm("" : "+x"(x));
  return x;
}
inline void store_part(float* p, Part x) { _mm256_storeu_ps(p, x); }
inline Part splat_part(float x) { return _mm256_set1_ps(x); }
inline Part zero_part() { return _mm256_setzero_ps(); }
inline Part add(Part a, Part b) { return _mm256_add_ps(a, b); }
inline Part sub(Part a, Part b) { return _mm256_sub_ps(a, b); }
inline Part mul(Part a, Part b) { return _mm256_mul_ps(a, b); }
inline Part div(Part a, Part b) { return _mm256_div_ps(a, b); }
inline Part max(Part a, Part b) { return _mm256_max_ps(a, b); }
inline Part min(Part a, Part b) { return _mm256_min_ps(a, b); }
inline Part fmadd(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }
inline Part round(Part x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Part pow2(Part n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline float reduce_add(Part x) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline void reduce_add4(Part a, Part b, Part c, Part d, float* out) {
  const Part ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  const Part cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
  Part q = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  q = _mm256_add_ps(q, _mm256_movehdup_ps(q));
  _mm_storeu_ps(out, _mm256_castps256_ps128(_mm256_permutevar8x32_ps(q, _mm256_setr_epi32(0, 4, 2, 6, 0, 0, 0, 0))));
}
inline Part load_f16_part(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Part load_bf16_part(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Part load_i8_part(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void store_f16_part(uint16_t* p, Part x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline void load_transposed4_part(const float* p, Part* out) {
  const auto rows = [p](int i) {  // rows i and i + 4
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 4 * i)), _mm_loadu_ps(p + 4 * i + 16), 1);
  };
  const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(rows(0), rows(1))),
                b = _mm256_castps_pd(_mm256_unpackhi_ps(rows(0), rows(1)));
  const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(rows(2), rows(3))),
                d = _mm256_castps_pd(_mm256_unpackhi_ps(rows(2), rows(3)));
  out[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
  out[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
  out[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
  out[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}

}  // namespace trigraph::TRIGRAPH_ISA
