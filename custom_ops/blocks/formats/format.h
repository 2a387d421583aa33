// What formats of blocks are made of; see formats.h.
#pragma once

#include "../../kernel.h"
#if defined(__device__)  // CUDA, or its emulator
#include "../../cuda/platform.cuh"
#define TRIGRAPH_DEVICE __device__ __forceinline__
#define TRIGRAPH_TABLE __device__ static const
#else
#include "../../simd.h"
#define TRIGRAPH_DEVICE inline
#define TRIGRAPH_TABLE inline constexpr
#endif

namespace trigraph::TRIGRAPH_ISA {

TRIGRAPH_DEVICE float read_half(const uint8_t* p) {
#if defined(__device__)
  return half_bits(*reinterpret_cast<const uint16_t*>(p));
#else
  uint16_t h;
  std::memcpy(&h, p, 2);
  return fast_half(h);
#endif
}

TRIGRAPH_DEVICE float float_of(uint32_t bits) {
#if defined(__device__)
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
#endif
}

// Every type has
//   kBlock, kBytes       elements and bytes of a block
//   kRun                 elements that share a scale and a min, 16 or 32
//   kUnit                d is a half times this, or another float for 0
//   kPaired              scales are wide: those of two runs of 16 are floats of their own in a product
//   kBits                codes are in [0, 2^kBits), and without mins in [-2^(kBits - 1), 2^(kBits - 1))
//   d(p), scale(p, run)  of the block at p and its run
//   code(p, part, i)     element i of the block's 32 elements from 32 * part on
// and with kMin also dmin(p) and min(p, run).
struct Blocks32 {
  static constexpr int kBlock = 32, kRun = 32;
  static constexpr float kUnit = 1;
  static constexpr bool kMin = false, kPaired = false;
  static constexpr DType kDType = DType::u8;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p); }
  TRIGRAPH_DEVICE static int scale(const uint8_t*, int) { return 1; }
};
struct Blocks32WithMin : Blocks32 {
  static constexpr bool kMin = true;
  TRIGRAPH_DEVICE static float dmin(const uint8_t* p) { return -read_half(p + 2); }  // blocks hold what is added
  TRIGRAPH_DEVICE static int min(const uint8_t*, int) { return 1; }
};
struct Blocks256 {
  static constexpr int kBlock = 256;
  static constexpr float kUnit = 1;
  static constexpr bool kPaired = false;
  static constexpr DType kDType = DType::u8;
};

// Elements of a step, which has floats of its own in a product with int8: a block of 256, or a part of any other; and
// the steps of a block.
template <class F>
constexpr int kStep = F::kBlock == 256 ? 256 : 32;
template <class F>
constexpr int kSteps = F::kBlock / kStep<F>;

// What a step's integers are multiplied by: d, and dmin or, with kPaired, minus the second run's scale.
template <class F>
TRIGRAPH_DEVICE float step_d(const uint8_t* p, int step) {
  if constexpr (F::kPaired) return F::d(p) * static_cast<float>(F::scale(p, 2 * step));
  return F::d(p);
}
template <class F>
TRIGRAPH_DEVICE float step_dmin(const uint8_t* p, int step) {
  if constexpr (F::kPaired)
    return -F::d(p) * static_cast<float>(F::scale(p, 2 * step + 1));
  else
    return F::dmin(p);
}
template <class F>
constexpr bool kTwoSums = F::kMin || F::kPaired;

// 16 bytes of nibbles: the low ones are elements 0 to 15, the high ones 16 to 31.
TRIGRAPH_DEVICE int nibble(const uint8_t* p, int i) { return p[i % 16] >> i / 16 * 4 & 15; }
// Bit i of the bytes at p.
TRIGRAPH_DEVICE int bit(const uint8_t* p, int i) { return p[i / 8] >> i % 8 & 1; }

}  // namespace trigraph::TRIGRAPH_ISA
