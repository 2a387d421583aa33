// What a lane has of a weight block when a warp's tensor cores meet 16 weight rows: of each run the codes that four
// lanes share, two words each.
#pragma once

#include "activations.cuh"

namespace trigraph::TRIGRAPH_ISA {

template <class F>
constexpr bool kWhole = kStep<F> == kSuper;  // else each run is a step of its own

// The first code of a lane's word: eight codes that lie together if a run has one scale, else four of each half.
template <class F>
__host__ __device__ constexpr int first_code(int t, int word) {
  return kScales<F> == 1 ? 8 * t + 4 * word : 16 * word + 4 * t;
}

// Lane t's part of the block at p. Any type, a code at a time, read when it is asked for; below are faster ones.
template <class F>
struct Fragment {
  const uint8_t* p;
  int t;
  __device__ __forceinline__ void load(const uint8_t* block, int lane) { p = block, t = lane; }
  __device__ __forceinline__ void codes(int run, uint32_t* word) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      word[i] = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k)
        word[i] |= (static_cast<uint32_t>(F::code(p, run, first_code<F>(t, i) + k)) & 255) << 8 * k;
    }
  }
  __device__ __forceinline__ int scale(int run, int half) const { return F::scale(p, run * kScales<F> + half); }
  // The mins of the 16 codes 4 t to 4 t + 3 of a block of 256, a byte each.
  __device__ __forceinline__ uint32_t mins() const {
    uint32_t all = 0;
    for (int i = 0; i < 4; ++i)
      all |= static_cast<uint32_t>(F::min(p, kScales<F> == 1 ? 2 * t + i / 2 : 4 * t + i)) << 8 * i;
    return all;
  }
  __device__ __forceinline__ float d(int step) const { return step_d<F>(p, step); }
  __device__ __forceinline__ float dmin(int step) const { return step_dmin<F>(p, step); }
};

template <>
__device__ __forceinline__ void Fragment<Q8_0>::codes(int, uint32_t* word) const {
  load_words<2, 2>(p + 2 + 8 * t, word);
}

// The fragment of a type that has its own words.
struct OwnFragment {};

// What Q4_K and Q5_K share: d, dmin, eight scales and eight mins.
struct SixBitFragment : OwnFragment {
  uint32_t head[4];
  int t;
  __device__ __forceinline__ int scale(int run, int) const {
    const uint32_t four = run < 4 ? head[1] & 0x3f3f3f3fu : (head[3] & 0x0f0f0f0fu) | (head[1] >> 2 & 0x30303030u);
    return static_cast<int>(four >> run % 4 * 8 & 255);
  }
  __device__ __forceinline__ uint32_t mins() const {
    const uint32_t four = t < 2 ? head[2] & 0x3f3f3f3fu : (head[3] >> 4 & 0x0f0f0f0fu) | (head[2] >> 2 & 0x30303030u);
    return __byte_perm(four, 0, t % 2 ? 0x3322 : 0x1100);
  }
  __device__ __forceinline__ float d(int) const { return half_bits(static_cast<uint16_t>(head[0])); }
  __device__ __forceinline__ float dmin(int) const { return half_bits(static_cast<uint16_t>(head[0] >> 16)); }
};

template <>
struct Fragment<Q4_K> : SixBitFragment {
  uint32_t packed[4][2];
  __device__ __forceinline__ void load(const uint8_t* p, int lane) {
    t = lane;
    load_words<16, 4>(p, head);
#pragma unroll
    for (int i = 0; i < 4; ++i) load_words<8, 2>(p + 16 + 32 * i + 8 * t, packed[i]);
  }
  __device__ __forceinline__ void codes(int run, uint32_t* word) const {
    for (int i = 0; i < 2; ++i) word[i] = packed[run / 2][i] >> run % 2 * 4 & 0x0f0f0f0fu;
  }
};

template <>
struct Fragment<Q5_K> : SixBitFragment {
  uint32_t packed[4][2], high[2];
  __device__ __forceinline__ void load(const uint8_t* p, int lane) {
    t = lane;
    load_words<16, 4>(p, head);
    load_words<8, 2>(p + 16 + 8 * t, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) load_words<8, 2>(p + 48 + 32 * i + 8 * t, packed[i]);
  }
  __device__ __forceinline__ void codes(int run, uint32_t* word) const {
    for (int i = 0; i < 2; ++i)
      word[i] = (packed[run / 2][i] >> run % 2 * 4 & 0x0f0f0f0fu) | (high[i] >> run & 0x01010101u) << 4;
  }
};

template <>
struct Fragment<Q6_K> : OwnFragment {
  uint32_t low[2][2][2], high[2][2], scales[4];
  uint16_t unit;
  __device__ __forceinline__ void load(const uint8_t* p, int t) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint8_t* at = p + 16 * i + 4 * t;
        for (int k = 0; k < 2; ++k) load_words<2, 1>(at + half * 64 + k * 32, &low[half][k][i]);
        load_words<2, 1>(at + 128 + half * 32, &high[half][i]);
      }
    load_words<2, 4>(p + 192, scales);
    unit = *reinterpret_cast<const uint16_t*>(p + 208);
  }
  __device__ __forceinline__ void codes(int run, uint32_t* word) const {
    const int half = run / 4, quarter = run % 4;
    for (int i = 0; i < 2; ++i)
      word[i] = biased((low[half][quarter % 2][i] >> quarter / 2 * 4 & 0x0f0f0f0fu) |
                           (high[half][i] >> quarter * 2 & 0x03030303u) << 4,
                       32);
  }
  __device__ __forceinline__ int scale(int run, int half) const {
    return static_cast<int8_t>(scales[run / 2] >> (run % 2 * 16 + half * 8));
  }
  __device__ __forceinline__ float d(int) const { return half_bits(unit); }
};

}  // namespace trigraph::TRIGRAPH_ISA
