// What formats of blocks are made of; see formats.h.
#pragma once

#include "../kernel.h"
#if defined(__device__)  // CUDA, or its emulator
#include "../cuda/device.cuh"
#define TRIGRAPH_DEVICE __device__ __forceinline__
#define TRIGRAPH_TABLE __device__ static const
#else
#include "../simd.h"
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
//   kBits                codes are in [0, 2^kBits), and without mins in [-2^(kBits - 1), 2^(kBits - 1))
//   d(p), scale(p, run)  of the block at p and its run
//   code(p, part, i)     element i of the block's 32 elements from 32 * part on
// and with kMin also dmin(p) and min(p, run).
struct Blocks32 {
  static constexpr int kBlock = 32, kRun = 32;
  static constexpr float kUnit = 1;
  static constexpr bool kMin = false;
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
  static constexpr DType kDType = DType::u8;
};

// 16 bytes of nibbles: the low ones are elements 0 to 15, the high ones 16 to 31.
TRIGRAPH_DEVICE int nibble(const uint8_t* p, int i) { return p[i % 16] >> i / 16 * 4 & 15; }
// Bit i of the bytes at p.
TRIGRAPH_DEVICE int bit(const uint8_t* p, int i) { return p[i / 8] >> i % 8 & 1; }

}  // namespace trigraph::TRIGRAPH_ISA
