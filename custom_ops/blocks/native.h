// One vector of float32 as wide as the instruction set: what row products are made of.
#pragma once

#include "../simd.h"

namespace trigraph::TRIGRAPH_ISA::native {

#if defined(TRIGRAPH_ISA_avx512)
constexpr int VL = 16;
using vf = __m512;
inline vf load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, vf x) { _mm512_storeu_ps(p, x); }
inline vf splat(float x) { return _mm512_set1_ps(x); }
inline vf zero() { return _mm512_setzero_ps(); }
inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
inline vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
inline vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
inline vf fmadd(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
inline vf round(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline vf pow2(vf n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
inline float reduce_add(vf x) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
// out[i] = reduce_add of the i-th argument, with the same bits.
inline void reduce_add4(vf a, vf b, vf c, vf d, float* out) {
  const vf ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const vf cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  vf q = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  q = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4e));
  q = _mm512_add_ps(q, _mm512_movehdup_ps(q));
  _mm_storeu_ps(out, _mm512_castps512_ps128(
                         _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), q)));
}
inline vf load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline vf load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline void store_f16(uint16_t* p, vf x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline void load_transposed4(const float* p, vf* out) {
  const __m512i pair = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i next = _mm512_add_epi32(pair, _mm512_set1_epi32(2));
  const vf a = load(p), b = load(p + 16), c = load(p + 32), d = load(p + 48);
  const vf ab01 = _mm512_permutex2var_ps(a, pair, b), cd01 = _mm512_permutex2var_ps(c, pair, d);
  const vf ab23 = _mm512_permutex2var_ps(a, next, b), cd23 = _mm512_permutex2var_ps(c, next, d);
  out[0] = _mm512_shuffle_f32x4(ab01, cd01, 0x44);
  out[1] = _mm512_shuffle_f32x4(ab01, cd01, 0xee);
  out[2] = _mm512_shuffle_f32x4(ab23, cd23, 0x44);
  out[3] = _mm512_shuffle_f32x4(ab23, cd23, 0xee);
}
#elif defined(TRIGRAPH_ISA_avx2)
constexpr int VL = 8;
using vf = __m256;
inline vf load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, vf x) { _mm256_storeu_ps(p, x); }
inline vf splat(float x) { return _mm256_set1_ps(x); }
inline vf zero() { return _mm256_setzero_ps(); }
inline vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
inline vf sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
inline vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
inline vf div(vf a, vf b) { return _mm256_div_ps(a, b); }
inline vf max(vf a, vf b) { return _mm256_max_ps(a, b); }
inline vf min(vf a, vf b) { return _mm256_min_ps(a, b); }
inline vf fmadd(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
inline vf round(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline vf pow2(vf n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline float reduce_add(vf x) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline void reduce_add4(vf a, vf b, vf c, vf d, float* out) {
  const vf ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  const vf cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
  vf q = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  q = _mm256_add_ps(q, _mm256_movehdup_ps(q));
  _mm_storeu_ps(out, _mm256_castps256_ps128(_mm256_permutevar8x32_ps(q, _mm256_setr_epi32(0, 4, 2, 6, 0, 0, 0, 0))));
}
inline vf load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline vf load_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline void store_f16(uint16_t* p, vf x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline void load_transposed4(const float* p, vf* out) {
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
#elif defined(TRIGRAPH_ISA_neon)
constexpr int VL = 4;
using vf = float32x4_t;
inline vf load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, vf x) { vst1q_f32(p, x); }
inline vf splat(float x) { return vdupq_n_f32(x); }
inline vf zero() { return vdupq_n_f32(0); }
inline vf add(vf a, vf b) { return vaddq_f32(a, b); }
inline vf sub(vf a, vf b) { return vsubq_f32(a, b); }
inline vf mul(vf a, vf b) { return vmulq_f32(a, b); }
inline vf div(vf a, vf b) { return vdivq_f32(a, b); }
inline vf max(vf a, vf b) { return vmaxq_f32(a, b); }
inline vf min(vf a, vf b) { return vminq_f32(a, b); }
inline vf fmadd(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
inline vf round(vf x) { return vrndnq_f32(x); }
inline vf pow2(vf n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23)); }
inline float reduce_add(vf x) {
  float32x2_t h = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
inline void reduce_add4(vf a, vf b, vf c, vf d, float* out) {
  const vf ab = vcombine_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)), vadd_f32(vget_low_f32(b), vget_high_f32(b)));
  const vf cd = vcombine_f32(vadd_f32(vget_low_f32(c), vget_high_f32(c)), vadd_f32(vget_low_f32(d), vget_high_f32(d)));
  vst1q_f32(out, vpaddq_f32(ab, cd));
}
inline vf load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline vf load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline void store_f16(uint16_t* p, vf x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
inline void load_transposed4(const float* p, vf* out) {
  const float32x4x4_t rows = vld4q_f32(p);
  for (int j = 0; j < 4; ++j) out[j] = rows.val[j];
}
#else
constexpr int VL = 4;
struct vf {
  float lane[VL];
};
#define TRIGRAPH_LANES(expression)                       \
  vf r;                                                  \
  for (int i = 0; i < VL; ++i) r.lane[i] = (expression); \
  return r
inline vf load(const float* p) { TRIGRAPH_LANES(p[i]); }
inline void store(float* p, vf x) { std::memcpy(p, x.lane, sizeof x.lane); }
inline vf splat(float x) { TRIGRAPH_LANES(x); }
inline vf zero() { return splat(0); }
inline vf add(vf a, vf b) { TRIGRAPH_LANES(a.lane[i] + b.lane[i]); }
inline vf sub(vf a, vf b) { TRIGRAPH_LANES(a.lane[i] - b.lane[i]); }
inline vf mul(vf a, vf b) { TRIGRAPH_LANES(a.lane[i] * b.lane[i]); }
inline vf div(vf a, vf b) { TRIGRAPH_LANES(a.lane[i] / b.lane[i]); }
inline vf max(vf a, vf b) { TRIGRAPH_LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
inline vf min(vf a, vf b) { TRIGRAPH_LANES(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); }
// No fused instruction is promised here: product and sum round separately, always.
inline vf fmadd(vf a, vf b, vf c) { TRIGRAPH_LANES(a.lane[i] * b.lane[i] + c.lane[i]); }
inline vf round(vf x) { TRIGRAPH_LANES(std::nearbyint(x.lane[i])); }
inline vf pow2(vf n) { TRIGRAPH_LANES(std::ldexp(1.0f, static_cast<int>(n.lane[i]))); }
inline float reduce_add(vf x) { return (x.lane[0] + x.lane[2]) + (x.lane[1] + x.lane[3]); }
inline void reduce_add4(vf a, vf b, vf c, vf d, float* out) {
  out[0] = reduce_add(a), out[1] = reduce_add(b), out[2] = reduce_add(c), out[3] = reduce_add(d);
}
inline void load_transposed4(const float* p, vf* out) {
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < VL; ++i) out[j].lane[i] = p[4 * i + j];
}
#undef TRIGRAPH_LANES
#endif

// reduce_add of M vectors at once: the same sums in the same order, so the same bits.
template <int M>
TRIGRAPH_INLINE void reduce_add(const vf* x, float* out) {
#if defined(TRIGRAPH_ISA_avx512)
  if constexpr (M > 1) {
    auto quarter = [x](int i) {  // four vectors to [a | b | c | d]
      const vf a = x[i], b = i + 1 < M ? x[i + 1] : a, c = i + 2 < M ? x[i + 2] : a, d = i + 3 < M ? x[i + 3] : a;
      const vf ab = add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
      const vf cd = add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
      return add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    };
    for (int i = 0; i < M; i += 8) {
      const vf low = quarter(i), high = i + 4 < M ? quarter(i + 4) : low;
      vf pairs = add(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
      pairs = add(pairs, _mm512_movehdup_ps(pairs));
      const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
      _mm512_mask_storeu_ps(out + i, (1u << (M - i < 8 ? M - i : 8)) - 1, _mm512_permutexvar_ps(order, pairs));
    }
    return;
  }
#elif defined(TRIGRAPH_ISA_avx2)
  if constexpr (M > 1) {
    auto quarter = [x](int i) {  // [a | b] and [c | d] to pairs of sums a a c c | b b d d
      const vf a = x[i], b = i + 1 < M ? x[i + 1] : a, c = i + 2 < M ? x[i + 2] : a, d = i + 3 < M ? x[i + 3] : a;
      const vf ab = add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
      const vf cd = add(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
      return add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    };
    for (int i = 0; i < M; i += 4) {
      vf pairs = quarter(i);
      alignas(32) float sum[8];
      _mm256_store_ps(sum, add(pairs, _mm256_movehdup_ps(pairs)));
      constexpr int kPlace[4] = {0, 4, 2, 6};
      for (int k = i; k < M && k < i + 4; ++k) out[k] = sum[kPlace[k - i]];
    }
    return;
  }
#endif
  for (int i = 0; i < M; ++i) out[i] = reduce_add(x[i]);
}

#if !defined(TRIGRAPH_ISA_avx512) && !defined(TRIGRAPH_ISA_avx2) && !defined(TRIGRAPH_ISA_neon)
inline vf load_f16(const uint16_t* p) {
  vf r;
  for (int i = 0; i < VL; ++i) r.lane[i] = half_to_float(p[i]);
  return r;
}
inline vf load_bf16(const uint16_t* p) {
  uint32_t bits[VL];
  for (int i = 0; i < VL; ++i) bits[i] = static_cast<uint32_t>(p[i]) << 16;
  vf r;
  std::memcpy(r.lane, bits, sizeof bits);
  return r;
}
inline void store_f16(uint16_t* p, vf x) {
  for (int i = 0; i < VL; ++i) p[i] = float_to_half(x.lane[i]);
}
#endif

}  // namespace trigraph::TRIGRAPH_ISA::native
