// Products that warps ask tensor cores for and go on (custom_ops/blocks/cuda/wgmma.cuh): made when they are awaited,
// from what shared memory holds then. So one that is read too early is old, and one whose rows are written anew is
// wrong.
#pragma once

#include <vector>

#include "arithmetic.h"
#include "threads.h"

namespace emulator {

struct Asked {
  const uint32_t* a;
  bool is_signed, add;
  const char* rows;
  int count;
  int* d;
};
inline std::vector<std::vector<Asked>> asked[kMostThreads];  // groups; the last one is open

inline std::vector<std::vector<Asked>>& own_groups() {
  auto& groups = asked[current()];
  if (groups.empty()) groups.emplace_back();
  return groups;
}

template <class Byte>
void ask_products(const uint32_t* a, const char* rows, int count, bool add, int* d) {
  if (block.size.x % (4 * kWarp)) die("four warps do not ask together");
  const size_t at = reinterpret_cast<uintptr_t>(rows) % 1024;
  if (at >= 128 || at % 32) die("products begin at no run of swizzled rows");
  own_groups().back().push_back({a, Byte(-1) < 0, add, rows, count, d});
}

inline void end_products() { own_groups().emplace_back(); }

// The products of the warp's rows lane / 4 and 8 more, whose words lie in four lanes.
inline void make(const Asked& own) {
  const unsigned lane = current() % kWarp, quad = lane / 4 * 4;
  uint32_t words[4], a[4][4];
  std::memcpy(words, own.a, sizeof words);
  {
    const races::Unwatched unwatched;
    require_whole_warp();
    const Words& given = exchange(words);
    for (int i = 0; i < 4; ++i) std::memcpy(a[i], given[i] + quad, sizeof a[i]);
  }
  const size_t at = reinterpret_cast<uintptr_t>(own.rows) % 1024;
  for (int i = 0; i < own.count / 2; ++i) {
    const int row = i / 4 * 8 + 2 * static_cast<int>(lane % 4) + i % 2, low = i % 4 / 2;
    const char* first = own.rows - at + row * 128;
    int sum = own.add ? own.d[i] : 0;
    for (int k = 0; k < 32; ++k) {
      const uint32_t byte = a[k / 16 * 2 + low][k % 16 / 4] >> k % 4 * 8 & 255;
      const int value = own.is_signed ? int8_t(byte) : int(byte);
      sum += value * static_cast<int8_t>(first[((at + k) / 16 ^ row % 8) * 16 + k % 16]);
    }
    own.d[i] = sum;
  }
}

// All but the last so many groups.
inline void await_products(size_t groups) {
  auto& own = own_groups();
  const size_t ended = own.size() - 1;
  for (size_t i = 0; i + groups < ended; ++i) {
    for (const Asked& each : own[i]) make(each);
    own[i].clear();
  }
  own.erase(own.begin(), own.end() - 1 - static_cast<ptrdiff_t>(ended < groups ? ended : groups));
}

// d = A B for halves, whose lanes give and have what exact_dots says.
inline void multiply_halves(const uint32_t* a, const uint32_t* b, float* d) {
  const races::Unwatched unwatched;
  require_whole_warp();
  const uint32_t words[] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const Words& given = exchange(words);
  const unsigned lane = current() % kWarp, g = lane / 4, t = lane % 4;
  const auto half = [](uint32_t word, int i) { return __half2float({static_cast<uint16_t>(word >> 16 * i)}); };
  for (int i = 0; i < 4; ++i) {
    float sum = 0, largest = 0;
    for (int k = 0; k < 16; ++k) {
      const int word = k / 8, source = k % 8 / 2;
      const float product = half(given[2 * word + i / 2][4 * g + source], k % 2) *
                            half(given[4 + word][4 * (2 * t + i % 2) + source], k % 2);
      sum += product, largest += std::fabs(product);
    }
    if (largest >= 0x1p24f) die("sums of halves are not exact in every order");
    d[i] = sum;
  }
}

}  // namespace emulator
