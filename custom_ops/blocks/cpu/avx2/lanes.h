// Eight weight rows side by side, one in each 32-bit lane: AVX2, and AVX-VNNI in registers of as many bits.
#pragma once

#include "../common/activations.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kRowLanes = 8;
constexpr int kPanelGroups = 2;
using Ints = __m256i;
using Floats = __m256;

TRIGRAPH_INLINE Ints ints(int32_t x) { return _mm256_set1_epi32(x); }
TRIGRAPH_INLINE Ints bytes(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
TRIGRAPH_INLINE Ints shorts(int x) { return _mm256_set1_epi16(static_cast<int16_t>(x)); }
TRIGRAPH_INLINE Ints load_ints(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
TRIGRAPH_INLINE Ints add32(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
TRIGRAPH_INLINE Ints sub32(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
TRIGRAPH_INLINE Ints add8(Ints a, Ints b) { return _mm256_add_epi8(a, b); }
TRIGRAPH_INLINE Ints sub8(Ints a, Ints b) { return _mm256_sub_epi8(a, b); }
TRIGRAPH_INLINE Ints both(Ints a, Ints b) { return _mm256_and_si256(a, b); }
TRIGRAPH_INLINE Ints either(Ints a, Ints b) { return _mm256_or_si256(a, b); }
TRIGRAPH_INLINE Ints differing(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
TRIGRAPH_INLINE Ints left16(Ints a, int n) { return _mm256_slli_epi16(a, n); }
TRIGRAPH_INLINE Ints right16(Ints a, int n) { return _mm256_srli_epi16(a, n); }
TRIGRAPH_INLINE Ints left32(Ints a, int n) { return _mm256_slli_epi32(a, n); }
TRIGRAPH_INLINE Ints right32(Ints a, int n) { return _mm256_srli_epi32(a, n); }
// kCount bits of each byte from bit kFrom on, moved to bit kTo; the others are zero.
template <int kFrom, int kCount, int kTo>
TRIGRAPH_INLINE Ints field(Ints a) {
  if constexpr (kFrom > kTo) a = right16(a, kFrom - kTo);
  if constexpr (kFrom < kTo) a = left16(a, kTo - kFrom);
  return both(a, bytes(((1 << kCount) - 1) << kTo));
}
// a, and the bits of b in kMask.
template <int kMask>
TRIGRAPH_INLINE Ints merge(Ints a, Ints b) {
  return either(a, both(b, bytes(kMask)));
}
// The bytes of a 16-byte table by the low four bits of each byte.
TRIGRAPH_INLINE Ints look_up(const int8_t* table, Ints a) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), a);
}
// Byte i of each lane is the one that byte i of `order` names, or zero for 0x80.
TRIGRAPH_INLINE Ints in_lane(Ints a, uint32_t order) {
  const Ints lanes = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c);
  return _mm256_shuffle_epi8(a, _mm256_add_epi32(lanes, ints(static_cast<int32_t>(order))));
}
TRIGRAPH_INLINE Ints sign_extend16(Ints a) { return _mm256_srai_epi16(a, 8); }
// `value` in the bytes that share the one bit of `bits`.
TRIGRAPH_INLINE Ints where_bits(Ints a, Ints bits, int value) {
  return both(_mm256_cmpeq_epi8(both(a, bits), bits), bytes(value));
}
// a, negative in the bytes that share the one bit of `bits`.
TRIGRAPH_INLINE Ints signed_by(Ints a, Ints sign, Ints bits) {
  const Ints minus = _mm256_cmpeq_epi8(both(sign, bits), bits);
  return sub8(_mm256_xor_si256(a, minus), minus);
}
TRIGRAPH_INLINE Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
TRIGRAPH_INLINE Floats as_floats(Ints a) { return _mm256_castsi256_ps(a); }
// The half in the low 16 bits of each lane.
TRIGRAPH_INLINE Floats halves(Ints a) {
  const __m256i packed = _mm256_packus_epi32(both(a, ints(0xffff)), a);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}
TRIGRAPH_INLINE Floats floats(float x) { return _mm256_set1_ps(x); }
// a * b - c
TRIGRAPH_INLINE Floats fmsub(Floats a, Floats b, Floats c) { return _mm256_fmsub_ps(a, b, c); }

TRIGRAPH_INLINE void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }

