// Products of weight rows with many activation rows of int8.
#pragma once

#include "rows.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kTileRows = 64, kTileColumns = 32;  // activation rows and weight rows of a block
constexpr int kStage = kThreads / kWarp;          // runs that a block unpacks at a time, one each warp
constexpr int kLevels = 5;                        // of the tree over a warp's lanes

// Many int8 rows by tensor cores, to the same bits: products are exact integers, and a thread adds up the runs of its
// results as the lanes of a warp do, chain by chain, with the tree over chains kept on a stack.
template <class F>
__global__ void __launch_bounds__(kThreads, 3) tiles(Weights weights, const char* x, int64_t x_bytes, Buckets buckets,
                                                     int64_t x_rows, float* y, const uint8_t* second, float* second_y) {
  constexpr int kStride = 12;  // words; eight columns of four words each meet all banks
  constexpr int kQuarters = kTileColumns / 8;
  __shared__ uint32_t code[kStage][kTileColumns][kStride];
  __shared__ float scale[kStage][kTileColumns][2], min_[kStage][kTileColumns][2];
  // Upper levels of the stack, which few chains reach; in registers they would halve the warps that fit.
  __shared__ float upper_levels[kLevels - 1][4 * kQuarters][kThreads];
  const Task task(weights, buckets, x_rows, y, second, second_y);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int runs = static_cast<int>(weights.width / kRun), lanes = weights.lanes;
  const int levels = 31 - __clz(lanes), steps = (runs + lanes - 1) / lanes, entries = lanes * steps;
  // Chains come in the order in which the tree joins them: that of the bits of their number, reversed.
  const auto run_of = [&](int entry) {
    return static_cast<int>(__brev(static_cast<uint32_t>(entry / steps)) >> (32 - levels)) + entry % steps * lanes;
  };
  const int64_t own_row = int64_t{blockIdx.x} * kTileColumns + lane;  // that this lane unpacks
  const uint8_t* w = own_row < weights.rows ? task.w + own_row * weights.row_bytes : nullptr;

  for (int64_t base = task.first + task.part * kTileRows; base < task.end; base += task.parts * kTileRows) {
    const int64_t index[2] = {base + warp * 16 + g, base + warp * 16 + g + 8};
    const char* row[2];
    for (int i = 0; i < 2; ++i) {
      const int64_t last = min(index[i], task.end - 1);
      row[i] = x + (buckets.source ? buckets.source[last] : last) * x_bytes;
    }
    const Int8Row upper(row[0], weights.width), lower(row[1], weights.width);
    float chain[kQuarters][4] = {}, lowest[kQuarters][4] = {}, total[kQuarters][4] = {};
    for (int start = 0; start < entries; start += kStage) {
      __syncthreads();
      Codes codes = {};
      const int mine = start + warp < entries ? run_of(start + warp) : runs;
      if (w && mine < runs) {
        constexpr int kRuns = F::kBlock / kRun;
        decode<F>(w + int64_t{mine / kRuns} * F::kBytes, mine % kRuns, &codes);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) code[warp][lane][i] = codes.word[i];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[warp][lane][i] = codes.scale[i];
        min_[warp][lane][i] = codes.min[i];
      }
      __syncthreads();
      for (int s = 0; s < min(kStage, entries - start); ++s) {
        const int entry = start + s, run = run_of(entry), number = entry / steps;
        if (run < runs) {
          const auto* up = reinterpret_cast<const uint32_t*>(upper.codes() + run * kRun);
          const auto* down = reinterpret_cast<const uint32_t*>(lower.codes() + run * kRun);
          const uint32_t a[4] = {up[t], down[t], up[4 + t], down[4 + t]};
          const float factor[2] = {upper.scales()[run / (kSuper / kRun)], lower.scales()[run / (kSuper / kRun)]};
          const int16_t *up_sums = upper.sums() + 2 * run, *down_sums = lower.sums() + 2 * run;
          const int sums[2][2] = {{up_sums[0], up_sums[1]}, {down_sums[0], down_sums[1]}};
#pragma unroll
          for (int n = 0; n < kQuarters; ++n) {
            int dot[2][4] = {};
            multiply_tiles(a[0], a[1], code[s][8 * n + g][t], dot[0]);
            multiply_tiles(a[2], a[3], code[s][8 * n + g][4 + t], dot[1]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int column = 8 * n + 2 * t + i % 2;
              const float part = run_product<F>(scale[s][column], min_[s][column], dot[0][i], dot[1][i], sums[i / 2][0],
                                                sums[i / 2][1]);
              chain[n][i] = fmaf(factor[i / 2], part, chain[n][i]);
            }
          }
        }
        if (entry % steps != steps - 1) continue;
        bool kept = false;
#pragma unroll
        for (int level = 0; level < kLevels; ++level) {
          if (kept || level >= levels) continue;
          kept = !(number >> level & 1);
#pragma unroll
          for (int n = 0; n < kQuarters; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float& there = level ? upper_levels[level - 1][4 * n + i][threadIdx.x] : lowest[n][i];
              if (kept)
                there = chain[n][i];
              else
                chain[n][i] += there;
            }
        }
#pragma unroll
        for (int n = 0; n < kQuarters; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (!kept) total[n][i] = chain[n][i];
            chain[n][i] = 0;
          }
      }
    }
#pragma unroll
    for (int n = 0; n < kQuarters; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t column = int64_t{blockIdx.x} * kTileColumns + 8 * n + 2 * t + i % 2;
        if (index[i / 2] < task.end && column < weights.rows)
          task.y[index[i / 2] * weights.rows + column] = total[n][i];
      }
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
