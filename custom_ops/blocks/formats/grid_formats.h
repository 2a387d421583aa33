// The IQ types of one to three bits, element by element: an index stands for the levels of four or eight elements,
// which grids.py describes; most have a sign for each element beside them. Their scales are odd, 2 s + 1.
#pragma once

#include "format.h"
#include "grids.h"

namespace trigraph::TRIGRAPH_ISA {

TRIGRAPH_DEVICE uint32_t read16(const uint8_t* p) { return p[0] | p[1] << 8; }
TRIGRAPH_DEVICE uint32_t read32(const uint8_t* p) { return read16(p) | read16(p + 2) << 16; }

// The lowest four numbers of kBits bits, as 16 bits each.
template <int kBits>
TRIGRAPH_DEVICE uint64_t four_numbers(uint64_t packed) {
  constexpr uint64_t kMask = (1 << kBits) - 1;
#if defined(__BMI2__) && !defined(__device__)
  return _pdep_u64(packed, kMask * 0x0001000100010001);
#else
  return (packed & kMask) | (packed >> kBits & kMask) << 16 | (packed >> 2 * kBits & kMask) << 32 |
         (packed >> 3 * kBits & kMask) << 48;
#endif
}

// Signs of 32 elements from seven bits for each eight of them: the eighth makes the number of negative ones even.
TRIGRAPH_DEVICE uint32_t even_signs(uint32_t bits) {
  const uint32_t seven = (bits & 0x7f) | (bits << 1 & 0x7f00) | (bits << 2 & 0x7f0000) | (bits << 3 & 0x7f000000);
  const uint32_t two = seven ^ seven >> 4, four = two ^ two >> 2;
  return seven | ((four ^ four >> 1) & 0x01010101) << 7;
}

// A grid of kEntries, each of which packs the numbers of kOf levels: four bits each for four, two for eight. Every type
// has, for the 32 elements from 32 * part on,
//   grid(), indices(p, part, k)  entries 4 * k to 4 * k + 3 of the 32, 16 bits each
//   level(number)
// and their signs, where it has such.
template <int kOfEntry, int kCount>
struct GridBlocks : Blocks256 {
  static constexpr bool kMin = false;
  static constexpr int kOf = kOfEntry, kEntries = kCount;
  TRIGRAPH_DEVICE static constexpr int number(uint16_t entry, int i) {
    return entry >> i * (16 / kOf) & ((1 << 16 / kOf) - 1);
  }
};
template <class F>
TRIGRAPH_DEVICE int grid_level(const uint8_t* p, int part, int i) {
  const int entry = i / F::kOf;
  const auto index = static_cast<uint16_t>(F::indices(p, part, entry / 4) >> entry % 4 * 16);
  return F::level(F::number(F::grid()[index], i % F::kOf));
}
template <class F>
TRIGRAPH_DEVICE int signed_level(const uint8_t* p, int part, int i) {
  const int level = grid_level<F>(p, part, i);
  return F::signs(p, part) >> i & 1 ? -level : level;
}

template <int kCount>
struct IQ2Blocks : GridBlocks<8, kCount> {
  static constexpr int kBits = 7;
  static constexpr float kUnit = 0.125f;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p) * kUnit; }
  TRIGRAPH_DEVICE static constexpr int level(int number) { return 17 * number + 8 + number / 2; }  // 8, 25, 43
};

struct IQ2_XXS : IQ2Blocks<256> {
  static constexpr const char* kName = "IQ2_XXS";
  static constexpr int kBytes = 66, kRun = 32;
  TRIGRAPH_DEVICE static constexpr const uint16_t* grid() { return iq2_xxs_grid; }
  TRIGRAPH_DEVICE static uint64_t indices(const uint8_t* p, int part, int) {
    return four_numbers<8>(read32(p + 2 + 8 * part));
  }
  TRIGRAPH_DEVICE static uint32_t signs(const uint8_t* p, int part) { return even_signs(read32(p + 6 + 8 * part)); }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) { return p[9 + 8 * run] >> 4 << 1 | 1; }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) { return signed_level<IQ2_XXS>(p, part, i); }
};

struct IQ2_XS : IQ2Blocks<512> {
  static constexpr const char* kName = "IQ2_XS";
  static constexpr int kBytes = 74, kRun = 16;
  TRIGRAPH_DEVICE static constexpr const uint16_t* grid() { return iq2_xs_grid; }
  TRIGRAPH_DEVICE static uint64_t indices(const uint8_t* p, int part, int) {
    const uint8_t* q = p + 2 + 8 * part;
    return (read32(q) | uint64_t{read32(q + 4)} << 32) & 0x01ff01ff01ff01ff;
  }
  TRIGRAPH_DEVICE static uint32_t signs(const uint8_t* p, int part) {
    const uint8_t* q = p + 2 + 8 * part;
    return even_signs(q[1] >> 1 | q[3] >> 1 << 7 | q[5] >> 1 << 14 | q[7] >> 1 << 21);
  }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) { return (p[66 + run / 2] >> run % 2 * 4 & 15) << 1 | 1; }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) { return signed_level<IQ2_XS>(p, part, i); }
};

