// Weight rows side by side, one in each 32-bit lane, from the plain layout of a GGUF file: the codes, scales and halves
// of a super-block of kRowLanes rows that lie `stride` bytes apart. Codes are unsigned, with kBias added, unless
// kSignedCodes; a vector holds four neighbouring ones of each row, unless NEON says otherwise (kRowPairs).
#pragma once

#include "unpack.h"
#if defined(TRIGRAPH_ISA_avx512)
#include "lanes_avx512.h"
#elif defined(TRIGRAPH_ISA_avx2)
#include "lanes_avx2.h"
#else
#include "lanes_neon.h"
#endif

namespace trigraph::TRIGRAPH_ISA {

TRIGRAPH_INLINE void load_rows(const uint8_t* p, int64_t stride, Ints* out) {
  load_each([p, stride](int row) TRIGRAPH_INLINE_LAMBDA { return p + row * stride; }, out);
}
#if !defined(TRIGRAPH_ISA_neon)
template <class F>
TRIGRAPH_INLINE void load_codes(const uint8_t* p, int64_t stride, Ints* out) {
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

// Any type, a code at a time; below are faster ones. Every type has
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
TRIGRAPH_INLINE Ints first_halves(const uint8_t* p, int64_t stride, bool min) {
  Ints x[4];
  load_rows(p, stride, x);
  return min ? add32(x[0], ints(INT32_MIN)) : x[0];
}

template <class F, int kData>
struct NibbleLanes {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) { return first_halves(p, stride, F::kMin); }
  TRIGRAPH_INLINE static void load(const uint8_t* p, int64_t stride, Ints* code) {
    Ints raw[4];
    load_codes<F>(p + kData, stride, raw);
    nibbles(raw, code);
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    Ints code[8];
    load(p, stride, code);
    use(0, code);
  }
};
template <>
struct Lanes<Q4_0> : NibbleLanes<Q4_0, 2> {};
template <>
struct Lanes<Q4_1> : NibbleLanes<Q4_1, 4> {};
template <>
struct Lanes<IQ4_NL> : NibbleLanes<IQ4_NL, 2> {
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    Ints code[8];
    load(p, stride, code);
    levels<IQ4_NL, levels4>(code);
    use(0, code);
  }
};
template <>
struct Lanes<Q5_0> : NibbleLanes<Q5_0, 6> {
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    Ints head[4], code[8];
    load_rows(p, stride, head);
    load(p, stride, code);
    fifth_bits(either(right32(head[0], 16), left32(head[1], 16)), code);
    use(0, code);
  }
};
template <>
struct Lanes<Q5_1> : NibbleLanes<Q5_1, 8> {
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    Ints head[4], code[8];
    load_rows(p, stride, head);
    load(p, stride, code);
    fifth_bits(head[1], code);
    use(0, code);
  }
};

template <>
struct Lanes<MXFP4> : NibbleLanes<MXFP4, 1> {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) {
    return both(first_halves(p, stride, false), ints(255));
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    Ints code[8];
    load(p, stride, code);
    levels<MXFP4, fp4_levels>(code);
    use(0, code);
  }
};

// The scales of two runs.
template <>
struct Lanes<NVFP4> {
  TRIGRAPH_INLINE static Ints part_halves(const uint8_t* p, int64_t stride, int part) {
    Ints x[4];
    load_rows(p, stride, x);
    const Ints two = in_lane(x[0], 0x80018000u + static_cast<uint32_t>(part) * 0x00020002u);
    const Ints top = both(both(add8(two, ints(0x00010001)), sub8(bytes(-1), two)), ints(0x00800080));  // of a 127 alone
    return left16(sub8(both(two, ints(0x007f007f)), sub8(top, right16(top, 7))), 7);
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    TRIGRAPH_UNROLL
    for (int part = 0; part < 2; ++part) {
      Ints raw[4], code[8];
      load_rows(p + 4 + 16 * part, stride, raw);
      TRIGRAPH_UNROLL
      for (int v = 0; v < 4; ++v) {
        const int at = v / 2 * 4 + v % 2;
        code[at] = low4(raw[v]), code[at + 2] = high4(raw[v]);
      }
      levels<NVFP4, fp4_levels>(code);
      use(part, code);
    }
  }
};

