// Four weight rows side by side, one in each 32-bit lane: NEON, with or without its dot products.
#pragma once

#include <type_traits>

#include "../common/activations.h"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kRowLanes = 4;
using Ints = int32x4_t;
using Floats = float32x4_t;

TRIGRAPH_INLINE int8x16_t as8(Ints a) { return vreinterpretq_s8_s32(a); }
TRIGRAPH_INLINE int16x8_t as16(Ints a) { return vreinterpretq_s16_s32(a); }
TRIGRAPH_INLINE Ints ints(int32_t x) { return vdupq_n_s32(x); }
TRIGRAPH_INLINE Ints shorts(int x) { return vreinterpretq_s32_s16(vdupq_n_s16(static_cast<int16_t>(x))); }
TRIGRAPH_INLINE Ints bytes(int x) { return vreinterpretq_s32_s8(vdupq_n_s8(static_cast<int8_t>(x))); }
TRIGRAPH_INLINE Ints load_ints(const void* p) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p))); }
TRIGRAPH_INLINE Ints add32(Ints a, Ints b) { return vaddq_s32(a, b); }
TRIGRAPH_INLINE Ints sub32(Ints a, Ints b) { return vsubq_s32(a, b); }
TRIGRAPH_INLINE Ints add8(Ints a, Ints b) { return vreinterpretq_s32_s8(vaddq_s8(as8(a), as8(b))); }
TRIGRAPH_INLINE Ints sub8(Ints a, Ints b) { return vreinterpretq_s32_s8(vsubq_s8(as8(a), as8(b))); }
TRIGRAPH_INLINE Ints both(Ints a, Ints b) { return vandq_s32(a, b); }
TRIGRAPH_INLINE Ints either(Ints a, Ints b) { return vorrq_s32(a, b); }
TRIGRAPH_INLINE Ints differing(Ints a, Ints b) { return veorq_s32(a, b); }
TRIGRAPH_INLINE Ints left16(Ints a, int n) {
  return vreinterpretq_s32_s16(vshlq_s16(as16(a), vdupq_n_s16(static_cast<int16_t>(n))));
}
TRIGRAPH_INLINE Ints right16(Ints a, int n) {
  return vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(a), vdupq_n_s16(static_cast<int16_t>(-n))));
}
TRIGRAPH_INLINE Ints left32(Ints a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
TRIGRAPH_INLINE Ints right32(Ints a, int n) {
  return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n)));
}
// kCount bits of each byte from bit kFrom on, moved to bit kTo; the others are zero.
template <int kFrom, int kCount, int kTo>
TRIGRAPH_INLINE Ints field(Ints a) {
  const uint8x16_t x = vreinterpretq_u8_s32(a);
  if constexpr (kFrom > kTo) a = vreinterpretq_s32_u8(vshrq_n_u8(x, kFrom - kTo));
  if constexpr (kFrom < kTo) a = vreinterpretq_s32_u8(vshlq_n_u8(x, kTo - kFrom));
  return kTo == 0 && kFrom + kCount == 8 ? a : both(a, bytes(((1 << kCount) - 1) << kTo));
}
// a, whose bits in kMask are zero, and those of b.
template <int kMask>
TRIGRAPH_INLINE Ints merge(Ints a, Ints b) {
  return vbslq_s32(vreinterpretq_u32_s32(bytes(kMask)), b, a);
}
// The lowest kLow bits of each byte, and above them the lowest kCount of `high`.
template <int kLow, int kCount>
TRIGRAPH_INLINE Ints stacked(Ints low, Ints high) {
  const uint8x16_t all = vsliq_n_u8(vreinterpretq_u8_s32(low), vreinterpretq_u8_s32(high), kLow);
  return both(vreinterpretq_s32_u8(all), bytes((1 << (kLow + kCount)) - 1));
}
// The bytes of a 16-byte table by the low four bits of each byte.
TRIGRAPH_INLINE Ints look_up(const int8_t* table, Ints a) {
  return vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_s32(a)));
}
// Byte i of each lane is the one that byte i of `order` names, or zero for 0x80.
TRIGRAPH_INLINE Ints in_lane(Ints a, uint32_t order) {
  static constexpr uint32_t kLanes[4] = {0, 0x04040404, 0x08080808, 0x0c0c0c0c};
  const uint32x4_t byte = vaddq_u32(vld1q_u32(kLanes), vdupq_n_u32(order));
  return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_u32(byte)));
}
TRIGRAPH_INLINE Ints sign_extend16(Ints a) { return vreinterpretq_s32_s16(vshrq_n_s16(as16(a), 8)); }
// `value` in the bytes that share a bit with `bits`.
TRIGRAPH_INLINE Ints where_bits(Ints a, Ints bits, int value) {
  return both(vreinterpretq_s32_u8(vtstq_s8(as8(a), as8(bits))), bytes(value));
}
// a, negative in the bytes that share a bit with `bits`.
TRIGRAPH_INLINE Ints signed_by(Ints a, Ints sign, Ints bits) {
  return vreinterpretq_s32_s8(vbslq_s8(vtstq_s8(as8(sign), as8(bits)), vnegq_s8(as8(a)), as8(a)));
}
TRIGRAPH_INLINE Floats to_floats(Ints a) { return vcvtq_f32_s32(a); }
TRIGRAPH_INLINE Floats as_floats(Ints a) { return vreinterpretq_f32_s32(a); }
// The half in the low 16 bits of each lane.
TRIGRAPH_INLINE Floats halves(Ints a) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(a))));
}
TRIGRAPH_INLINE Floats floats(float x) { return vdupq_n_f32(x); }
// a * b - c
TRIGRAPH_INLINE Floats fmsub(Floats a, Floats b, Floats c) { return vfmaq_f32(vnegq_f32(c), a, b); }
TRIGRAPH_INLINE void store(float* p, Floats x) { vst1q_f32(p, x); }

