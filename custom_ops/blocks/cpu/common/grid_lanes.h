// The IQ types of one to three bits, by rows as lanes.
#pragma once

#include "lanes.h"
#if defined(TRIGRAPH_ISA_avx512)
#include "../avx512/grids.h"
#endif

namespace trigraph::TRIGRAPH_ISA {

#if !defined(TRIGRAPH_ISA_avx512)
// The levels of a grid's entries, a byte each.
template <class F>
struct LevelTable {
  alignas(64) uint8_t level[F::kEntries + 16 / F::kOf][F::kOf] = {};  // loads of 16 bytes end in it
  constexpr LevelTable() {
    for (int k = 0; k < F::kEntries; ++k)
      for (int i = 0; i < F::kOf; ++i) level[k][i] = static_cast<uint8_t>(F::level(F::number(F::grid()[k], i)));
  }
};
template <class F>
inline constexpr LevelTable<F> kLevels;

// Levels of 4 * kOf elements by four indices of each row, 16 bits each.
template <class F>
TRIGRAPH_INLINE void levels_of(const uint16_t (*index)[4], Ints* level) {
  TRIGRAPH_UNROLL
  for (int k = 0; k < 4; ++k) {
    Ints x[4];
    load_each([&](int row) TRIGRAPH_INLINE_LAMBDA { return kLevels<F>.level[index[row][k]]; }, x);
    level[k * F::kOf / 4] = x[0];
    if (F::kOf == 8) level[2 * k + 1] = x[1];
  }
}

// Signs as `even_signs` of formats.
TRIGRAPH_INLINE Ints even_signs(Ints bits) {
  const Ints two = either(both(bits, ints(0x3fff)), both(left32(bits, 2), ints(0x3fff0000)));  // 14 bits in 16
  const Ints four = add32(two, both(two, ints(0x3f803f80)));
  alignas(16) static constexpr int8_t kOdd[16] = {0,    -128, -128, 0,    -128, 0,    0,    -128,
                                                  -128, 0,    0,    -128, 0,    -128, -128, 0};
  return either(four, look_up(kOdd, low4(differing(four, right16(four, 4)))));
}
#endif

// The indices of a block. They go through memory, whose loads cost less than taking words apart.
template <class F>
struct GridIndices {
  alignas(64) uint16_t index[8][8 / F::kOf][kRowLanes][4];  // of parts

  TRIGRAPH_NOINLINE GridIndices(const uint8_t* p, int64_t stride) {
    TRIGRAPH_LOOP
    for (int row = 0; row < kRowLanes; ++row, p += stride) {
      TRIGRAPH_UNROLL
      for (int part = 0; part < 8; ++part) {
        TRIGRAPH_UNROLL
        for (int k = 0; k < 8 / F::kOf; ++k) {
          const uint64_t four = F::indices(p, part, k);
          std::memcpy(index[part][k][row], &four, 8);
        }
      }
    }
  }
  // Levels of the 32 elements from 32 * part on.
  TRIGRAPH_INLINE void levels(int part, Ints* level) const {
    TRIGRAPH_UNROLL
    for (int k = 0; k < 8 / F::kOf; ++k) levels_of<F>(index[part][k], level + k * F::kOf);
  }
};

// Codes of levels with signs, bit i of a lane that of element i, as add_dot takes them.
template <class F>
TRIGRAPH_INLINE void signed_codes(Ints signs, Ints* code) {
  TRIGRAPH_UNROLL
  for (int v = 0; v < 8; ++v) {
    const Ints byte = in_lane(signs, 0x01010101u * static_cast<uint32_t>(v / 2));
    const Ints bits = ints(static_cast<int32_t>(v % 2 ? 0x80402010u : 0x08040201u));
    code[v] = add8(signed_by(code[v], byte, bits), bytes(kBias<F>));
  }
}

// Scales 2 s + 1 of four bytes s, one for each of four runs.
TRIGRAPH_INLINE Ints odd_scales(Ints s) { return either(left16(s, 1), bytes(1)); }
// Odd scales of nibbles, those of bytes 2 k and 2 k + 1.
TRIGRAPH_INLINE Ints nibble_scales(Ints packed, uint32_t k) {
  const Ints twice = in_lane(packed, 0x01010000u + k * 0x02020202u);
  return odd_scales(either(both(twice, ints(0x000f000f)), both(right16(twice, 4), ints(0x0f000f00))));
}
// Odd scales of the highest four bits of four lanes.
TRIGRAPH_INLINE Ints top_scales(const Ints* word) {
  const auto top = [](Ints x) TRIGRAPH_INLINE_LAMBDA { return right32(x, 28); };
  const Ints low = either(top(word[0]), left32(top(word[1]), 8));
  return odd_scales(either(low, either(left32(top(word[2]), 16), left32(top(word[3]), 24))));
}

template <class F>
struct GridLanes : DecodedLanes<F> {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) { return first_halves(p, stride, false); }