template <>
struct Lanes<Q1_0> {
  TRIGRAPH_INLINE static Ints part_halves(const uint8_t* p, int64_t stride, int) {
    return first_halves(p, stride, false);
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    Ints bits[4];
    load_rows(p + 2, stride, bits);
    TRIGRAPH_UNROLL
    for (int part = 0; part < 4; ++part) {
      Ints code[8];
      TRIGRAPH_UNROLL
      for (int v = 0; v < 8; ++v) {
        const Ints byte = in_lane(bits[part], 0x01010101u * static_cast<uint32_t>(v / 2));
        const Ints plus = where_bits(byte, ints(static_cast<int32_t>(v % 2 ? 0x80402010u : 0x08040201u)), 2);
        code[v] = add8(plus, bytes(kBias<Q1_0> - 1));
      }
      use(part, code);
    }
  }
};

template <>
struct Lanes<Q8_0> {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) { return first_halves(p, stride, false); }
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    Ints code[8];
    load_codes<Q8_0>(p + 2, stride, code);
    load_codes<Q8_0>(p + 18, stride, code + 4);
    if (!kSignedCodes<Q8_0>) {
      TRIGRAPH_UNROLL
      for (int v = 0; v < 8; ++v) code[v] = sub8(code[v], bytes(-128));
    }
    use(0, code);
  }
};

// 6-bit scales and mins in the 12 bytes behind the halves.
struct SixBitLanes {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) { return first_halves(p, stride, false); }
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints* mins) {
    Ints head[4];
    load_rows(p, stride, head);
    const auto joined = [](Ints low, Ints high) { return either(low4(low), both(right16(high, 2), bytes(48))); };
    scales[0] = both(head[1], bytes(63)), scales[1] = joined(head[3], head[1]);
    mins[0] = both(head[2], bytes(63)), mins[1] = joined(right16(head[3], 4), head[2]);
  }
};
template <>
struct Lanes<Q4_K> : SixBitLanes {
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    TRIGRAPH_LOOP
    for (int c = 0; c < 4; ++c) {
      Ints raw[8], code[8];
      load_codes<Q4_K>(p + 16 + 32 * c, stride, raw);
      load_codes<Q4_K>(p + 32 + 32 * c, stride, raw + 4);
      TRIGRAPH_UNROLL
      for (int v = 0; v < 8; ++v) code[v] = low4(raw[v]);
      use(2 * c, code);
      TRIGRAPH_UNROLL
      for (int v = 0; v < 8; ++v) code[v] = high4(raw[v]);
      use(2 * c + 1, code);
    }
  }
};
template <>
struct Lanes<Q5_K> : SixBitLanes {
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    Ints high[8];  // bit r belongs to run r; the next two come first
    load_codes<Q5_K>(p + 16, stride, high);
    load_codes<Q5_K>(p + 32, stride, high + 4);
    TRIGRAPH_LOOP
    for (int c = 0; c < 4; ++c) {
      Ints raw[8], code[8];
      load_codes<Q5_K>(p + 48 + 32 * c, stride, raw);
      load_codes<Q5_K>(p + 64 + 32 * c, stride, raw + 4);
      TRIGRAPH_UNROLL
      for (int v = 0; v < 8; ++v) code[v] = stacked<4, 1>(raw[v], high[v]);
      use(2 * c, code);
      TRIGRAPH_UNROLL
      for (int v = 0; v < 8; ++v) {
        code[v] = either(high4(raw[v]), field<1, 1, 4>(high[v]));
        high[v] = right16(high[v], 2);
      }
      use(2 * c + 1, code);
    }
  }
};

template <>
struct Lanes<Q6_K> {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) {
    Ints x[4];
    load_rows(p + 194, stride, x);
    return right32(x[3], 16);
  }
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints*) {
    load_rows(p + 192, stride, scales);
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    TRIGRAPH_LOOP
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2, e = i % 2;  // elements 128 * half + 32 * quarter + 16 * e on, for four quarters
      Ints high[4];
      load_codes<Q6_K>(p + 128 + 32 * half + 16 * e, stride, high);
      TRIGRAPH_LOOP
      for (int k = 0; k < 2; ++k) {
        Ints raw[4], code[4];
        load_codes<Q6_K>(p + 64 * half + 32 * k + 16 * e, stride, raw);
        TRIGRAPH_UNROLL
        for (int v = 0; v < 4; ++v) code[v] = stacked<4, 2>(raw[v], high[v]);
        use(8 * half + 2 * k + e, code);
        TRIGRAPH_UNROLL
        for (int v = 0; v < 4; ++v) {
          code[v] = merge<48>(high4(raw[v]), high[v]);
          high[v] = right16(high[v], 2);
        }
        use(8 * half + 2 * k + 4 + e, code);
      }
    }
  }
};

