// Scores of a cache of Q8_0 blocks on a device: int8_scores.h.
#pragma once

#include "heads.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kWords = kQ8Width / 4;  // of a block's codes: a thread of a position has one

// Rounded queries [Q] where a tile has room for [Q][width] floats: words of codes [width / 4][Q], then the scales of
// blocks [width / 32][Q].
template <int Q>
__device__ __forceinline__ int scales_at(int width) {
  return width / 4 * Q;
}
// Rounds query m by one warp.
template <int Q>
__device__ __forceinline__ void round_query(const float* own, int m, int width, float* query) {
  const int lane = threadIdx.x % kWarp;
  auto* codes = reinterpret_cast<uint8_t*>(query);
  for (int b = 0; b < width / kQ8Width; ++b) {
    const float x = own[b * kQ8Width + lane];
    uint32_t largest = __float_as_uint(x) & 0x7fffffff;
    for (int offset = kWarp / 2; offset; offset /= 2)
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    const float magnitude = __uint_as_float(largest);
    const bool finite = largest < 0x7f800000, some = finite && magnitude > 1e-36f;
    const uint32_t bits = some ? __float_as_uint(x * (127.0f / magnitude) + 12582912.0f) : 0;
    codes[((b * kWords + lane / 4) * Q + m) * 4 + lane % 4] = static_cast<uint8_t>(bits);
    const float nothing = finite ? 0.0f : __uint_as_float(0x7fc00000);
    if (lane == 0) query[scales_at<Q>(width) + b * Q + m] = some ? magnitude / 127.0f : nothing;
  }
}

// weight[position][query] = score. kWords threads share a position: each has a word of every block, and ends with the
// sums of one query.
template <int Q>
__device__ __forceinline__ void int8_scores(const Q8* keys, const uint32_t* entry, int seen, int stride, int width,
                                            const float* query, float* weight) {
  static_assert(Q == 4 || Q == 8);
  constexpr int kTogether = 4;  // blocks that are read before the first is used
  const int thread = threadIdx.x, column = thread % kWords, blocks = width / kQ8Width;
  const int own = Q == 8 ? column : column / 2;
  const auto* codes = reinterpret_cast<const uint32_t*>(query) + column * Q;
  const float* scales = query + scales_at<Q>(width) + own;
  for (int position = thread / kWords; position - thread / kWords < seen; position += blockDim.x / kWords) {
    const Q8* head = keys + uint64_t{entry[position]} * static_cast<uint32_t>(stride);
    float score = 0;
    for (int first = 0; first < blocks; first += kTogether) {
      uint32_t scale[kTogether], low[kTogether], high[kTogether];
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const auto* block = reinterpret_cast<const uint16_t*>(head + min(first + n, blocks - 1) * kQ8Bytes);
        scale[n] = block[0], low[n] = block[1 + 2 * column], high[n] = block[2 + 2 * column];
      }
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        if (first + n >= blocks) break;
        const int word = static_cast<int>(low[n] | high[n] << 16);
        int sum[Q];
#pragma unroll
        for (int m = 0; m < Q; ++m) sum[m] = __dp4a(word, static_cast<int>(codes[(first + n) * kWords * Q + m]), 0);
#pragma unroll
        for (int half = Q / 2, lanes = kWords / 2; half; half /= 2, lanes /= 2)
#pragma unroll
          for (int m = 0; m < half; ++m) {
            const bool upper = thread & lanes;
            const int mine = upper ? sum[m + half] : sum[m], other = upper ? sum[m] : sum[m + half];
            sum[m] = mine + __shfl_xor_sync(kAllLanes, other, lanes);
          }
        if (Q < kWords) sum[0] += __shfl_xor_sync(kAllLanes, sum[0], 1);
        score = fmaf(scales[(first + n) * Q], half_bits(static_cast<uint16_t>(scale[n])) * static_cast<float>(sum[0]),
                     score);
      }
    }
    if (Q == kWords || column % 2 == 0) weight[position * Q + own] = score;
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
