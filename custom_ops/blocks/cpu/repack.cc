// Weights of K types in the order of blocks/cpu/common/interleaved.h.
#include <cstdint>
#include <cstring>

#include "../../ort_api.h"

// `groups` groups of `rows` plain rows, each of `blocks` super-blocks of `bytes` bytes, from `plain` to `out`.
extern "C" TRIGRAPH_EXPORT void trigraph_repack(const uint8_t* plain, int64_t groups, int64_t rows, int64_t blocks,
                                                int64_t bytes, uint8_t* out) {
  constexpr int64_t kWord = 4;
  const int64_t stride = blocks * bytes;
  for (int64_t g = 0; g < groups; ++g, plain += rows * stride)
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* p = plain + b * bytes;
      int64_t at = 0;
      for (; at + kWord <= bytes; at += kWord)
        for (int64_t r = 0; r < rows; ++r, out += kWord) std::memcpy(out, p + r * stride + at, kWord);
      for (int64_t r = 0; r < rows; ++r, out += bytes - at)
        std::memcpy(out, p + r * stride + at, static_cast<size_t>(bytes - at));
    }
}