template <>
struct Lanes<Q2_K> {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) {
    Ints x[4];
    load_rows(p + 68, stride, x);
    return x[3];
  }
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints* mins) {
    Ints packed[4];
    load_rows(p, stride, packed);
    TRIGRAPH_UNROLL
    for (int k = 0; k < 4; ++k) scales[k] = low4(packed[k]), mins[k] = high4(packed[k]);
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    TRIGRAPH_LOOP
    for (int i = 0; i < 4; ++i) {
      Ints raw[4], code[4];
      load_codes<Q2_K>(p + 16 + 16 * i, stride, raw);
      TRIGRAPH_LOOP
      for (int q = 0; q < 4; ++q) {
        TRIGRAPH_UNROLL
        for (int v = 0; v < 4; ++v) code[v] = both(raw[v], bytes(3)), raw[v] = right16(raw[v], 2);
        use(i / 2 * 8 + 2 * q + i % 2, code);
      }
    }
  }
};

template <>
struct Lanes<Q3_K> {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) {
    Ints x[4];
    load_rows(p + 94, stride, x);
    return right32(x[3], 16);
  }
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints*) {
    Ints x[4];  // two bytes before the scales, then their 12, then the half
    load_rows(p + 94, stride, x);
    const auto word = [&x](int i) { return either(right32(x[i], 16), left32(x[i + 1], 16)); };
    const Ints a = word(0), b = word(1), high = word(2);
    const auto joined = [](Ints low, Ints high) { return sub8(either(low4(low), both(high, bytes(48))), bytes(32)); };
    scales[0] = joined(a, left16(high, 4)), scales[1] = joined(b, left16(high, 2));
    scales[2] = joined(right16(a, 4), high), scales[3] = joined(right16(b, 4), right16(high, 2));
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    TRIGRAPH_LOOP
    for (int e = 0; e < 2; ++e) {
      Ints high[4];  // bit k belongs to element 32 * k + 16 * e on; the next one comes first
      load_codes<Q3_K>(p + 16 * e, stride, high);
      TRIGRAPH_LOOP
      for (int half = 0; half < 2; ++half) {
        Ints raw[4], code[4];
        load_codes<Q3_K>(p + 32 + 32 * half + 16 * e, stride, raw);
        TRIGRAPH_LOOP
        for (int q = 0; q < 4; ++q) {
          TRIGRAPH_UNROLL
          for (int v = 0; v < 4; ++v) {
            code[v] = stacked<2, 1>(raw[v], high[v]);
            raw[v] = right16(raw[v], 2), high[v] = right16(high[v], 1);
          }
          use(8 * half + 2 * q + e, code);
        }
      }
    }
  }
};

template <>
struct Lanes<IQ4_XS> {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) { return first_halves(p, stride, false); }
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints*) {
    Ints head[4];
    load_rows(p, stride, head);
    for (uint32_t k = 0; k < 2; ++k) {
      const Ints low = in_lane(head[1], 0x01010000u + k * 0x02020202u),
                 top = in_lane(head[0], 0x02020202u + k * 0x01010101u);
      const Ints nibble = either(both(low, ints(0x000f000f)), both(right16(low, 4), ints(0x0f000f00)));
      const Ints first = either(both(left16(top, 4), ints(0x30)), both(left16(top, 2), ints(0x3000)));
      const Ints second = either(both(top, ints(0x300000)), both(right16(top, 2), ints(0x30000000)));
      scales[k] = sub8(either(nibble, either(first, second)), bytes(32));
    }
  }
  template <class Use>
  TRIGRAPH_INLINE static void codes(const uint8_t* p, int64_t stride, Use&& use) {
    TRIGRAPH_LOOP
    for (int run = 0; run < 8; ++run) {
      Ints raw[4], code[8];
      load_codes<IQ4_XS>(p + 8 + 16 * run, stride, raw);
      nibbles(raw, code);
      levels<IQ4_XS, levels4>(code);
      use(run, code);
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
