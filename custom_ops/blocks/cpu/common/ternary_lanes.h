// Blocks of two bits and less, by rows as lanes.
#pragma once

#include "lanes.h"

namespace trigraph::TRIGRAPH_ISA {

// No scales but the block's.
template <class F>
struct UnscaledLanes : DecodedLanes<F> {
  TRIGRAPH_INLINE static void scales(const uint8_t*, int64_t, Ints* scales, Ints*) { scales[0] = scales[1] = bytes(1); }
};

template <>
struct Lanes<TQ2_0> : UnscaledLanes<TQ2_0> {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) {
    Ints x[4];
    load_rows(p + 50, stride, x);
    return right32(x[3], 16);
  }
  TRIGRAPH_NOINLINE static void decode(const uint8_t* p, int64_t stride, Ints* code) {
    TRIGRAPH_LOOP
    for (int half = 0; half < 2; ++half) {
      Ints raw[8];
      load_rows(p + 32 * half, stride, raw);
      load_rows(p + 32 * half + 16, stride, raw + 4);
      TRIGRAPH_LOOP
      for (int quarter = 0; quarter < 4; ++quarter, code += 8) {
        TRIGRAPH_UNROLL
        for (int v = 0; v < 8; ++v) {
          code[v] = add8(both(raw[v], bytes(3)), bytes(kBias<TQ2_0> - 1));
          raw[v] = right16(raw[v], 2);
        }
      }
    }
  }
};

template <>
struct Lanes<TQ1_0> : UnscaledLanes<TQ1_0> {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) {
    Ints x[4];
    load_rows(p + 38, stride, x);
    return right32(x[3], 16);
  }
  TRIGRAPH_NOINLINE static void decode(const uint8_t* p, int64_t stride, Ints* code) {
    Ints raw[8];
    load_rows(p, stride, raw);
    load_rows(p + 16, stride, raw + 4);
    TRIGRAPH_LOOP
    for (int part = 0; part < 5; ++part, code += 8) {
      TRIGRAPH_UNROLL
      for (int v = 0; v < 8; ++v) code[v] = digit(&raw[v]);
    }
    Ints last[4];  // the two bytes before those of the last digits, which belong to the sixteen
    load_rows(p + 32, stride, raw);
    load_rows(p + 38, stride, last);
    last[0] = either(right32(last[2], 16), left32(last[3], 16));
    TRIGRAPH_LOOP
    for (int part = 5; part < 8; ++part, code += 8) {
      TRIGRAPH_UNROLL
      for (int v = 0; v < 4; ++v) code[v] = digit(&raw[v]);
      TRIGRAPH_UNROLL
      for (int v = 4; v < 8; ++v) code[v] = digit(part < 7 ? &raw[v - 4] : last);
    }
  }

 private:
  // The next digit of each byte, and what is left of it: three times a byte is the digit and a fraction of 256.
  TRIGRAPH_INLINE static Ints digit(Ints* fraction) {
    const auto three_times = [](Ints x) TRIGRAPH_INLINE_LAMBDA { return add32(x, add32(x, x)); };
    const Ints even = three_times(both(*fraction, ints(0x00ff00ff)));
    const Ints odd = three_times(both(right16(*fraction, 8), ints(0x00ff00ff)));
    *fraction = either(both(even, ints(0x00ff00ff)), left16(odd, 8));
    const Ints number = either(right16(even, 8), both(odd, ints(static_cast<int32_t>(0xff00ff00u))));
    return add8(number, bytes(kBias<TQ1_0> - 1));
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