// Dword i of the 16 bytes at at(row), for each row: out[i].
template <class At>
TRIGRAPH_INLINE void load_each(At&& at, Ints* out) {
  const auto rows = [&at](int i) TRIGRAPH_INLINE_LAMBDA {
    const auto row = [&at](int k)
                         TRIGRAPH_INLINE_LAMBDA { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at(k))); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(4 + i), 1);
  };
  const __m256i x0 = rows(0), x1 = rows(1), x2 = rows(2), x3 = rows(3);
  const __m256i a = _mm256_unpacklo_epi32(x0, x1), b = _mm256_unpackhi_epi32(x0, x1);
  const __m256i c = _mm256_unpacklo_epi32(x2, x3), d = _mm256_unpackhi_epi32(x2, x3);
  out[0] = _mm256_unpacklo_epi64(a, c), out[1] = _mm256_unpackhi_epi64(a, c);
  out[2] = _mm256_unpacklo_epi64(b, d), out[3] = _mm256_unpackhi_epi64(b, d);
}

// Keeps GCC from doing all products before the next sums, for whose results there are not registers enough.
TRIGRAPH_INLINE void keep_order(Ints* sum) { asm("" : "+x"(*sum)); }

TRIGRAPH_INLINE Ints broadcast(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return _mm256_set1_epi32(x);
}

#if defined(__AVXVNNI__)
// Codes are unsigned: those of types without mins have their bias added, which add_dot's caller takes off again.
template <class F>
constexpr bool kSignedCodes = false;
// Bits of codes as products tell them apart.
template <class F>
constexpr int kShapeBits = 7;

// Dot products of four codes and activations, as many of which as kTogether are added up before they are scaled.
template <class F, int N>
constexpr int kTogether = N;
template <class F>
TRIGRAPH_INLINE Ints dots(Ints code, Ints x) {
  return _mm256_dpbusd_avx_epi32(ints(0), code, x);
}
template <class F>
TRIGRAPH_INLINE Ints first_dots(Ints code, Ints x, const Int8Of<F>&, int) {
  return dots<F>(code, x);
}
template <class F>
TRIGRAPH_INLINE Ints add_dots(Ints sum, Ints code, Ints x) {
  return _mm256_dpbusd_avx_epi32(sum, code, x);
}
TRIGRAPH_INLINE Ints add_scaled_dots(Ints sum, Ints part, Ints scale) {
  return add32(sum, _mm256_mullo_epi32(part, scale));
}
TRIGRAPH_INLINE Ints add_dots_once(Ints sum, Ints part) { return add32(sum, part); }

// Products of 4 * N unsigned codes with as many activations, from the first on: sum + scale * dot.
template <class F, int N>
TRIGRAPH_INLINE Ints add_dot(Ints sum, const Ints* code, const Int8Of<F>& x, int first, Ints scale) {
  const int8_t* a = x.code + first;
  Ints dot = kStep<F> == 32 ? sum : ints(0);
  TRIGRAPH_UNROLL
  for (int v = 0; v < N; ++v) dot = add_dots<F>(dot, code[v], broadcast(a + 4 * v));
  return kStep<F> == 32 ? dot : add_scaled_dots(sum, dot, scale);
}
// sum + the products of pairs of 16-bit numbers.
TRIGRAPH_INLINE Ints add_pairs(Ints sum, Ints a, Ints b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }

