// Tiles of 32 rows of Q8_0 that meet 32 rows of activations. Eight runs, one of each chain, come through shared memory
// at once, eight ahead of those that are met; a warp has all chains of 16 weight rows with eight rows of activations.
#pragma once

#include "wide_parts.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kWideQ8Columns = 32;

struct Q8Stage {
  static constexpr int kStride = kStageRuns * Q8_0::kBytes;  // 16-byte aligned; eight rows meet all banks
  WideActivations<kWideRows> x;                              // without its factors
  float factor[kStageRuns][kWideRows];
  alignas(16) uint8_t weights[kWideQ8Columns][kStride];
};
using Q8Memory = Q8Stage[2];

// Asks for 256 elements of all rows: eight threads for a row of each.
__device__ __forceinline__ void ask_q8(const ManyTask& task, const ManyTile<kWideRows>& tile, int step,
                                       Q8Stage& stage) {
  const int row = own_thread() / 8, e = own_thread() % 8;
  const uint8_t* w = tile.w + min(row, tile.columns - 1) * task.row_bytes + step * Q8Stage::kStride;
  const char* x = tile.x[row] + step * Int8Row::kStride;
#pragma unroll
  for (int at = 16 * e; at < kSuper; at += 128)
    copy_ahead(stage.weights[row] + at, w + at), copy_ahead(stage.x.row[row] + at, x + at);
  if (e == 0) copy_ahead(stage.weights[row] + kSuper, w + kSuper);
  copy_word_ahead(stage.factor[e] + row, x + (Int8Row::kScales + 4 * e));
}

// The lane's word of a run's codes, `half` runs in.
__device__ __forceinline__ uint32_t q8_word(const uint8_t* row, int run, int half, int t) {
  const int at = run * Q8_0::kBytes + 2 + 16 * half;  // a multiple of two
  const auto* words = reinterpret_cast<const uint32_t*>(row + at / 4 * 4) + t;
  return at % 4 ? __byte_perm(words[0], words[1], 0x5432) : words[0];
}

__device__ __forceinline__ void meet_wide_q8(const ManyTask& task, const ManyTile<kWideRows>& tile, int64_t width,
                                             char* memory) {
  auto& stage = *reinterpret_cast<Q8Memory*>(memory);
  const int steps = static_cast<int>(width / kSuper), lane = own_thread() % kWarp, warp = own_thread() / kWarp;
  const int g = lane / 4, t = lane % 4, eight = warp % kWideEights * 8, column = warp / kWideEights * kTileColumns + g;
  float sum[kChains][4] = {};
  ask_q8(task, tile, 0, stage[0]);
  end_copies();
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    await_copies(0);
    __syncthreads();
    if (step + 1 < steps) ask_q8(task, tile, step + 1, stage[(step + 1) % 2]);
    end_copies();
    if (eight >= tile.rows) continue;
    const Q8Stage& own = stage[step % 2];
    const char* x = own.x.row[eight + lane % 8] + lane / 8 * 16;  // load_matrices: two runs, both halves
    uint32_t b[4];
#pragma unroll
    for (int run = 0; run < kStageRuns; ++run) {
      const float2 factor = *reinterpret_cast<const float2*>(own.factor[run] + eight + 2 * t);
      if (run % 2 == 0) load_matrices(x + run * kRun, b);
      uint32_t a[4];
      float d[2];
      int dot[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint8_t* row = own.weights[column + 8 * i];
        a[i] = q8_word(row, run, 0, t), a[2 + i] = q8_word(row, run, 1, t);
        d[i] = Q8_0::d(row + run * Q8_0::kBytes);
      }
      run_dots(a, b + run % 2 * 2, dot);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[run][i] = fmaf(i % 2 ? factor.y : factor.x, d[i / 2] * static_cast<float>(dot[i]), sum[run][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = kChains / 2; half; half /= 2)
      for (int c = 0; c < half; ++c) sum[c][i] += sum[c + half][i];
    const int row = eight + 2 * t + i % 2, of_row = column + i / 2 * 8;
    if (row < tile.rows && of_row < tile.columns) tile.y[row * task.rows + of_row] = sum[0][i] + 0.0f;
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
