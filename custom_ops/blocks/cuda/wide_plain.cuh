// Tiles of 16 rows of F32 weights that meet 32 rows of activations: both come through shared memory, a part of their
// width ahead. Sums have the order of plain_tiles.cuh: sixteen lanes for four weight rows and eight rows of
// activations.
#pragma once

#include "plain_tiles.cuh"
#include "wide_parts.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kWidePlainColumns = 16;

struct PlainStage {
  static constexpr int kStride = kPart + 4;  // both halves of a warp have four weight rows, in banks of their own
  alignas(16) float row[kWideRows + kWidePlainColumns][kStride];
};
using PlainMemory = PlainStage[2];

// Asks for a part of all rows: a warp for each eighth row.
__device__ __forceinline__ void ask_part(const ManyTask& task, const ManyTile<kWideRows>& tile, int width, int start,
                                         PlainStage& stage) {
  const int warp = own_thread() / kWarp, at = start + own_thread() % kWarp * 4;
  const int bytes = max(0, min(4, width - at)) * static_cast<int>(sizeof(float));
#pragma unroll
  for (int i = 0; i < kWideRows + kWidePlainColumns; i += kTileWarps) {
    const int row = i + warp, column = min(row - kWideRows, tile.columns - 1);
    const char* from = i < kWideRows ? tile.x[row] : reinterpret_cast<const char*>(tile.w) + column * task.row_bytes;
    copy_ahead(stage.row[row] + at - start, reinterpret_cast<const float*>(from) + at, bytes);
  }
}

__device__ __forceinline__ void meet_wide_plain(const ManyTask& task, const ManyTile<kWideRows>& tile, int width,
                                                char* memory) {
  auto& stage = *reinterpret_cast<PlainMemory*>(memory);
  const int warp = own_thread() / kWarp, first_row = warp / 2 * kPlainRows,
            first_column = warp % 2 * 2 * kPlainColumns + own_thread() % kWarp / kLanes * kPlainColumns;
  float sum[kPlainColumns][kPlainRows] = {};
  ask_part(task, tile, width, 0, stage[0]);
  end_copies();
#pragma unroll 1
  for (int start = 0, at = 0; start < width; start += kPart, at ^= 1) {
    await_copies(0);
    __syncthreads();
    if (start + kPart < width) ask_part(task, tile, width, start + kPart, stage[at ^ 1]);
    end_copies();
    const int lane = own_thread() % kLanes;
    float chain[kPlainColumns][kPlainRows] = {};
#pragma unroll
    for (int k = 0; k < kPart; k += kLanes) {
      float own[kPlainColumns];
#pragma unroll
      for (int j = 0; j < kPlainColumns; ++j) own[j] = stage[at].row[kWideRows + first_column + j][k + lane];
#pragma unroll
      for (int i = 0; i < kPlainRows; ++i) {
        const float value = stage[at].row[first_row + i][k + lane];
#pragma unroll
        for (int j = 0; j < kPlainColumns; ++j) chain[j][i] = fmaf(own[j], value, chain[j][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPlainColumns * kPlainRows; ++i)
      sum[i / kPlainRows][i % kPlainRows] += chain[i / kPlainRows][i % kPlainRows];
  }
  const int lane = own_thread() % kLanes;
#pragma unroll
  for (int i = 0; i < kPlainRows; ++i)
#pragma unroll
    for (int j = 0; j < kPlainColumns; ++j) {
      const float all = lane_sum(sum[j][i], kLanes);
      const int row = first_row + i, column = first_column + j;
      if (lane == 0 && column < tile.columns && row < tile.rows) tile.y[row * task.rows + column] = all;
    }
}

// Whether all rows begin at multiples of 16 bytes, as copies need it.
__device__ __forceinline__ bool takes_wide_plain(const ManyTask& task, const ManyTile<kWideRows>& tile, int64_t width) {
  return (reinterpret_cast<uintptr_t>(tile.x[0]) | reinterpret_cast<uintptr_t>(tile.w) |
          static_cast<uintptr_t>(task.row_bytes) | static_cast<uintptr_t>(width * 4)) %
             16 ==
         0;
}

}  // namespace trigraph::TRIGRAPH_ISA
