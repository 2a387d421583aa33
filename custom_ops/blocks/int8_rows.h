// Int8 activations. A prepared row is one float32 scale for each super-block, then for each its codes in the lane order
// of the weight type and one number a lane. Sums inside a super-block are exact integers; super-blocks add up in order,
// then the lanes.
#pragma once

#include "lanes.h"

namespace trigraph::TRIGRAPH_ISA::native {

struct Int8Part {
  alignas(64) int8_t code[kSuper];
  alignas(64) int32_t lane[kLaneNumbers];
};

// Codes in [-127, 127], rounded to nearest even. A super-block that is not finite gets a scale of NaN, so that its
// products are NaN too; one whose largest magnitude is at most 1e-36 counts as zero, for the reciprocal must be finite.
inline float quantise(const float* x, int8_t* out) {
  alignas(64) uint32_t bits[kSuper];
  std::memcpy(bits, x, sizeof bits);
  uint32_t largest = 0;
  for (uint32_t b : bits) largest = (b & 0x7fffffff) > largest ? (b & 0x7fffffff) : largest;
  float magnitude;
  std::memcpy(&magnitude, &largest, 4);
  const bool finite = largest < 0x7f800000;
  if (!finite || magnitude <= 1e-36f) {
    std::memset(out, 0, kSuper);
    return finite ? 0.0f : std::nanf("");
  }
  const float inverse = 127.0f / magnitude;
  for (int i = 0; i < kSuper; ++i) {
    const float shifted = x[i] * inverse + 12582912.0f;  // rounds: the integer is in the last bits of the fraction now
    int32_t code;
    std::memcpy(&code, &shifted, 4);
    out[i] = static_cast<int8_t>(code - 0x4b400000);
  }
  return magnitude / 127.0f;
}

template <class F>
struct Int8Step {
  using Block = LaneBlock;
  using Layout = typename Lanes<F>::Layout;
  static constexpr int kBytes = super_bytes<F>;
  static constexpr int64_t kPartBytes = sizeof(Int8Part);
  static constexpr int64_t kCached = 80;
  static constexpr int kPanel = 8;

  // Each load of activations serves two weight rows where there are registers for both.
  static constexpr int together(int m) { return m > 3 ? kTogether : 1; }
  static int64_t header_bytes(int64_t width) { return (supers(width) * 4 + 63) / 64 * 64; }

  static void prepare(const float* x, int64_t width, void* prepared) {
    auto* scale = static_cast<float*>(prepared);
    auto* part = reinterpret_cast<Int8Part*>(static_cast<char*>(prepared) + header_bytes(width));
    each_super(x, width, [&](int64_t s, const float* values) {
      alignas(64) int8_t code[kSuper];
      scale[s] = quantise(values, code);
      for (int group = 0; group < kGroups; ++group)
        for (int vector = 0; vector < 4; ++vector)
          for (int lane = 0; lane < VL; ++lane)
            std::memcpy(part[s].code + ((group * 4 + vector) * VL + lane) * 4,
                        code + Layout::element(group, vector, lane), 4);
      lane_numbers<F>(code, part[s].code, part[s].lane);
    });
  }

  TRIGRAPH_INLINE static void decode(const uint8_t* row, int64_t width, int64_t super, Block* out) {
    decode_lanes<F>(row, width, super, out);
  }

  template <int N, int M>
  TRIGRAPH_INLINE static void add(const Block* const* block, const char* const* row, int64_t at, int64_t super,
                                  vf* sum) {
    TRIGRAPH_UNROLL
    for (int i = 0; i < M; ++i) {
      const auto* part = reinterpret_cast<const Int8Part*>(row[i] + at);
      const float scale = reinterpret_cast<const float*>(row[i])[super];
      if constexpr (kTogether == 1)
        sum[i] = accumulate<F>(*block[0], part->code, part->lane, scale, sum[i]);
      else
        accumulate<F, N, M>(block, part->code, part->lane, scale, sum + i);
    }
  }
};

}  // namespace trigraph::TRIGRAPH_ISA::native