 protected:
  // Four parts at a time, whose signs `signs(half, out)` gives.
  template <class Signs>
  TRIGRAPH_INLINE static void signed_parts(const uint8_t* p, int64_t stride, Signs&& signs, Ints* code) {
    const GridIndices<F> indices(p, stride);
    TRIGRAPH_LOOP
    for (int half = 0; half < 2; ++half) {
      Ints sign[4];
      signs(half, sign);
      TRIGRAPH_LOOP
      for (int k = 0; k < 4; ++k, code += 8) {
        indices.levels(4 * half + k, code);
        signed_codes<F>(sign[k], code);
      }
    }
  }
};

template <>
struct Lanes<IQ3_XXS> : GridLanes<IQ3_XXS> {
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints*) {
    TRIGRAPH_UNROLL
    for (int k = 0; k < 2; ++k) {
      Ints word[4];
      load_rows(p + 66 + 16 * k, stride, word);
      scales[k] = top_scales(word);
    }
  }
  TRIGRAPH_NOINLINE static void decode(const uint8_t* p, int64_t stride, Ints* code) {
    const auto signs = [=](int half, Ints* sign) TRIGRAPH_INLINE_LAMBDA {
      load_rows(p + 66 + 16 * half, stride, sign);
      TRIGRAPH_UNROLL
      for (int k = 0; k < 4; ++k) sign[k] = even_signs(sign[k]);
    };
    signed_parts(p, stride, signs, code);
  }
};

template <>
struct Lanes<IQ3_S> : GridLanes<IQ3_S> {
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints*) {
    Ints x[4];
    load_rows(p + 94, stride, x);
    scales[0] = nibble_scales(x[3], 0), scales[1] = nibble_scales(x[3], 1);
  }
  TRIGRAPH_NOINLINE static void decode(const uint8_t* p, int64_t stride, Ints* code) {
    const auto signs = [=](int half, Ints* sign)
                           TRIGRAPH_INLINE_LAMBDA { load_rows(p + 74 + 16 * half, stride, sign); };
    signed_parts(p, stride, signs, code);
  }
};

template <>
struct Lanes<IQ2_XXS> : GridLanes<IQ2_XXS> {
  // The words behind the indices, of four parts.
  TRIGRAPH_INLINE static void words(const uint8_t* p, int64_t stride, int half, Ints* out) {
    TRIGRAPH_UNROLL
    for (int k = 0; k < 2; ++k) {
      Ints x[4];
      load_rows(p + 2 + 32 * half + 16 * k, stride, x);
      out[2 * k] = x[1], out[2 * k + 1] = x[3];
    }
  }
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints*) {
    TRIGRAPH_UNROLL
    for (int k = 0; k < 2; ++k) {
      Ints word[4];
      words(p, stride, k, word);
      scales[k] = top_scales(word);
    }
  }
  TRIGRAPH_NOINLINE static void decode(const uint8_t* p, int64_t stride, Ints* code) {
    const auto signs = [=](int half, Ints* sign) TRIGRAPH_INLINE_LAMBDA {
      words(p, stride, half, sign);
      TRIGRAPH_UNROLL
      for (int k = 0; k < 4; ++k) sign[k] = even_signs(sign[k]);
    };
    signed_parts(p, stride, signs, code);
  }
};

template <>
struct Lanes<IQ2_XS> : GridLanes<IQ2_XS> {
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints*) {
    Ints x[4];
    load_rows(p + 58, stride, x);
    TRIGRAPH_UNROLL
    for (uint32_t k = 0; k < 4; ++k) scales[k] = nibble_scales(x[2 + k / 2], k % 2);
  }
  TRIGRAPH_NOINLINE static void decode(const uint8_t* p, int64_t stride, Ints* code) {
    // Seven bits above each index; a part has four of them.
    const auto signs = [=](int half, Ints* sign) TRIGRAPH_INLINE_LAMBDA {
      TRIGRAPH_UNROLL
      for (int k = 0; k < 2; ++k) {
        Ints x[4];
        load_rows(p + 2 + 32 * half + 16 * k, stride, x);
        TRIGRAPH_UNROLL
        for (int i = 0; i < 2; ++i) {
          const auto pair = [](Ints word) TRIGRAPH_INLINE_LAMBDA {
            return either(both(right32(word, 9), ints(0x7f)), both(right32(word, 18), ints(0x3f80)));
          };
          sign[2 * k + i] = even_signs(either(pair(x[2 * i]), left32(pair(x[2 * i + 1]), 14)));
        }
      }
    };
    signed_parts(p, stride, signs, code);
  }
};

