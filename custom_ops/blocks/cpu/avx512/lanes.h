// Sixteen weight rows side by side, one in each 32-bit lane: AVX-512 with VNNI.
#pragma once

#include "../common/activations.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kRowLanes = 16;
constexpr int kPanelGroups = 2;
using Ints = __m512i;
using Floats = __m512;

TRIGRAPH_INLINE Ints ints(int32_t x) { return _mm512_set1_epi32(x); }
TRIGRAPH_INLINE Ints shorts(int x) { return _mm512_set1_epi16(static_cast<int16_t>(x)); }
TRIGRAPH_INLINE Ints bytes(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
TRIGRAPH_INLINE Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
TRIGRAPH_INLINE Ints add32(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
TRIGRAPH_INLINE Ints sub32(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
TRIGRAPH_INLINE Ints add8(Ints a, Ints b) { return _mm512_add_epi8(a, b); }
TRIGRAPH_INLINE Ints sub8(Ints a, Ints b) { return _mm512_sub_epi8(a, b); }
TRIGRAPH_INLINE Ints both(Ints a, Ints b) { return _mm512_and_si512(a, b); }
TRIGRAPH_INLINE Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
TRIGRAPH_INLINE Ints left16(Ints a, unsigned n) { return _mm512_slli_epi16(a, n); }
TRIGRAPH_INLINE Ints right16(Ints a, unsigned n) { return _mm512_srli_epi16(a, n); }
TRIGRAPH_INLINE Ints left32(Ints a, unsigned n) { return _mm512_slli_epi32(a, n); }
TRIGRAPH_INLINE Ints right32(Ints a, unsigned n) { return _mm512_srli_epi32(a, n); }
TRIGRAPH_INLINE Ints sign_extend16(Ints a) { return _mm512_srai_epi16(a, 8); }
template <int kFrom, int kCount, int kTo>
constexpr int64_t field_matrix() {
  uint64_t matrix = 0;  // its bytes are the rows, the row of bit 7 first
  for (int i = 0; i < kCount; ++i) matrix |= uint64_t{1} << (8 * (7 - kTo - i) + kFrom + i);
  return static_cast<int64_t>(matrix);
}
// kCount bits of each byte from bit kFrom on, moved to bit kTo; the others are zero.
template <int kFrom, int kCount, int kTo>
TRIGRAPH_INLINE Ints field(Ints a) {
  if constexpr (kFrom == kTo) return both(a, bytes(((1 << kCount) - 1) << kTo));
  return _mm512_gf2p8affine_epi64_epi8(a, _mm512_set1_epi64(field_matrix<kFrom, kCount, kTo>()), 0);
}
// a, and the bits of b in kMask.
template <int kMask>
TRIGRAPH_INLINE Ints merge(Ints a, Ints b) {
  return _mm512_ternarylogic_epi32(a, b, bytes(kMask), 0xf8);
}
// The bytes of a 16-byte table by the low four bits of each byte.
TRIGRAPH_INLINE Ints look_up(const int8_t* table, Ints a) {
  const __m512i levels = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return _mm512_shuffle_epi8(levels, a);
}
// Byte i of each lane is the one that byte i of `order` names, or zero for 0x80.
TRIGRAPH_INLINE Ints in_lane(Ints a, uint32_t order) {
  const __m512i lanes = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
  const __m512i byte = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int32_t>(order)));
  return _mm512_shuffle_epi8(a, byte);
}
// `value` in the bytes that share a bit with `bits`.
TRIGRAPH_INLINE Ints where_bits(Ints a, Ints bits, int value) {
  return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(a, bits), _mm512_set1_epi8(static_cast<char>(value)));
}
// a, negative in the bytes that share a bit with `bits`.
TRIGRAPH_INLINE Ints signed_by(Ints a, Ints sign, Ints bits) {
  return _mm512_mask_sub_epi8(a, _mm512_test_epi8_mask(sign, bits), ints(0), a);
}
TRIGRAPH_INLINE Floats floats(float x) { return _mm512_set1_ps(x); }
TRIGRAPH_INLINE Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
TRIGRAPH_INLINE Floats as_floats(Ints a) { return _mm512_castsi512_ps(a); }
// The half in the low 16 bits of each lane.
TRIGRAPH_INLINE Floats halves(Ints a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
TRIGRAPH_INLINE Floats fmsub(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
TRIGRAPH_INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }

// Dword i of the 16 bytes at at(row), for each row: out[i].
template <class At>
TRIGRAPH_INLINE void load_each(At&& at, Ints* out) {
  const auto rows = [&at](int i) TRIGRAPH_INLINE_LAMBDA {
    const auto row = [&at](int k)
                         TRIGRAPH_INLINE_LAMBDA { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at(k))); };
    const __m512i one = _mm512_inserti32x4(_mm512_castsi128_si512(row(i)), row(4 + i), 1);
    return _mm512_inserti32x4(_mm512_inserti32x4(one, row(8 + i), 2), row(12 + i), 3);
  };
  const __m512i x0 = rows(0), x1 = rows(1), x2 = rows(2), x3 = rows(3);
  const __m512i a = _mm512_unpacklo_epi32(x0, x1), b = _mm512_unpackhi_epi32(x0, x1);
  const __m512i c = _mm512_unpacklo_epi32(x2, x3), d = _mm512_unpackhi_epi32(x2, x3);
  out[0] = _mm512_unpacklo_epi64(a, c), out[1] = _mm512_unpackhi_epi64(a, c);
  out[2] = _mm512_unpacklo_epi64(b, d), out[3] = _mm512_unpackhi_epi64(b, d);
}

