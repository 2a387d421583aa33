// AVX-512 and AVX-VNNI in terms of AVX2, by SIMDe: included before everything else.
#pragma once

#include <immintrin.h>

#define SIMDE_NO_INLINE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/gfni.h>

#include <cstring>

// What SIMDe 0.7 lacks, most of it 0.8 too: in halves, or lane by lane.
namespace emulated {

template <class Half, class Whole>
inline Half half(const Whole& x, int i) {
  Half out;
  std::memcpy(&out, reinterpret_cast<const char*>(&x) + i * sizeof out, sizeof out);
  return out;
}
template <class Whole, class Half>
inline Whole join(Half low, Half high) {
  Whole out;
  std::memcpy(&out, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&out) + sizeof low, &high, sizeof high);
  return out;
}
// The first kTo bytes of each kFrom.
template <class To, int kFrom, int kTo, class From>
inline To narrow(const From& x) {
  To out;
  for (size_t i = 0; i < sizeof x / kFrom; ++i)
    std::memcpy(reinterpret_cast<char*>(&out) + i * kTo, reinterpret_cast<const char*>(&x) + i * kFrom, kTo);
  return out;
}
inline __m128i upper(__m128i x) { return _mm_srli_si128(x, 8); }

#define INTS(i) half<__m256i>(x, i)
#define FLOATS(i) half<__m256>(x, i)
#define SHORTS(i) half<__m128i>(x, i)
inline __m512i cvtepi8_epi32(__m128i x) {
  return join<__m512i>(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(upper(x)));
}
inline __m512i cvtepi16_epi64(__m128i x) {
  return join<__m512i>(_mm256_cvtepi16_epi64(x), _mm256_cvtepi16_epi64(upper(x)));
}
inline __m512i cvtepi16_epi32(__m256i x) {
  return join<__m512i>(_mm256_cvtepi16_epi32(SHORTS(0)), _mm256_cvtepi16_epi32(SHORTS(1)));
}
inline __m512i cvtepu16_epi32(__m256i x) {
  return join<__m512i>(_mm256_cvtepu16_epi32(SHORTS(0)), _mm256_cvtepu16_epi32(SHORTS(1)));
}
inline __m512 cvtph_ps(__m256i x) { return join<__m512>(_mm256_cvtph_ps(SHORTS(0)), _mm256_cvtph_ps(SHORTS(1))); }
template <int kRounding>
inline __m256i cvtps_ph(__m512 x) {
  return join<__m256i>(_mm256_cvtps_ph(FLOATS(0), kRounding), _mm256_cvtps_ph(FLOATS(1), kRounding));
}
inline __m512 cvtepi32_ps(__m512i x) { return join<__m512>(_mm256_cvtepi32_ps(INTS(0)), _mm256_cvtepi32_ps(INTS(1))); }
inline __m512i cvtps_epi32(__m512 x) {
  return join<__m512i>(_mm256_cvtps_epi32(FLOATS(0)), _mm256_cvtps_epi32(FLOATS(1)));
}
inline __m512i srai_epi32(__m512i x, unsigned n) {
  return join<__m512i>(_mm256_srai_epi32(INTS(0), static_cast<int>(n)),
                       _mm256_srai_epi32(INTS(1), static_cast<int>(n)));
}
template <int kOrder>
inline __m512i shuffle_epi32(__m512i x) {
  return join<__m512i>(_mm256_shuffle_epi32(INTS(0), kOrder), _mm256_shuffle_epi32(INTS(1), kOrder));
}
template <int kOrder>
inline __m512 permute_ps(__m512 x) {
  return join<__m512>(_mm256_permute_ps(FLOATS(0), kOrder), _mm256_permute_ps(FLOATS(1), kOrder));
}
inline __m512 movehdup_ps(__m512 x) {
  return join<__m512>(_mm256_movehdup_ps(FLOATS(0)), _mm256_movehdup_ps(FLOATS(1)));
}
inline void mask_storeu_ps(float* p, __mmask16 mask, __m512 x) {
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) std::memcpy(p + i, reinterpret_cast<const char*>(&x) + 4 * i, 4);
}
#undef INTS
#undef FLOATS
#undef SHORTS

}  // namespace emulated

#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepi16_epi64
#undef _mm512_cvtepi16_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_srai_epi32
#undef _mm512_shuffle_epi32
#undef _mm512_shuffle_f32x4
#undef _mm512_permute_ps
#undef _mm512_movehdup_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtepi32_epi8
#undef _mm512_extractf32x8_ps
#undef _mm512_zextsi256_si512
#undef _mm512_set1_epi64
#undef _mm512_madd_epi16
#define _mm512_cvtepi8_epi32 emulated::cvtepi8_epi32
#define _mm512_cvtepi16_epi64 emulated::cvtepi16_epi64
#define _mm512_cvtepi16_epi32 emulated::cvtepi16_epi32
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_ph(x, rounding) emulated::cvtps_ph<rounding>(x)
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#define _mm512_srai_epi32 emulated::srai_epi32
#define _mm512_shuffle_epi32(x, order) emulated::shuffle_epi32<order>(x)
#define _mm512_shuffle_f32x4(a, b, order) simde_mm512_shuffle_f32x4(a, b, order)
#define _mm512_permute_ps(x, order) emulated::permute_ps<order>(x)
#define _mm512_movehdup_ps emulated::movehdup_ps
#define _mm512_mask_storeu_ps emulated::mask_storeu_ps
#define _mm512_cvtepi32_epi16(x) (emulated::narrow<__m256i, 4, 2>(x))
#define _mm512_cvtepi32_epi8(x) (emulated::narrow<__m128i, 4, 1>(x))
#define _mm256_cvtepi32_epi16(x) (emulated::narrow<__m128i, 4, 2>(x))
#define _mm512_extractf32x8_ps(x, i) emulated::half<__m256>(x, i)
#define _mm512_zextsi256_si512(x) emulated::join<__m512i>(x, _mm256_setzero_si256())
#define _mm512_set1_epi64(...) simde_mm512_set1_epi64(__VA_ARGS__)
#define _mm512_madd_epi16 simde_mm512_madd_epi16

#if defined(TRIGRAPH_EMULATED_AVX_VNNI)
#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32 simde_mm256_dpbusd_epi32
#define _mm256_dpwssd_avx_epi32 simde_mm256_dpwssd_epi32
#endif
