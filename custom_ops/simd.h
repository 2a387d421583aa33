// Sixteen lanes of float32 on every instruction set: vf, in as many registers ("parts") as it takes. An operation has
// the same bits on every set: IEEE arithmetic in each lane, fused where it says so, and one tree for a sum over the
// lanes.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__)
#define TRIGRAPH_INLINE __attribute__((always_inline)) inline
#define TRIGRAPH_INLINE_LAMBDA __attribute__((always_inline))
#define TRIGRAPH_NOINLINE __attribute__((noinline))
#define TRIGRAPH_RESTRICT __restrict__
#else
#define TRIGRAPH_INLINE inline
#define TRIGRAPH_INLINE_LAMBDA
#define TRIGRAPH_NOINLINE
#define TRIGRAPH_RESTRICT
#endif

// Before a loop over a template's row count: its arrays of vectors must live in registers, where there are such.
#if defined(TRIGRAPH_ISA_portable)
#define TRIGRAPH_UNROLL
#elif defined(__clang__)
#define TRIGRAPH_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define TRIGRAPH_UNROLL _Pragma("GCC unroll 16")
#else
#define TRIGRAPH_UNROLL
#endif

#if defined(TRIGRAPH_ISA_avx512)
#include "simd/avx512.h"
#elif defined(TRIGRAPH_ISA_avx2)
#include "simd/avx2.h"
#elif defined(TRIGRAPH_ISA_neon)
#include "simd/neon.h"
#else
#include "simd/portable.h"
#endif
#include "simd/half.h"

