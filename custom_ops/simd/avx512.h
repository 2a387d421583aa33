// One zmm register.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace trigraph::TRIGRAPH_ISA {

constexpr int kPartLanes = 16;
using Part = __m512;
inline Part load_part(const float* p) { return _mm512_loadu_ps(p); }
// In a register: GCC would load what is used several times as often.
inline Part load_once(const float* p) {
  Part x = load_part(p);
#if defined(__AVX512F__)  // no register holds it where AVX2 stands in for it
  asm("" : "+v"(x));
#endif
  return x;
}
inline void store_part(float* p, Part x) { _mm512_storeu_ps(p, x); }
inline Part splat_part(float x) { return _mm512_set1_ps(x); }
inline Part zero_part() { return _mm512_setzero_ps(); }
inline Part add(Part a, Part b) { return _mm512_add_ps(a, b); }
inline Part sub(Part a, Part b) { return _mm512_sub_ps(a, b); }
inline Part mul(Part a, Part b) { return _mm512_mul_ps(a, b); }
inline Part div(Part a, Part b) { return _mm512_div_ps(a, b); }
inline Part max(Part a, Part b) { return _mm512_max_ps(a, b); }
inline Part min(Part a, Part b) { return _mm512_min_ps(a, b); }
inline Part fmadd(Part a, Part b, Part c) { return _mm512_fmadd_ps(a, b, c); }
inline Part round(Part x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Part pow2(Part n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
inline float reduce_add(Part x) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline void reduce_add4(Part a, Part b, Part c, Part d, float* out) {
  const Part ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const Part cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  Part q = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  q = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4e));
  q = _mm512_add_ps(q, _mm512_movehdup_ps(q));
  _mm_storeu_ps(out, _mm512_castps512_ps128(
                         _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), q)));
}
inline Part load_f16_part(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Part load_bf16_part(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline Part load_i8_part(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void store_f16_part(uint16_t* p, Part x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline void load_transposed4_part(const float* p, Part* out) {
  const __m512i pair = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i next = _mm512_add_epi32(pair, _mm512_set1_epi32(2));
  const Part a = load_part(p), b = load_part(p + 16), c = load_part(p + 32), d = load_part(p + 48);
  const Part ab01 = _mm512_permutex2var_ps(a, pair, b), cd01 = _mm512_permutex2var_ps(c, pair, d);
  const Part ab23 = _mm512_permutex2var_ps(a, next, b), cd23 = _mm512_permutex2var_ps(c, next, d);
  out[0] = _mm512_shuffle_f32x4(ab01, cd01, 0x44);
  out[1] = _mm512_shuffle_f32x4(ab01, cd01, 0xee);
  out[2] = _mm512_shuffle_f32x4(ab23, cd23, 0x44);
  out[3] = _mm512_shuffle_f32x4(ab23, cd23, 0xee);
}

}  // namespace trigraph::TRIGRAPH_ISA
