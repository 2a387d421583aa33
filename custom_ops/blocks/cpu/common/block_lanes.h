// Blocks with one level of scales, by rows as lanes: Q4_0 to Q8_0, IQ4_NL, MXFP4, NVFP4 and Q1_0.
#pragma once

#include "lanes.h"

namespace trigraph::TRIGRAPH_ISA {

template <class F, int kData>
struct NibbleLanes {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) { return first_halves(p, stride, F::kMin); }
  TRIGRAPH_INLINE static void load(const uint8_t* p, int64_t stride, Ints* code) {
    Ints raw[4];
    load_row_codes<F>(p + kData, stride, raw);
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
    load_row_codes<Q8_0>(p + 2, stride, code);
    load_row_codes<Q8_0>(p + 18, stride, code + 4);
    if (!kSignedCodes<Q8_0>) {
      TRIGRAPH_UNROLL
      for (int v = 0; v < 8; ++v) code[v] = sub8(code[v], bytes(-128));
    }
    use(0, code);
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
