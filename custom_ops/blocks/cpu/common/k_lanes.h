// Blocks of 256 with a scale for each run, by rows as lanes: the K types and IQ4_XS.
#pragma once

#include "lanes.h"

namespace trigraph::TRIGRAPH_ISA {

// 6-bit scales and mins in the 12 bytes behind the halves; head: those 16 bytes, dwords of rows.
TRIGRAPH_INLINE void six_bits(const Ints* head, Ints* scales, Ints* mins) {
  const auto joined = [](Ints low, Ints high) { return either(low4(low), both(right16(high, 2), bytes(48))); };
  scales[0] = both(head[1], bytes(63)), scales[1] = joined(head[3], head[1]);
  mins[0] = both(head[2], bytes(63)), mins[1] = joined(right16(head[3], 4), head[2]);
}
struct SixBitLanes {
  template <class At>
  TRIGRAPH_INLINE static Ints halves(At p, int64_t stride) {
    return first_halves(p, stride, false);
  }
  template <class At>
  TRIGRAPH_INLINE static void scales(At p, int64_t stride, Ints* scales, Ints* mins) {
    Ints head[4];
    load_rows(p, stride, head);
    six_bits(head, scales, mins);
  }
};
template <>
struct Lanes<Q4_K> : SixBitLanes {
  template <class At, class Use>
  TRIGRAPH_INLINE static void codes(At p, int64_t stride, Use&& use) {
    TRIGRAPH_LOOP
    for (int c = 0; c < 4; ++c) {
      Ints raw[8], code[8];
      load_row_codes<Q4_K>(p + 16 + 32 * c, stride, raw);
      load_row_codes<Q4_K>(p + 32 + 32 * c, stride, raw + 4);
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
  template <class At, class Use>
  TRIGRAPH_INLINE static void codes(At p, int64_t stride, Use&& use) {
    Ints high[8];  // bit r belongs to run r; the next two come first
    load_row_codes<Q5_K>(p + 16, stride, high);
    load_row_codes<Q5_K>(p + 32, stride, high + 4);
    TRIGRAPH_LOOP
    for (int c = 0; c < 4; ++c) {
      Ints raw[8], code[8];
      load_row_codes<Q5_K>(p + 48 + 32 * c, stride, raw);
      load_row_codes<Q5_K>(p + 64 + 32 * c, stride, raw + 4);
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
  template <class At>
  TRIGRAPH_INLINE static Ints halves(At p, int64_t stride) {
    return load_halves(p + 208, stride);
  }
  template <class At>
  TRIGRAPH_INLINE static void scales(At p, int64_t stride, Ints* scales, Ints*) {
    load_rows(p + 192, stride, scales);
  }
  template <class At, class Use>
  TRIGRAPH_INLINE static void codes(At p, int64_t stride, Use&& use) {
    TRIGRAPH_LOOP
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2, e = i % 2;  // elements 128 * half + 32 * quarter + 16 * e on, for four quarters
      Ints high[4];
      load_row_codes<Q6_K>(p + 128 + 32 * half + 16 * e, stride, high);
      TRIGRAPH_LOOP
      for (int k = 0; k < 2; ++k) {
        Ints raw[4], code[4];
        load_row_codes<Q6_K>(p + 64 * half + 32 * k + 16 * e, stride, raw);
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
      load_row_codes<Q2_K>(p + 16 + 16 * i, stride, raw);
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
      load_row_codes<Q3_K>(p + 16 * e, stride, high);
      TRIGRAPH_LOOP
      for (int half = 0; half < 2; ++half) {
        Ints raw[4], code[4];
        load_row_codes<Q3_K>(p + 32 + 32 * half + 16 * e, stride, raw);
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
      load_row_codes<IQ4_XS>(p + 8 + 16 * run, stride, raw);
      nibbles(raw, code);
      levels<IQ4_XS, levels4>(code);
      use(run, code);
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