template <>
struct Lanes<IQ2_S> : GridLanes<IQ2_S> {
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints*) {
    Ints x[4];
    load_rows(p + 66, stride, x);
    TRIGRAPH_UNROLL
    for (uint32_t k = 0; k < 4; ++k) scales[k] = nibble_scales(x[2 + k / 2], k % 2);
  }
  TRIGRAPH_NOINLINE static void decode(const uint8_t* p, int64_t stride, Ints* code) {
    const auto signs = [=](int half, Ints* sign)
                           TRIGRAPH_INLINE_LAMBDA { load_rows(p + 34 + 16 * half, stride, sign); };
    signed_parts(p, stride, signs, code);
  }
};

// Codes of IQ1: levels of the table, which are eight times 0 to 2, and seven, or nine with the kBias of signed codes;
// `less` has 2 in the bytes of an entry with the smaller codes.
TRIGRAPH_INLINE Ints iq1_codes(Ints level, Ints less) { return add8(level, sub8(bytes(kBias<IQ1_S> - 7), less)); }

template <>
struct Lanes<IQ1_S> : GridLanes<IQ1_S> {
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints*) {
    Ints x[4];
    load_rows(p + 34, stride, x);
    const auto pair = [](Ints words) TRIGRAPH_INLINE_LAMBDA { return both(right16(words, 12), ints(0x00070007)); };
    TRIGRAPH_UNROLL
    for (int k = 0; k < 2; ++k)
      scales[k] = odd_scales(either(in_lane(pair(x[2 * k]), 0x80800200u), in_lane(pair(x[2 * k + 1]), 0x02008080u)));
  }
  TRIGRAPH_NOINLINE static void decode(const uint8_t* p, int64_t stride, Ints* code) {
    Ints x[4];
    load_rows(p + 34, stride, x);
    const GridIndices<IQ1_S> indices(p, stride);
    TRIGRAPH_LOOP
    for (int part = 0; part < 8; ++part, code += 8) {
      indices.levels(part, code);
      const Ints less = in_lane(both(right16(x[part / 2], 14), ints(0x00020002)), part % 2 ? 0x02020202u : 0);
      TRIGRAPH_UNROLL
      for (int v = 0; v < 8; ++v) code[v] = iq1_codes(code[v], less);
    }
  }
};

template <>
struct Lanes<IQ1_M> : GridLanes<IQ1_M> {
  TRIGRAPH_INLINE static Ints halves(const uint8_t* p, int64_t stride) {
    Ints x[4];
    load_rows(p + 40, stride, x);
    const Ints low = either(both(right32(x[2], 12), ints(0xf)), both(right32(x[2], 24), ints(0xf0)));
    return either(low, either(both(right32(x[3], 4), ints(0xf00)), both(right32(x[3], 16), ints(0xf000))));
  }
  TRIGRAPH_INLINE static void scales(const uint8_t* p, int64_t stride, Ints* scales, Ints*) {
    Ints x[4];
    load_rows(p + 40, stride, x);
    TRIGRAPH_UNROLL
    for (int k = 0; k < 4; ++k) {
      const Ints word = right32(x[2 + k / 2], k % 2 * 16);  // four times three bits
      const auto three = [](Ints bits, int from) TRIGRAPH_INLINE_LAMBDA { return both(bits, ints(7 << from)); };
      const Ints low = either(three(word, 0), three(left32(word, 5), 8));
      scales[k] = odd_scales(either(low, either(three(left32(word, 10), 16), three(left32(word, 15), 24))));
    }
  }
  TRIGRAPH_NOINLINE static void decode(const uint8_t* p, int64_t stride, Ints* code) {
    Ints x[4];
    load_rows(p + 32, stride, x);
    const GridIndices<IQ1_M> indices(p, stride);
    TRIGRAPH_LOOP
    for (int part = 0; part < 8; ++part, code += 8) {
      indices.levels(part, code);
      const Ints less[2] = {both(right16(x[part / 2], 2), bytes(2)), both(right16(x[part / 2], 6), bytes(2))};
      TRIGRAPH_UNROLL
      for (int v = 0; v < 8; ++v) {
        const auto byte = static_cast<uint32_t>(part % 2 * 2 + v / 4);
        code[v] = iq1_codes(code[v], in_lane(less[v / 2 % 2], 0x01010101u * byte));
      }
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
