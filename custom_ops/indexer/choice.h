// The numbers of the largest scores on a CPU, ascending: of equal ones the first, NaN last.
#pragma once

#include <cstdint>
#include <cstring>

namespace trigraph::TRIGRAPH_ISA {

// Scores are not negative. As whole numbers of 31 bits in the same order, 0 for NaN.
inline uint32_t choice_key(float score) {
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  return score != score ? 0 : bits + 1;
}

// The numbers of `top` of `count` scores, which are more. The least score that is chosen is found by its digits, from
// the highest on: each time the scores that begin with those found so far are counted by their next one.
inline void choose_largest(const float* scores, int64_t count, int64_t top, int32_t* out) {
  uint32_t least = 0;
  int64_t left = top;  // of those that begin as the least one
  for (int end = 31; end > 0;) {
    const int shift = end == 31 ? 20 : end - 10;
    const uint32_t digits = 1u << (end - shift);
    int32_t counts[1 << 11] = {};
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t key = choice_key(scores[i]);
      if (key >> end == least) ++counts[key >> shift & (digits - 1)];
    }
    uint32_t digit = digits - 1;
    for (; counts[digit] < left; --digit) left -= counts[digit];
    least = least * digits | digit;
    end = shift;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t key = choice_key(scores[i]);
    if (key > least || (key == least && left-- > 0)) *out++ = static_cast<int32_t>(i);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