TRIGRAPH_INLINE Ints broadcast(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return ints(x);
}

// Products of 4 * N unsigned codes with as many activations, from the first on: sum + scale * dot.
template <class F, int N>
TRIGRAPH_INLINE Ints add_dot(Ints sum, const Ints* code, const Int8Of<F>& x, int first, Ints scale) {
  Ints dot = ints(0);
  TRIGRAPH_UNROLL
  for (int v = 0; v < N; ++v) dot = _mm512_dpbusd_epi32(dot, code[v], broadcast(x.code + first + 4 * v));
  return kStep<F> == 32 ? add32(sum, dot) : add32(sum, _mm512_mullo_epi32(dot, scale));
}
// sum + the products of pairs of 16-bit numbers.
TRIGRAPH_INLINE Ints add_pairs(Ints sum, Ints a, Ints b) { return _mm512_dpwssd_epi32(sum, a, b); }

// Codes are unsigned: those of types without mins have their bias added, which add_dot's caller takes off again.
template <class F>
constexpr bool kSignedCodes = false;

// Bits of codes as products tell them apart.
template <class F>
constexpr int kShapeBits = 7;

// Dot products of four codes and activations, a run of which is added up before it is scaled.
template <class F, int N>
constexpr int kTogether = N;
template <class F>
TRIGRAPH_INLINE Ints first_dots(Ints code, Ints x, const Int8Of<F>&, int) {
  return _mm512_dpbusd_epi32(ints(0), code, x);
}
template <class F>
TRIGRAPH_INLINE Ints add_dots(Ints sum, Ints code, Ints x) {
  return _mm512_dpbusd_epi32(sum, code, x);
}
TRIGRAPH_INLINE Ints add_scaled_dots(Ints sum, Ints part, Ints scale) {
  return add32(sum, _mm512_mullo_epi32(part, scale));
}
TRIGRAPH_INLINE Ints add_dots_once(Ints sum, Ints part) { return add32(sum, part); }
TRIGRAPH_INLINE void keep_order(Ints*) {}  // there are registers enough

// Scales of four runs, signed bytes of a lane: that of run k as add_dot takes it.
TRIGRAPH_INLINE Ints scale_of(Ints four, unsigned k) {
  return _mm512_srai_epi32(_mm512_slli_epi32(four, 24 - 8 * k), 24);
}

// Asks memory for share `step` of `steps` of the kBytes at p, which are read once: measured, wide rows too come faster
// so than into the second cache.
template <int kBytes>
TRIGRAPH_INLINE void fetch_share(const uint8_t* p, bool, int step, int steps) {
  for (int i = step * kBytes / steps / 64; i < (step + 1) * kBytes / steps / 64; ++i)
    __builtin_prefetch(p + 64 * i, 0, 0);
}

}  // namespace trigraph::TRIGRAPH_ISA
