// How repacked weights hold the IQ2 and IQ3 types: the entries of a grid and their signs unpacked to four bits an
// element, so that products look nothing up in memory. A block has the scales of its runs, four bits each; the numbers
// of the elements' levels, of elements i and 16 + i of each 32 in a byte, with 8 added where they are negative; and d.
#pragma once

#include "../formats/formats.h"

namespace trigraph::TRIGRAPH_ISA {

template <class G>
struct Levels : Blocks256 {
  static constexpr bool kMin = false;
  static constexpr int kRun = G::kRun, kCodesAt = kBlock / kRun / 2, kDAt = kCodesAt + kBlock / 2, kBytes = kDAt + 2;
  // Even levels are halved and d is doubled. Products are the same, and their codes have a bit less.
  static constexpr int kHalf = G::level(0) % 2 || G::level(1) % 2 ? 1 : 2;
  static constexpr int kBits = G::kBits - (kHalf - 1);
  static constexpr float kUnit = G::kUnit * kHalf;
  static constexpr int8_t level(int i) { return static_cast<int8_t>(G::level(i & 7) / kHalf * (i & 8 ? -1 : 1)); }
  static constexpr int8_t kLevels[16] = {level(0),  level(1),  level(2),  level(3), level(4),  level(5),
                                         level(6),  level(7),  level(8),  level(9), level(10), level(11),
                                         level(12), level(13), level(14), level(15)};
};

}  // namespace trigraph::TRIGRAPH_ISA