namespace trigraph::TRIGRAPH_ISA {

#if defined(__GNUC__)
// Always inline: GCC drops a call of a function that only prefetches.
TRIGRAPH_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
// Asks for what a step reads once, and at this place of the code: compilers gather prefetches, and many at once hold up
// the loads behind them.
TRIGRAPH_INLINE void prefetch_here(const void* p) {
  asm volatile("" : : : "memory");
  __builtin_prefetch(p, 0, 0);
}
// Keeps the compiler from turning one offset into a pointer for every row that it is added to: they would not fit
// registers.
inline void opaque(int64_t* offset) { asm("" : "+r"(*offset)); }
#else
inline void prefetch(const void*) {}
inline void prefetch_here(const void*) {}
inline void opaque(int64_t*) {}
#endif

constexpr int VL = 16, kParts = VL / kPartLanes;
struct vf {
  Part part[kParts];
};

#define TRIGRAPH_PARTS(expression)                         \
  vf r;                                                    \
  TRIGRAPH_UNROLL                                          \
  for (int i = 0; i < kParts; ++i) r.part[i] = expression; \
  return r
TRIGRAPH_INLINE vf load(const float* p) { TRIGRAPH_PARTS(load_part(p + i * kPartLanes)); }
TRIGRAPH_INLINE vf load_f16(const uint16_t* p) { TRIGRAPH_PARTS(load_f16_part(p + i * kPartLanes)); }
TRIGRAPH_INLINE vf load_bf16(const uint16_t* p) { TRIGRAPH_PARTS(load_bf16_part(p + i * kPartLanes)); }
TRIGRAPH_INLINE vf splat(float x) { TRIGRAPH_PARTS(splat_part(x)); }
TRIGRAPH_INLINE vf zero() { TRIGRAPH_PARTS(zero_part()); }
TRIGRAPH_INLINE vf add(vf a, vf b) { TRIGRAPH_PARTS(add(a.part[i], b.part[i])); }
TRIGRAPH_INLINE vf sub(vf a, vf b) { TRIGRAPH_PARTS(sub(a.part[i], b.part[i])); }
TRIGRAPH_INLINE vf mul(vf a, vf b) { TRIGRAPH_PARTS(mul(a.part[i], b.part[i])); }
TRIGRAPH_INLINE vf div(vf a, vf b) { TRIGRAPH_PARTS(div(a.part[i], b.part[i])); }
TRIGRAPH_INLINE vf max(vf a, vf b) { TRIGRAPH_PARTS(max(a.part[i], b.part[i])); }  // a > b ? a : b
TRIGRAPH_INLINE vf min(vf a, vf b) { TRIGRAPH_PARTS(min(a.part[i], b.part[i])); }  // a < b ? a : b
TRIGRAPH_INLINE vf fmadd(vf a, vf b, vf c) { TRIGRAPH_PARTS(fmadd(a.part[i], b.part[i], c.part[i])); }
TRIGRAPH_INLINE vf round(vf x) { TRIGRAPH_PARTS(round(x.part[i])); }  // to the nearest even integer
TRIGRAPH_INLINE vf pow2(vf n) { TRIGRAPH_PARTS(pow2(n.part[i])); }    // 2^n of integers from -126 to 127
#undef TRIGRAPH_PARTS
TRIGRAPH_INLINE void store(float* p, vf x) {
  TRIGRAPH_UNROLL
  for (int i = 0; i < kParts; ++i) store_part(p + i * kPartLanes, x.part[i]);
}
TRIGRAPH_INLINE void store_f16(uint16_t* p, vf x) {
  TRIGRAPH_UNROLL
  for (int i = 0; i < kParts; ++i) store_f16_part(p + i * kPartLanes, x.part[i]);
}
// out[j] lane i = p[4 i + j], for j from 0 to 3.
TRIGRAPH_INLINE void load_transposed4(const float* p, vf* out) {
  TRIGRAPH_UNROLL
  for (int i = 0; i < kParts; ++i) {
    Part column[4];
    load_transposed4_part(p + 4 * i * kPartLanes, column);
    for (int j = 0; j < 4; ++j) out[j].part[i] = column[j];
  }
}

// The first n lanes, n >= 0: as many as there are.
inline vf load_first(const float* p, int64_t n) {
  if (n >= VL) return load(p);
  float lanes[VL] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}
inline void store_first(float* p, vf x, int64_t n) {
  if (n >= VL) return store(p, x);
  float lanes[VL];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}

// Lane i + 8 is added to lane i, then i + 4, i + 2 and i + 1.
TRIGRAPH_INLINE Part fold(vf x) {  // the steps between registers
  TRIGRAPH_UNROLL
  for (int n = kParts / 2; n > 0; n /= 2) TRIGRAPH_UNROLL
  for (int i = 0; i < n; ++i) x.part[i] = add(x.part[i], x.part[i + n]);
  return x.part[0];
}
TRIGRAPH_INLINE float reduce_add(vf x) { return reduce_add(fold(x)); }
// out[i] = reduce_add of the i-th argument, with the same bits.
TRIGRAPH_INLINE void reduce_add4(vf a, vf b, vf c, vf d, float* out) {
  reduce_add4(fold(a), fold(b), fold(c), fold(d), out);
}

// e^x by range reduction to [-ln2/2, ln2/2] and a degree-6 polynomial (coefficients of the Cephes expf). A lane's
// bits depend on that lane alone. Inputs are clamped to [-87.3, 88.4].
TRIGRAPH_INLINE vf exp(vf x) {
  x = min(splat(88.37626f), max(splat(-87.33654f), x));  // in this order NaN stays NaN
  vf n = round(mul(x, splat(1.44269504f)));
  vf r = fmadd(n, splat(-0.693359375f), x);
  r = fmadd(n, splat(2.12194440e-4f), r);
  vf p = splat(1.9875691500e-4f);
  p = fmadd(p, r, splat(1.3981999507e-3f));
  p = fmadd(p, r, splat(8.3334519073e-3f));
  p = fmadd(p, r, splat(4.1665795894e-2f));
  p = fmadd(p, r, splat(1.6666665459e-1f));
  p = fmadd(p, r, splat(5.0000001201e-1f));
  vf r2 = mul(r, r);
  p = add(fmadd(p, r2, r), splat(1.0f));
  return mul(p, pow2(n));
}
TRIGRAPH_INLINE vf sigmoid(vf x) { return div(splat(1), add(splat(1), exp(sub(zero(), x)))); }
TRIGRAPH_INLINE vf silu(vf x) { return mul(x, sigmoid(x)); }

// Functions of vectors for one value, through a vector: the same bits in every lane.
inline float lane0(vf x) {
  float lanes[VL];
  store(lanes, x);
  return lanes[0];
}
inline float sigmoid(float x) { return lane0(sigmoid(splat(x))); }
inline float silu(float x) { return lane0(silu(splat(x))); }

}  // namespace trigraph::TRIGRAPH_ISA
