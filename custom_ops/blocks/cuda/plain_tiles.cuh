// Tiles of products of plain weight rows with many rows of float32, whose sums have the order of float_products:
// sixteen lanes for each part of a row, a lane for each sixteenth product of it.
#pragma once

#include "many_tiles.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kPlainColumns = 4, kPlainRows = 8, kPart = 128;
constexpr int kPlainParts = kTileThreads / kLanes;  // at a time
using PlainSums = float[kPlainColumns * kPlainRows][kLanes];

template <class F>
__device__ __forceinline__ void add_part(const uint8_t* const* w, const char* const* x, int64_t start, int64_t width,
                                         PlainSums& sums) {
  const int lane = threadIdx.x % kLanes;
  float chain[kPlainColumns][kPlainRows] = {};
#pragma unroll
  for (int k = 0; k < kPart; k += kLanes) {
    const int64_t at = start + k + lane;
    if (at >= width) continue;
    float own[kPlainColumns];
#pragma unroll
    for (int j = 0; j < kPlainColumns; ++j) own[j] = load_plain<F>(w[j] + at * F::kBytes);
#pragma unroll
    for (int i = 0; i < kPlainRows; ++i) {
      const float value = reinterpret_cast<const float*>(x[i])[at];
#pragma unroll
      for (int j = 0; j < kPlainColumns; ++j) chain[j][i] = fmaf(own[j], value, chain[j][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kPlainColumns * kPlainRows; ++i) sums[i][lane] = chain[i % kPlainColumns][i / kPlainColumns];
}

// Weight rows from `begin` on of the tile, kPlainColumns of them.
template <class F, int kRows>
__device__ __forceinline__ void meet_plain(const ManyTask& task, const ManyTile<kRows>& tile, int begin, int64_t width,
                                           char* memory) {
  auto* part = reinterpret_cast<PlainSums*>(memory);
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const uint8_t* own[kPlainColumns];
  for (int j = 0; j < kPlainColumns; ++j) own[j] = tile.w + min(begin + j, tile.columns - 1) * task.row_bytes;
#pragma unroll 1
  for (int first = 0; first < tile.rows; first += kPlainRows) {
    float sum[kPlainColumns * kPlainRows / kPlainParts] = {};
#pragma unroll 1
    for (int64_t start = 0; start < width; start += kPlainParts * kPart) {
      add_part<F>(own, tile.x + first, start + group * kPart, width, part[group]);
      __syncthreads();
#pragma unroll
      for (int p = 0; p < kPlainParts; ++p)
        for (int i = 0; i < kPlainColumns * kPlainRows / kPlainParts; ++i)
          sum[i] += part[p][i * kPlainParts + group][lane];
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kPlainColumns * kPlainRows / kPlainParts; ++i) {
      const int at = i * kPlainParts + group, column = begin + at % kPlainColumns, row = first + at / kPlainColumns;
      const float all = lane_sum(sum[i], kLanes);
      if (lane == 0 && column < tile.columns && row < tile.rows) tile.y[row * task.rows + column] = all;
    }
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
