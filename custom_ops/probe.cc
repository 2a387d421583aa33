// What this processor can do at best: the two terms of the roofline that `trigraph bench` divides by. Compiled once for
// each instruction set, with the instructions that the row products use.
#include <cstdint>

#include "simd.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kChains = 12;  // enough independent sums to hide the latency of a multiply

int64_t float_products(int64_t rounds) {
  Part sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = splat_part(static_cast<float>(i));
  Part x = splat_part(0.5f);
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) sums[i] = fmadd(sums[i], x, x);
  float total = 0;
  for (int i = 0; i < kChains; ++i) total += reduce_add(sums[i]);
  volatile float keep = total;
  (void)keep;
  return rounds * kChains * kPartLanes;
}

#if defined(TRIGRAPH_ISA_avx512)
int64_t int8_products(int64_t rounds) {
  __m512i sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_epi32(i);
  __m512i w = _mm512_set1_epi8(3);
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], w, w);
  int32_t total = 0;
  for (int i = 0; i < kChains; ++i) total += _mm512_reduce_add_epi32(sums[i]);
  volatile int32_t keep = total;
  (void)keep;
  return rounds * kChains * 64;
}
#elif defined(TRIGRAPH_ISA_avx2)
int64_t int8_products(int64_t rounds) {
  __m256i sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_epi32(i);
  __m256i ones = _mm256_set1_epi16(1);
  for (int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i)  // the sum is an operand, or the products would be hoisted out of the loop
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(_mm256_maddubs_epi16(sums[i], ones), ones));
  int32_t lanes[8], total = 0;
  for (int i = 0; i < kChains; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), sums[i]);
    for (int32_t lane : lanes) total += lane;
  }
  volatile int32_t keep = total;
  (void)keep;
  return rounds * kChains * 32;
}
#else
int64_t int8_products(int64_t rounds) { return float_products(rounds); }
#endif

}  // namespace

int64_t probe_products(bool int8, int64_t rounds) { return int8 ? int8_products(rounds) : float_products(rounds); }

}  // namespace trigraph::TRIGRAPH_ISA
