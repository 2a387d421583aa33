// The ggml block types, element by element: the one decoder that every device shares, to check the faster ones by and
// for types that have none. A weight is `code * (d * scale) - dmin * min`, rounded after each operation as in ggml,
// where kRun elements share the integers scale and min. Adding a type: a struct here, and its name in a list.
#pragma once

#include <type_traits>

#include "grid_formats.h"

namespace trigraph::TRIGRAPH_ISA {

// The levels of IQ4_NL and IQ4_XS.
TRIGRAPH_TABLE int8_t levels4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// The levels of MXFP4: twice the numbers of a float with one bit of sign, two of exponent and one of fraction.
TRIGRAPH_TABLE int8_t fp4_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 6-bit scales and mins of Q4_K and Q5_K: eight of each in the 12 bytes at q.
TRIGRAPH_DEVICE int scale6(const uint8_t* q, int run) {
  return run < 4 ? q[run] & 63 : (q[run + 4] & 15) | q[run - 4] >> 6 << 4;
}
TRIGRAPH_DEVICE int min6(const uint8_t* q, int run) {
  return run < 4 ? q[run + 4] & 63 : q[run + 4] >> 4 | q[run] >> 6 << 4;
}

struct Q8_0 : Blocks32 {
  static constexpr const char* kName = "Q8_0";
  static constexpr int kBytes = 34, kBits = 8;
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int, int i) { return static_cast<int8_t>(p[2 + i]); }
};

struct Q4_0 : Blocks32 {
  static constexpr const char* kName = "Q4_0";
  static constexpr int kBytes = 18, kBits = 4;
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int, int i) { return nibble(p + 2, i) - 8; }
};

struct Q4_1 : Blocks32WithMin {
  static constexpr const char* kName = "Q4_1";
  static constexpr int kBytes = 20, kBits = 4;
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int, int i) { return nibble(p + 4, i); }
};

struct Q5_0 : Blocks32 {
  static constexpr const char* kName = "Q5_0";
  static constexpr int kBytes = 22, kBits = 5;
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int, int i) { return (nibble(p + 6, i) | bit(p + 2, i) << 4) - 16; }
};

struct Q5_1 : Blocks32WithMin {
  static constexpr const char* kName = "Q5_1";
  static constexpr int kBytes = 24, kBits = 5;
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int, int i) { return nibble(p + 8, i) | bit(p + 4, i) << 4; }
};

struct IQ4_NL : Blocks32 {
  static constexpr const char* kName = "IQ4_NL";
  static constexpr int kBytes = 18, kBits = 8;
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int, int i) { return levels4[nibble(p + 2, i)]; }
};

struct MXFP4 : Blocks32 {
  static constexpr const char* kName = "MXFP4";
  static constexpr int kBytes = 17, kBits = 5;
  static constexpr float kUnit = 0;
  // A power of two by its exponent, and half of it, as the levels are doubled.
  TRIGRAPH_DEVICE static float d(const uint8_t* p) {
    return float_of(p[0] < 2 ? 0x00200000u << p[0] : (p[0] - 1u) << 23);
  }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int, int i) { return fp4_levels[nibble(p + 1, i)]; }
};

// 64 elements in four runs of 16, whose nibbles lie as in 8 bytes of their own.
struct NVFP4 : Blocks32 {
  static constexpr const char* kName = "NVFP4";
  static constexpr int kBlock = 64, kBytes = 36, kRun = 16, kBits = 5;
  static constexpr float kUnit = 128;  // a scale's seven bits are a half's exponent and fraction
  static constexpr bool kPaired = true;
  TRIGRAPH_DEVICE static float d(const uint8_t*) { return 1.0f / 1024; }
  // A float with four bits of exponent and three of fraction, as an integer; the levels are doubled.
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) {
    const int exponent = p[run] >> 3 & 15, fraction = p[run] & 7;
    if (p[run] == 127) return 0;
    return exponent ? (8 + fraction) << (exponent - 1) : fraction;
  }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) {
    return fp4_levels[p[4 + 16 * part + i / 16 * 8 + i % 8] >> i / 8 % 2 * 4 & 15];
  }
};

// Signs and a half.
struct Q1_0 : Blocks32 {
  static constexpr const char* kName = "Q1_0";
  static constexpr int kBlock = 128, kBytes = 18, kBits = 2;
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) { return 2 * bit(p + 2 + 4 * part, i) - 1; }
};

struct Q2_K : Blocks256 {
  static constexpr const char* kName = "Q2_K";
  static constexpr int kBytes = 84, kRun = 16, kBits = 2;
  static constexpr bool kMin = true;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p + 80); }
  TRIGRAPH_DEVICE static float dmin(const uint8_t* p) { return read_half(p + 82); }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) { return p[run] & 15; }
  TRIGRAPH_DEVICE static int min(const uint8_t* p, int run) { return p[run] >> 4; }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) {
    return p[16 + part / 4 * 32 + i] >> part % 4 * 2 & 3;
  }
};

struct Q3_K : Blocks256 {
  static constexpr const char* kName = "Q3_K";
  static constexpr int kBytes = 110, kRun = 16, kBits = 3;
  static constexpr bool kMin = false;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p + 108); }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) {
    const int low = p[96 + run % 8] >> run / 8 * 4 & 15, high = p[104 + run % 4] >> run / 4 * 2 & 3;
    return (low | high << 4) - 32;
  }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) {
    return ((p[32 + part / 4 * 32 + i] >> part % 4 * 2 & 3) | (p[i] >> part & 1) << 2) - 4;
  }
};