struct IQ2_S : IQ2Blocks<1024> {
  static constexpr const char* kName = "IQ2_S";
  static constexpr int kBytes = 82, kRun = 16;
  TRIGRAPH_DEVICE static constexpr const uint16_t* grid() { return iq2_s_grid; }
  TRIGRAPH_DEVICE static uint64_t indices(const uint8_t* p, int part, int) {
    return four_numbers<8>(read32(p + 2 + 4 * part)) | four_numbers<2>(p[66 + part]) << 8;
  }
  TRIGRAPH_DEVICE static uint32_t signs(const uint8_t* p, int part) { return read32(p + 34 + 4 * part); }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) { return (p[74 + run / 2] >> run % 2 * 4 & 15) << 1 | 1; }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) { return signed_level<IQ2_S>(p, part, i); }
};

struct IQ3_XXS : GridBlocks<4, 256> {
  static constexpr const char* kName = "IQ3_XXS";
  static constexpr int kBytes = 98, kRun = 32, kBits = 7;
  static constexpr float kUnit = 0.25f;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p) * kUnit; }
  TRIGRAPH_DEVICE static constexpr const uint16_t* grid() { return iq3_xxs_grid; }
  TRIGRAPH_DEVICE static constexpr int level(int number) { return 8 * number + 4 + number / 7 * 2; }  // 4, 12 .. 52, 62
  TRIGRAPH_DEVICE static uint64_t indices(const uint8_t* p, int part, int k) {
    return four_numbers<8>(read32(p + 2 + 8 * part + 4 * k));
  }
  TRIGRAPH_DEVICE static uint32_t signs(const uint8_t* p, int part) { return even_signs(read32(p + 66 + 4 * part)); }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) { return p[69 + 4 * run] >> 4 << 1 | 1; }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) { return signed_level<IQ3_XXS>(p, part, i); }
};

struct IQ3_S : GridBlocks<4, 512> {
  static constexpr const char* kName = "IQ3_S";
  static constexpr int kBytes = 110, kRun = 32, kBits = 5;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p); }
  TRIGRAPH_DEVICE static constexpr const uint16_t* grid() { return iq3_s_grid; }
  TRIGRAPH_DEVICE static constexpr int level(int number) { return 2 * number + 1; }
  TRIGRAPH_DEVICE static uint64_t indices(const uint8_t* p, int part, int k) {
    return four_numbers<8>(read32(p + 2 + 8 * part + 4 * k)) | four_numbers<1>(p[66 + part] >> 4 * k) << 8;
  }
  TRIGRAPH_DEVICE static uint32_t signs(const uint8_t* p, int part) { return read32(p + 74 + 4 * part); }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) {
    return (p[106 + run / 2] >> run % 2 * 4 & 15) << 1 | 1;
  }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) { return signed_level<IQ3_S>(p, part, i); }
};

// Codes are eight times the levels -1, 0 and 1, and one more, or one less for entries that say so.
struct IQ1Blocks : GridBlocks<8, 2048> {
  static constexpr int kBits = 5;
  static constexpr float kUnit = 0.125f;
  TRIGRAPH_DEVICE static constexpr const uint16_t* grid() { return iq1_grid; }
  TRIGRAPH_DEVICE static constexpr int level(int number) { return 8 * number; }  // eight more than it is
};

struct IQ1_S : IQ1Blocks {
  static constexpr const char* kName = "IQ1_S";
  static constexpr int kBytes = 50, kRun = 32;
  TRIGRAPH_DEVICE static float d(const uint8_t* p) { return read_half(p) * kUnit; }
  TRIGRAPH_DEVICE static uint64_t indices(const uint8_t* p, int part, int) {
    return four_numbers<8>(read32(p + 2 + 4 * part)) | four_numbers<3>(read16(p + 34 + 2 * part)) << 8;
  }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) { return (p[35 + 2 * run] >> 4 & 7) << 1 | 1; }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) {
    return grid_level<IQ1_S>(p, part, i) - (p[35 + 2 * part] >> 7 ? 9 : 7);
  }
};

struct IQ1_M : IQ1Blocks {
  static constexpr const char* kName = "IQ1_M";
  static constexpr int kBytes = 56, kRun = 16;
  // The half lies in the highest nibbles of four words, whose other bits are the scales.
  TRIGRAPH_DEVICE static float d(const uint8_t* p) {
    const auto half = static_cast<uint16_t>(p[49] >> 4 | (p[51] & 0xf0) | (p[53] & 0xf0) << 4 | (p[55] & 0xf0) << 8);
    return read_half(reinterpret_cast<const uint8_t*>(&half)) * kUnit;
  }
  TRIGRAPH_DEVICE static uint64_t indices(const uint8_t* p, int part, int) {
    const uint64_t high = four_numbers<4>(read16(p + 32 + 2 * part)) << 8;
    return four_numbers<8>(read32(p + 4 * part)) | (high & 0x0700070007000700);
  }
  TRIGRAPH_DEVICE static int scale(const uint8_t* p, int run) {
    return static_cast<int>(read16(p + 48 + run / 4 * 2) >> run % 4 * 3 & 7) << 1 | 1;
  }
  TRIGRAPH_DEVICE static int code(const uint8_t* p, int part, int i) {
    return grid_level<IQ1_M>(p, part, i) - (p[32 + 2 * part + i / 16] >> i / 8 % 2 * 4 & 8 ? 9 : 7);
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
