// What a warp has of a step of tall_products.cuh: a super-block of 16 weight rows, unpacked once for all rows of
// activations, which come eight at a time.
#pragma once

#include "wide_tiles.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kTallRows = 64, kTallEights = kTallRows / 8;
using TallActivations = WideActivations<kTallRows>;
using TallSums = WideSums<kTallEights>;

// What WidePart gives, in registers.
template <class F>
struct TallCodes {
  uint32_t code[kStageRuns][4], mins[4];
  int scale[kStageRuns][kScales<F>][2];
  float d[2], dmin[2];

  __device__ __forceinline__ TallCodes(const uint8_t* weights, int first, int lane, const ManyTask& task,
                                       const ManyTile<kTallRows>& tile, int step) {
    WidePart<F> part(weights, first, lane, task, tile, step);
#pragma unroll
    for (int run = 0; run < kStageRuns; ++run) {
      if (run == kStageRuns / 2) part.next();
      part.codes(run % 4, code[run]);
#pragma unroll
      for (int i = 0; i < 2 * kScales<F>; ++i) scale[run][i / 2][i % 2] = part.scale(i % 2, run % 4, i / 2);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      part.units(weights, first, lane, i, d[i], dmin[i], mins + i);
      d[i] *= kUnit<F>;
    }
  }
};

// What a lane has of the first eight rows of activations; that of others lies kEight behind for each.
struct TallLane {
  const char *codes, *sums;  // for load_matrices, both halves: of two runs; of two eights
  const float* factors;
  __device__ TallLane(const TallActivations& x, int lane)
      : codes(x.row[lane % 8] + lane / 8 * 16),
        sums(x.row[lane % 8 + lane / 16 * 8] + kSuper + lane / 8 % 2 * 16),
        factors(x.factor + lane % 4 * 2) {}
};

// Adds a step of kCount eights from `first` on. Of two, tensor cores have one while the other is added.
template <int kCount, class F>
__device__ __forceinline__ void add_eights(const TallCodes<F>& codes, const TallLane& lane, int first,
                                           float (*sum)[4]) {
  int S[kCount][4] = {};
  uint32_t b[kCount][4];
#pragma unroll
  for (int run = 0; run < kStageRuns; ++run) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      if (run % 2 == 0) load_matrices(lane.codes + (first + n) * TallActivations::kEight + run * kRun, b[n]);
      const uint32_t *a = codes.code[run], *own = b[n] + run % 2 * 2;
      int dot[kScales<F>][4];
      if constexpr (kScales<F> == 1) {
        run_dots(a, own, dot[0]);
      } else {
        half_dots(a[0], a[1], own[0], dot[0]);
        half_dots(a[2], a[3], own[1], dot[1]);
      }
#pragma unroll
      for (int i = 0; i < 4 * kScales<F>; ++i) S[n][i % 4] += codes.scale[run][i / 4][i % 4 / 2] * dot[i / 4][i % 4];
    }
  }
  uint32_t sums[4];
  if constexpr (F::kMin) load_matrices(lane.sums + first * TallActivations::kEight, sums);
#pragma unroll
  for (int n = 0; n < kCount; ++n)
    scale_eight<F>(codes.d, codes.dmin, codes.mins, sums + 2 * n, lane.factors + 8 * (first + n), S[n], sum[first + n]);
}

// Adds a step of the first `eights` eights of rows; see half_dots. `weights`: of all warps.
template <class F>
__device__ __forceinline__ void add_step(const TallActivations& x, const uint8_t* weights, int eights,
                                         const ManyTask& task, const ManyTile<kTallRows>& tile, int step,
                                         float (*sum)[4]) {
  const int thread = own_thread(), lane = thread % kWarp;
  const TallCodes<F> codes(weights, thread / kWarp * kTileColumns, lane, task, tile, step);
  const TallLane own(x, lane);
#pragma unroll
  for (int n = 0; n < kTallEights; n += 2) {
    if (n + 1 < eights)
      add_eights<2>(codes, own, n, sum);
    else if (n < eights)
      add_eights<1>(codes, own, n, sum);
  }
}

// Writes a thread's sums that are there, or adds them to what was written before.
__device__ __forceinline__ void write_sums(const TileInTurn<kTallRows>& tile, const TallSums& sums, bool more) {
  const int thread = own_thread(), first = thread % 4 * 2, column = thread / kWarp * kTileColumns + thread % kWarp / 4;
  const int rows = tile.rows - first, columns = tile.columns - column, of_row = static_cast<int>(tile.task.rows);
  float* y = tile.y + (first * of_row + column);
#pragma unroll
  for (int n = 0; n < kTallEights; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (8 * n + i >= rows) return;
#pragma unroll
      for (int k = 0; k < 2; ++k)
        if (8 * k < columns) y[8 * k] = (more ? y[8 * k] + sums.sum[n][2 * k + i] : sums.sum[n][2 * k + i]) + 0.0f;
      y += i ? 7 * of_row : of_row;
    }
}

// Joins the chain that comes as `number` with those in `waiting`, or lets it wait there: as `join` does, but the sum of
// all is written too.
__device__ __forceinline__ void end_chain(int number, const TileInTurn<kTallRows>& tile, TallSums& chain,
                                          float4 (*waiting)[kTallEights][kTileThreads]) {
  const int thread = own_thread();
  if (number & 1) {
    chain.add(waiting[1], thread);
    if (number & 2) chain.add(waiting[0], thread);
  }
  if (number + 1 == tile.task.chains || (number & 3) == 3)
    write_sums(tile, chain, number > 3);
  else
    chain.write(waiting[number & 1 ? 0 : 1], thread);
}

}  // namespace trigraph::TRIGRAPH_ISA