// Scales of four runs, signed bytes of a lane: that of run k as add_dot takes it.
TRIGRAPH_INLINE Ints scale_of(Ints four, int k) { return _mm256_srai_epi32(_mm256_slli_epi32(four, 24 - 8 * k), 24); }
#else
// Codes of eight bits stay signed: their products would not fit 16 bits otherwise.
template <class F>
constexpr bool kSignedCodes = F::kBits == 8;
// Bits of codes as products tell them apart. Rare types of fewer are content with what five bits allow.
template <class F>
constexpr int kShapeBits = F::kBits >= 5             ? F::kBits
                           : std::is_same_v<F, Q4_K> ? 4
                                                     : 5;

// 16-bit sums of two products of codes and activations, as many of which as kTogether are added up before they are
// scaled: more could exceed 32767.
template <class F, int N>
constexpr int kTogether = [] {
  constexpr int kTop = (1 << F::kBits) - 1;
  constexpr int kFit = kCentred<F> ? 4 : kSignedCodes<F> ? 1 : 32767 / (2 * 127 * kTop);
  return kFit >= N ? N : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
}();
template <class F>
TRIGRAPH_INLINE Ints dots(Ints code, Ints x) {
  if constexpr (kSignedCodes<F>)
    return _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code));
  else
    return _mm256_maddubs_epi16(code, x);
}
template <class F>
TRIGRAPH_INLINE Ints add_dots(Ints sum, Ints code, Ints x) {
  sum = _mm256_add_epi16(sum, dots<F>(code, x));
  keep_order(&sum);
  return sum;
}
// The first ones that are added up; they belong to part `x` from element `first` on.
template <class F>
TRIGRAPH_INLINE Ints first_dots(Ints code, Ints a, const Int8Of<F>& x, int first) {
  if constexpr (kCentred<F>)
    return add_dots<F>(broadcast(x.centre[first / 16]), code, a);
  else
    return dots<F>(code, a);
}
// The scale twice in each lane.
TRIGRAPH_INLINE Ints add_scaled_dots(Ints sum, Ints part, Ints scale) {
  return add32(sum, _mm256_madd_epi16(part, scale));
}
TRIGRAPH_INLINE Ints add_dots_once(Ints sum, Ints part) { return add_scaled_dots(sum, part, shorts(1)); }

// Products of 4 * N codes with as many activations, from the first on: sum + scale * dot.
template <class F, int N>
TRIGRAPH_INLINE Ints add_dot(Ints sum, const Ints* code, const Int8Of<F>& x, int first, Ints scale) {
  const int8_t* a = x.code + first;
  constexpr int kStep = kTogether<F, N>;
  TRIGRAPH_UNROLL
  for (int start = 0; start < N; start += kStep) {
    Ints part = first_dots<F>(code[start], broadcast(a + 4 * start), x, first + 4 * start);
    TRIGRAPH_UNROLL
    for (int v = start + 1; v < start + kStep; ++v) part = add_dots<F>(part, code[v], broadcast(a + 4 * v));
    sum = add_scaled_dots(sum, part, scale);
  }
  return sum;
}
// sum + the products of pairs of 16-bit numbers.
TRIGRAPH_INLINE Ints add_pairs(Ints sum, Ints a, Ints b) { return add32(sum, _mm256_madd_epi16(a, b)); }

// Scales of four runs, signed bytes of a lane: that of run k as add_dot takes it.
TRIGRAPH_INLINE Ints scale_of(Ints four, uint32_t k) {
  return sign_extend16(in_lane(four, 0x00800080u | k << 24 | k << 8));
}
#endif

// Asks memory for share `step` of `steps` of the kBytes at p. Bound by the processor: addresses known in advance, some
// lines twice. Wide rows go to the second cache.
template <int kBytes>
TRIGRAPH_INLINE void fetch_share(const uint8_t* p, bool wide, int step, int steps) {
  TRIGRAPH_UNROLL
  for (int at = 0; at < kBytes / steps; at += 64) {
    const uint8_t* line = p + step * (kBytes / steps) + at;
    wide ? __builtin_prefetch(line, 0, 2) : prefetch(line);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
