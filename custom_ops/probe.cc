// What this processor can do at best: the multiply rates that `trigraph bench` divides by. Compiled once for each
// instruction set. Each probe is independent chains of the instruction that multiplies most, and nothing beside it: no
// kernel can be faster, as all of them also unpack, scale and add.
#include <cstdint>

#include "simd.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kChains = 12;  // enough independent sums to hide the latency of a multiply

// `step` depends on the value before it, so that nothing can be hoisted out of the loop.
template <class T, class Step>
void run_chains(int64_t rounds, T start, Step step) {
  T chains[kChains];
  for (T& chain : chains) chain = start;
  for (int64_t r = 0; r < rounds; ++r)
    for (T& chain : chains) chain = step(chain);
  for (T& chain : chains) {
    volatile T keep = chain;
    (void)keep;
  }
}

int64_t float_products(int64_t rounds) {
  const Part x = splat_part(0.5f);
  run_chains(rounds, x, [x](Part sum) { return fmadd(sum, x, x); });
  return rounds * kChains * kPartLanes;
}

#if defined(TRIGRAPH_ISA_avx512)
int64_t int8_products(int64_t rounds) {
  const __m512i w = _mm512_set1_epi8(3);
  run_chains(rounds, w, [w](__m512i sum) { return _mm512_dpbusd_epi32(sum, w, w); });
  return rounds * kChains * 64;
}
#elif defined(__AVXVNNI__)
int64_t int8_products(int64_t rounds) {
  const __m256i w = _mm256_set1_epi8(3);
  run_chains(rounds, w, [w](__m256i sum) { return _mm256_dpbusd_avx_epi32(sum, w, w); });
  return rounds * kChains * 32;
}
#elif defined(TRIGRAPH_ISA_avx2)
int64_t int8_products(int64_t rounds) {
  const __m256i w = _mm256_set1_epi8(3);
  run_chains(rounds, w, [w](__m256i product) { return _mm256_maddubs_epi16(product, w); });
  return rounds * kChains * 32;
}
#elif defined(TRIGRAPH_ISA_neon) && defined(__ARM_FEATURE_MATMUL_INT8)
int64_t int8_products(int64_t rounds) {
  const int8x16_t w = vdupq_n_s8(3);
  run_chains(rounds, vdupq_n_s32(0), [w](int32x4_t sum) { return vmmlaq_s32(sum, w, w); });
  return rounds * kChains * 32;
}
#elif defined(TRIGRAPH_ISA_neon) && defined(__ARM_FEATURE_DOTPROD)
int64_t int8_products(int64_t rounds) {
  const int8x16_t w = vdupq_n_s8(3);
  run_chains(rounds, vdupq_n_s32(0), [w](int32x4_t sum) { return vdotq_s32(sum, w, w); });
  return rounds * kChains * 16;
}
#elif defined(TRIGRAPH_ISA_neon)
int64_t int8_products(int64_t rounds) {
  const int8x16_t w = vdupq_n_s8(3);
  run_chains(rounds, vdupq_n_s16(0), [w](int16x8_t sum) { return vmlal_high_s8(sum, w, w); });
  return rounds * kChains * 8;
}
#else
int64_t int8_products(int64_t rounds) { return float_products(rounds); }
#endif

}  // namespace

int64_t probe_products(bool int8, int64_t rounds) { return int8 ? int8_products(rounds) : float_products(rounds); }

}  // namespace trigraph::TRIGRAPH_ISA