struct Q4_K : Blocks256 {
  static constexpr const char* kName = "Q4_K";
  static constexpr int kBytes = 144, kRun = 32, kBits = 4;
  static constexpr bool kMin = true;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p); }
  TRIGRAPH_DEVICE static float dmin(const uint8_t* p) { return read_half(p + 2); }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) { return scale6(p + 4, run); }
  TRIGRAPH_DEVICE static int min(const uint8_t* p, int run) { return min6(p + 4, run); }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) {
    return p[16 + part / 2 * 32 + i] >> part % 2 * 4 & 15;
  }
};

struct Q5_K : Blocks256 {
  static constexpr const char* kName = "Q5_K";
  static constexpr int kBytes = 176, kRun = 32, kBits = 5;
  static constexpr bool kMin = true;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p); }
  TRIGRAPH_DEVICE static float dmin(const uint8_t* p) { return read_half(p + 2); }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) { return scale6(p + 4, run); }
  TRIGRAPH_DEVICE static int min(const uint8_t* p, int run) { return min6(p + 4, run); }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) {
    return (p[48 + part / 2 * 32 + i] >> part % 2 * 4 & 15) | (p[16 + i] >> part & 1) << 4;
  }
};

struct Q6_K : Blocks256 {
  static constexpr const char* kName = "Q6_K";
  static constexpr int kBytes = 210, kRun = 16, kBits = 6;
  static constexpr bool kMin = false;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p + 208); }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) { return static_cast<int8_t>(p[192 + run]); }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) {
    const int half = part / 4, quarter = part % 4;
    const int low = p[half * 64 + quarter % 2 * 32 + i] >> quarter / 2 * 4 & 15;
    return (low | (p[128 + half * 32 + i] >> quarter * 2 & 3) << 4) - 32;
  }
};

struct IQ4_XS : Blocks256 {
  static constexpr const char* kName = "IQ4_XS";
  static constexpr int kBytes = 136, kRun = 32, kBits = 8;
  static constexpr bool kMin = false;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p); }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) {
    return ((p[4 + run / 2] >> run % 2 * 4 & 15) | (p[2 + run / 4] >> run % 4 * 2 & 3) << 4) - 32;
  }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) { return levels4[nibble(p + 8 + part * 16, i)]; }
};

// Blocks of three levels, or of four.
struct Ternary : Blocks256 {
  static constexpr int kRun = 32;
  static constexpr bool kMin = false;
  TRIGRAPH_DEVICE static int scale(const uint8_t*, int) { return 1; }
};

// Five digits to the base of three in a byte, as a fraction of 256: times three, the next digit is the carry.
struct TQ1_0 : Ternary {
  static constexpr const char* kName = "TQ1_0";
  static constexpr int kBytes = 54, kBits = 2;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p + 52); }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) {
    if (part < 5) return digit(p[i], part);
    const int at = part * 32 + i - 160;
    return at < 80 ? digit(p[32 + at % 16], at / 16) : digit(p[48 + at % 4], (at - 80) / 4);
  }

 private:
  TRIGRAPH_DEVICE static int digit(uint8_t byte, int number) {
    constexpr uint64_t kPowers = 0x511b090301;  // 1, 3, 9, 27, 81
    return (byte * static_cast<int>(kPowers >> 8 * number & 255) & 255) * 3 / 256 - 1;
  }
};

struct TQ2_0 : Ternary {
  static constexpr const char* kName = "TQ2_0";
  static constexpr int kBytes = 66, kBits = 3;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p + 64); }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) {
    return (p[part / 4 * 32 + i] >> part % 4 * 2 & 3) - 1;
  }
};

// code + kBias is in [0, 2^kBits).
template <class F>
constexpr int kBias = F::kMin ? 0 : 1 << (F::kBits - 1);

// Plain types: one element a block, no codes.
struct F32 {
  static constexpr const char* kName = "F32";
  static constexpr int kBlock = 1, kBytes = 4;
  static constexpr DType kDType = DType::f32;
};
struct F16 {
  static constexpr const char* kName = "F16";
  static constexpr int kBlock = 1, kBytes = 2;
  static constexpr DType kDType = DType::f16;
};
struct BF16 {
  static constexpr const char* kName = "BF16";
  static constexpr int kBlock = 1, kBytes = 2;
  static constexpr DType kDType = DType::bf16;
};

template <class... F>
struct Types {};
template <class F, class... All>
constexpr bool is_one_of(Types<All...>) {
  return (std::is_same_v<F, All> || ...);
}
using PlainTypes = Types<F32, F16, BF16>;
// Types of nearly all files, and the others.
using FrequentTypes = Types<Q8_0, Q4_K, Q5_K, Q6_K, IQ4_XS>;
using RareTypes = Types<Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, IQ4_NL, MXFP4, IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS,
                        IQ1_M, IQ1_S, TQ2_0, TQ1_0, NVFP4, Q1_0>;
template <class... F, class... G>
Types<F..., G...> joined(Types<F...>, Types<G...>);
using BlockTypes = decltype(joined(FrequentTypes(), RareTypes()));

}  // namespace trigraph::TRIGRAPH_ISA
