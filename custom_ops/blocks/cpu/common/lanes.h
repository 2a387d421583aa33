// Weight rows side by side, one in each 32-bit lane: the codes, scales and halves of a super-block of kRowLanes rows.
// In the plain layout of a GGUF file they lie `stride` bytes apart; K types may be interleaved.h too. Codes are
// unsigned, with kBias added, unless kSignedCodes; a vector holds four neighbouring ones of each row, unless NEON says
// otherwise (kRowPairs).
#pragma once

#include "unpack.h"
#if defined(TRIGRAPH_ISA_avx512)
#include "../avx512/lanes.h"
#elif defined(TRIGRAPH_ISA_avx2)
#include "../avx2/lanes.h"
#else
#include "../neon/lanes.h"
#endif

namespace trigraph::TRIGRAPH_ISA {

TRIGRAPH_INLINE void load_rows(const uint8_t* p, int64_t stride, Ints* out) {
  load_each([p, stride](int row) TRIGRAPH_INLINE_LAMBDA { return p + row * stride; }, out);
}
// The half at p; the 14 bytes before it are read too.
TRIGRAPH_INLINE Ints load_halves(const uint8_t* p, int64_t stride) {
  Ints x[4];
  load_rows(p - 14, stride, x);
  return right32(x[3], 16);
}
#if !defined(TRIGRAPH_ISA_neon)
template <class F, class At>
TRIGRAPH_INLINE void load_row_codes(At p, int64_t stride, Ints* out) {
  load_rows(p, stride, out);
}
// The lowest kLow bits of each byte, and above them the lowest kCount of `high`.
template <int kLow, int kCount>
TRIGRAPH_INLINE Ints stacked(Ints low, Ints high) {
  return merge<(1 << kLow) - 1>(field<0, kCount, kLow>(high), low);
}
#endif

// Pairs of neighbouring runs from four runs in the bytes of a lane: runs 2 k and 2 k + 1, 16 bits each.
TRIGRAPH_INLINE Ints pair_of(Ints four, uint32_t k) {
  return sign_extend16(in_lane(four, 0x01800080u + (k * 2 << 24 | k * 2 << 8)));
}

// Any type, a code at a time; files named after families (k_lanes.h, say) have faster ones. Every type has
//   halves(p, stride)            d's half in the low 16 bits of a lane, dmin in the high ones; or d's exponent
//   codes(p, stride, use)        calls use(run, code) for each run of the block, in any order
// and one with scales also scales(p, stride, scales, mins): bytes of four runs in each lane. A type with several steps
// in a block has part_halves(p, stride, part) and calls use(part, code).
template <class F>
struct Lanes {
  static Ints halves(const uint8_t* p, int64_t stride) {
    uint32_t lane[kRowLanes];
    for (int r = 0; r < kRowLanes; ++r) {
      lane[r] = float_to_half(F::d(p + r * stride) / F::kUnit);
      if constexpr (F::kMin) lane[r] |= static_cast<uint32_t>(float_to_half(F::dmin(p + r * stride))) << 16;
    }
    return load_ints(lane);
  }
  static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints* mins) {
    for (int k = 0; k < F::kBlock / F::kRun / 4; ++k) {
      int8_t scale[kRowLanes][4], min[kRowLanes][4];
      for (int r = 0; r < kRowLanes; ++r)
        for (int i = 0; i < 4; ++i) {
          scale[r][i] = static_cast<int8_t>(F::scale(p + r * stride, 4 * k + i));
          if constexpr (F::kMin) min[r][i] = static_cast<int8_t>(F::min(p + r * stride, 4 * k + i));
        }
      scales[k] = load_ints(scale);
      if constexpr (F::kMin) mins[k] = load_ints(min);
    }
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    for (int run = 0; run < F::kBlock / F::kRun; ++run) {
      Ints code[F::kRun / 4];
      for (int v = 0; v < F::kRun / 4; ++v) {
        int8_t lane[kRowLanes][4];
        for (int r = 0; r < kRowLanes; ++r)
          for (int i = 0; i < 4; ++i) {
            const int at = run * F::kRun + 4 * v + i;
            const int bias = kSignedCodes<F> ? 0 : kBias<F>;
            lane[r][i] = static_cast<int8_t>(F::code(p + r * stride, at / 32, at % 32) + bias);
          }
        code[v] = load_ints(lane);
      }
      use(run, code);
    }
  }
};

// Types whose codes take long to find: `decode` does a whole block of 256 apart from the products, one copy of it for
// any number of activation rows.
template <class F>
struct DecodedLanes {
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    Ints code[F::kBlock / 4];
    Lanes<F>::decode(p, stride, code);
    TRIGRAPH_LOOP
    for (int run = 0; run < F::kBlock / F::kRun; ++run) use(run, code + run * F::kRun / 4);
  }
};

// d of each row, by what `halves` gives.
template <class F>
TRIGRAPH_INLINE Floats block_scales(Ints bits) {
  if constexpr (F::kUnit == 1) return halves(bits);
  if constexpr (F::kUnit != 0) return mul(halves(bits), floats(F::kUnit));
  // A power of two as the product of two, for the least ones are subnormal.
  const Ints part = right32(bits, 1), rest = sub32(bits, part);
  const auto power = [](Ints exponent) { return as_floats(left32(add32(exponent, ints(63)), 23)); };
  return mul(power(part), power(rest));
}

TRIGRAPH_INLINE Ints low4(Ints x) { return field<0, 4, 0>(x); }
TRIGRAPH_INLINE Ints high4(Ints x) { return field<4, 4, 0>(x); }
TRIGRAPH_INLINE void nibbles(const Ints* raw, Ints* code) {
  TRIGRAPH_UNROLL
  for (int v = 0; v < 4; ++v) code[v] = low4(raw[v]), code[4 + v] = high4(raw[v]);
}
// Levels of a table of 16 as codes.
template <class F, const int8_t (&kOf)[16]>
struct LevelCodes {
  alignas(16) int8_t code[16] = {};
  constexpr LevelCodes() {
    for (int i = 0; i < 16; ++i) code[i] = static_cast<int8_t>(kOf[i] + (kSignedCodes<F> ? 0 : kBias<F>));
  }
};
template <class F, const int8_t (&kOf)[16]>
TRIGRAPH_INLINE void levels(Ints* code) {
  static constexpr LevelCodes<F, kOf> kTable;
  TRIGRAPH_UNROLL
  for (int v = 0; v < 8; ++v) code[v] = look_up(kTable.code, code[v]);
}
// Fifth bits: bit i of each lane belongs to element i.
TRIGRAPH_INLINE void fifth_bits(Ints bits, Ints* code) {
  TRIGRAPH_UNROLL
  for (int v = 0; v < 8; ++v) {
    const Ints byte = in_lane(bits, 0x01010101u * static_cast<uint32_t>(v / 2));
    code[v] = either(code[v], where_bits(byte, ints(static_cast<int32_t>(v % 2 ? 0x80402010u : 0x08040201u)), 16));
  }
}

// d, and minus what a block adds, for blocks that start with them.
template <class At>
TRIGRAPH_INLINE Ints first_halves(At p, int64_t stride, bool min) {
  Ints x[4];
  load_rows(p, stride, x);
  return min ? add32(x[0], ints(INT32_MIN)) : x[0];
}

}  // namespace trigraph::TRIGRAPH_ISA
