// Scores of a cache of Q8_0 blocks on a device, by tensor cores: int8_scores.h.
#pragma once

#include "../blocks/cuda/tensor_cores.cuh"
#include "block_pair.cuh"

namespace trigraph::TRIGRAPH_ISA {

// Rounded queries [Q] where a tile has room for [Q][width] floats: codes [width / 32][Q][kPairLanes][8], then the
// scales of blocks [width / 32][Q]. Codes lie as those of keys come, BlockPair.
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
    const int place = pair_place(b, lane), word = place / 4;
    codes[((b * Q + m) * kPairLanes + word % kPairLanes) * 8 + word / kPairLanes * 4 + place % 4] =
        static_cast<uint8_t>(bits);
    const float nothing = finite ? 0.0f : __uint_as_float(0x7fc00000);
    if (lane == 0) query[scales_at<Q>(width) + b * Q + m] = some ? magnitude / 127.0f : nothing;
  }
}

// A warp's scores of kPositions positions with Q queries, eight of them a product; with four, half of it is for
// nothing.
template <int Q, bool kAligned>
class Int8Scores {
 public:
  static constexpr int kTiles = 2, kPositions = 16 * kTiles;  // tiles of a product's 16 positions

  __device__ __forceinline__ Int8Scores(const Q8* keys, const uint32_t* entry, int stride, int width)
      : blocks_(width / kQ8Width), stride_(stride) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) key_[i] = keys + uint64_t{entry[8 * i + row()]} * static_cast<uint32_t>(stride);
  }

  // weight[position][query] = score
  __device__ __forceinline__ void operator()(const float* query, int width, float* weight) {
    read(0);
    for (int b = 0; b < blocks_; b += 2) {
      BlockPair<kAligned> now[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) now[i] = next_[i];
      if (b + 2 < blocks_) read(b + 2);
      add<0>(now, b, query, query + scales_at<Q>(width));
      if (b + 1 < blocks_) add<1>(now, b + 1, query, query + scales_at<Q>(width));
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        if (Q >= 8 || lane() < Q / 2)
          *reinterpret_cast<float2*>(weight + (8 * i + row()) * Q + 8 * c + 2 * lane()) = score_[i][c];
  }

 private:
  static constexpr int kRows = 2 * kTiles, kColumns = (Q + 7) / 8;

  __device__ __forceinline__ static int row() { return threadIdx.x % kWarp / kPairLanes; }
  __device__ __forceinline__ static int lane() { return threadIdx.x % kPairLanes; }

  __device__ __forceinline__ void read(int b) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) next_[i].read(key_[i], b, lane(), stride_);
  }
  // What block b of the keys adds, the kSecond of its pair.
  template <int kSecond>
  __device__ __forceinline__ void add(const BlockPair<kAligned>* pair, int b, const float* query, const float* scale) {
    uint32_t word[kRows][2];
    float d[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      pair[i].template codes<kSecond>(lane(), word[i]), d[i] = pair[i].template d<kSecond>();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const auto* codes = reinterpret_cast<const uint2*>(query) + (b * Q + 8 * c + row() % Q) * kPairLanes + lane();
      const uint32_t own[] = {codes->x, codes->y};
      const float2 by = *reinterpret_cast<const float2*>(scale + b * Q + 8 * c + 2 * lane() % Q);
#pragma unroll
      for (int i = 0; i < kRows; i += 2) {
        const uint32_t a[] = {word[i][0], word[i + 1][0], word[i][1], word[i + 1][1]};
        int dots[4];
        run_dots(a, own, dots);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float2& score = score_[i + n][c];
          score = {fmaf(by.x, d[i + n] * static_cast<float>(dots[2 * n]), score.x),
                   fmaf(by.y, d[i + n] * static_cast<float>(dots[2 * n + 1]), score.y)};
        }
      }
    }
  }

  int blocks_, stride_;
  const Q8* key_[kRows];
  BlockPair<kAligned> next_[kRows];
  float2 score_[kRows][kColumns] = {};
};

// weight[position][query] = score, by the whole block.
template <int Q, bool kAligned>
__device__ __forceinline__ void int8_scores(const Q8* keys, const uint32_t* entry, int seen, int stride, int width,
                                            const float* query, float* weight) {
  using Own = Int8Scores<Q, kAligned>;
  const int step = static_cast<int>(blockDim.x) / kWarp * Own::kPositions;
  for (int first = static_cast<int>(threadIdx.x) / kWarp * Own::kPositions; first < seen; first += step)
    Own(keys, entry + first, stride, width)(query, width, weight + first * Q);
}

}  // namespace trigraph::TRIGRAPH_ISA