// Dword i of the 16 bytes at at(row), for each row: out[i].
template <class At>
TRIGRAPH_INLINE void load_each(At&& at, Ints* out) {
  const Ints x0 = load_ints(at(0)), x1 = load_ints(at(1)), x2 = load_ints(at(2)), x3 = load_ints(at(3));
  const auto pairs = [](Ints a) { return vreinterpretq_s64_s32(a); };
  const int64x2_t a = pairs(vtrn1q_s32(x0, x1)), b = pairs(vtrn2q_s32(x0, x1));
  const int64x2_t c = pairs(vtrn1q_s32(x2, x3)), d = pairs(vtrn2q_s32(x2, x3));
  out[0] = vreinterpretq_s32_s64(vtrn1q_s64(a, c)), out[1] = vreinterpretq_s32_s64(vtrn1q_s64(b, d));
  out[2] = vreinterpretq_s32_s64(vtrn2q_s64(a, c)), out[3] = vreinterpretq_s32_s64(vtrn2q_s64(b, d));
}

// Types of whose codes a vector holds eight neighbouring ones of two rows, not four of each row: of rows 0 and 1, then
// of rows 2 and 3. It takes fewer instructions, where each byte is taken apart like the others.
template <class F>
constexpr bool kRowPairs = is_one_of<F>(Types<Q8_0, Q4_0, Q4_1, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS>());

// 16 bytes of each row, as codes of F lie.
template <class F>
TRIGRAPH_INLINE void load_row_codes(const uint8_t* p, int64_t stride, Ints* out) {
  const auto row = [=](int i) TRIGRAPH_INLINE_LAMBDA { return p + i * stride; };
  if constexpr (kRowPairs<F>) {
    int64x2_t x[4];
    TRIGRAPH_UNROLL
    for (int i = 0; i < 4; ++i) x[i] = vreinterpretq_s64_s32(load_ints(row(i)));
    out[0] = vreinterpretq_s32_s64(vzip1q_s64(x[0], x[1])), out[1] = vreinterpretq_s32_s64(vzip1q_s64(x[2], x[3]));
    out[2] = vreinterpretq_s32_s64(vzip2q_s64(x[0], x[1])), out[3] = vreinterpretq_s32_s64(vzip2q_s64(x[2], x[3]));
  } else {
    load_each(row, out);
  }
}

TRIGRAPH_INLINE Ints broadcast(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return ints(x);
}
TRIGRAPH_INLINE Ints broadcast8(const int8_t* p) {
  int64_t x;
  std::memcpy(&x, p, 8);
  return vreinterpretq_s32_s64(vdupq_n_s64(x));
}

// Codes of eight bits are signed; any fewer fit a signed byte with their bias added.
template <class F>
constexpr bool kSignedCodes = F::kBits == 8;

// sum + the products of the four signed bytes of each lane.
TRIGRAPH_INLINE Ints add_bytes(Ints sum, Ints a, Ints b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, as8(a), as8(b));
#else
  const int16x8_t low = vmull_s8(vget_low_s8(as8(a)), vget_low_s8(as8(b))), high = vmull_high_s8(as8(a), as8(b));
  return vpadalq_s16(sum, vpaddq_s16(low, high));  // two products fit 16 bits
#endif
}
// Products of 4 * N codes with as many activations, from the first on: sum + scale * dot.
template <class F, int N>
TRIGRAPH_INLINE Ints add_dot(Ints sum, const Ints* code, const Int8Of<F>& x, int first, Ints scale) {
  const int8_t* a = x.code + first;
  Ints dot = ints(0);
  if constexpr (kRowPairs<F>) {
    Ints part[2] = {dot, dot};
    TRIGRAPH_UNROLL
    for (int v = 0; v < N; ++v) part[v % 2] = add_bytes(part[v % 2], code[v], broadcast8(a + v / 2 * 8));
    dot = vpaddq_s32(part[0], part[1]);
  } else {
    TRIGRAPH_UNROLL
    for (int v = 0; v < N; ++v) dot = add_bytes(dot, code[v], broadcast(a + 4 * v));
  }
  return kStep<F> == 32 ? add32(sum, dot) : vmlaq_s32(sum, dot, scale);
}
// sum + the products of pairs of 16-bit numbers.
TRIGRAPH_INLINE Ints add_pairs(Ints sum, Ints a, Ints b) {
  const Ints low = vmull_s16(vget_low_s16(as16(a)), vget_low_s16(as16(b))), high = vmull_high_s16(as16(a), as16(b));
  return add32(sum, vpaddq_s32(low, high));
}

// Scales of four runs, signed bytes of a lane: that of run k as add_dot takes it.
TRIGRAPH_INLINE Ints scale_of(Ints four, uint32_t k) {
  return vshrq_n_s32(left32(four, static_cast<int>(24 - 8 * k)), 24);
}

// Asks memory for share `step` of `steps` of the kBytes at p. Wide rows go to the second cache.
template <int kBytes>
TRIGRAPH_INLINE void fetch_share(const uint8_t* p, bool wide, int step, int steps) {
  for (int i = step * kBytes / steps / 64; i < (step + 1) * kBytes / steps / 64; ++i)
    wide ? __builtin_prefetch(p + 64 * i, 0, 2) : prefetch(p + 64 * i);
}

}  // namespace trigraph::TRIGRAPH_ISA
