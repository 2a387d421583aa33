// Tiles of prompts as in wide_tiles.cuh, with weights as planes of bytes, which tensor cores add up asynchronously.
#pragma once

#include "plane_parts.cuh"
#include "wgmma.cuh"
#include "wide_tiles.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kPlaneEights = kWgmmaRows / 8;
using PlaneTile = TileInTurn<kWgmmaRows>;

template <class F>
struct PlaneStage {
  static constexpr int kSumStride = 48;  // bytes; what eight rows have is in all banks
  alignas(kAtomRows* kAtomBytes) char codes[kSuper / kAtomBytes][kWgmmaRows * kAtomBytes];
  alignas(16) char sums[F::kMin ? kWgmmaRows : 1][kSumStride];  // of 16 codes, as halves
  alignas(16) float factor[kWgmmaRows];
  alignas(16) uint8_t weights[kWideColumns * kTileStride<F>];
};
template <class F>
struct PlaneMemory {
  PlaneStage<F> stage[2];
  static constexpr int kWaiting = 2;
  float4 waiting[kWaiting][kPlaneEights][kTileThreads];
};

// Eight threads share a row of activations, and have each 32nd one.
constexpr int kRowsAtOnce = kTileThreads / 8;

// Asks for a step.
template <class F>
__device__ __forceinline__ void ask_planes(const PlaneTile& tile, PlaneStage<F>& stage, int step) {
  ask_weights<F>(tile, stage.weights, step);
  const int e = own_thread() % 8, first = own_thread() / 8, skipped = step * Int8Row::kStride;
#pragma unroll
  for (int i = 0; i < kWgmmaRows; i += kRowsAtOnce) {
    const int row = first + i;
    const char* x = tile.x[row] + skipped;
#pragma unroll
    for (int half = 0; half < 2; ++half) copy_ahead(stage.codes[half] + swizzled(row, e), x + (8 * half + e) * 16);
    if constexpr (F::kMin) copy_word_ahead(stage.sums[row] + e * 4, x + kSuper + e * 4);
    if (e == 0) copy_word_ahead(stage.factor + row, x + Int8Row::kScales);
  }
}

// Makes a step that is there ready for tensor cores.
template <class F>
__device__ __forceinline__ void prepare_step(PlaneStage<F>& stage) {
  if constexpr (F::kMin) make_halves<kWgmmaRows, PlaneStage<F>::kSumStride>(stage.sums[0]);
  show_to_tensor_cores();
}

// Integers that tensor cores add up, of both planes.
struct PlaneSums {
  int low[4 * kPlaneEights] = {}, high[4 * kPlaneEights] = {};

  template <class F>
  __device__ __forceinline__ void ask(PlanePart<F>& part, const PlaneStage<F>& stage) {
    const RowsPlace rows = rows_place(stage.codes[0]);
    Planes planes[2][2];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if (pair > 1) await_products<1>();  // has taken what is written now
      part.codes(pair, planes[pair % 2]);
      begin_products();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int run = part.run(pair, i);
        const RowsPlace own = moved_by(rows, run / 4 * kWgmmaRows * kAtomBytes + run % 4 * kRun);
        ask_products<uint8_t>(planes[pair % 2][i].low, own, pair || i, low);
        ask_products<int8_t>(planes[pair % 2][i].high, own, pair || i, high);
      }
      end_products();
    }
    await_products<0>();
#pragma unroll
    for (int i = 0; i < 4 * kPlaneEights; ++i) written(low[i]), written(high[i]);
  }
};

// Adds what a step's integers stand for: see WideSums.
template <class F>
__device__ __forceinline__ void add_planes(const PlanePart<F>& part, const PlaneSums& planes, int first, int lane,
                                           const PlaneStage<F>& stage, WideSums<kPlaneEights>& chain) {
  float d[2], dmin[2];
  uint32_t mins[4], b[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    part.units(stage.weights, first, lane, i, d[i], dmin[i], mins + i);
    d[i] *= 1.0f / PlanePart<F>::kUnit;
  }
#pragma unroll
  for (int n = 0; n < kPlaneEights; ++n) {
    if (F::kMin && n % 2 == 0) load_matrices(stage.sums[8 * n + lane % 8 + lane / 16 * 8] + lane / 8 % 2 * 16, b);
    int S[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) S[i] = planes.low[4 * n + i] + planes.high[4 * n + i] * 256;
    scale_eight<F>(d, dmin, mins, b + n % 2 * 2, stage.factor + 8 * n + lane % 4 * 2, S, chain.sum[n]);
  }
}

template <class F>
__device__ __forceinline__ void meet_planes(const PlaneTile& tile, const PlaneTile& behind, int64_t width,
                                            char* memory) {
  const ManyTask& task = tile.task;
  auto& own = *reinterpret_cast<PlaneMemory<F>*>(memory);
  const ChainOrder order{static_cast<int>(width / kSuper), task.chains};
  WideSums<kPlaneEights> chain;
  PlaneSums planes;
  chain.clear();
  int at = tile.stage;
  if (!tile.follows) {
    __syncthreads();  // others may still have the tile before
    ask_planes(tile, own.stage[at], 0);
    end_copies();
  }
#pragma unroll 1
  for (int number = 0; number < order.chains; ++number) {
    chain.clear();
#pragma unroll 1
    for (int step = order.first(number); step < order.steps; step += order.chains, at ^= 1) {
      await_copies(0);
      PlaneStage<F>& stage = own.stage[at];
      prepare_step(stage);
      __syncthreads();
      const int next = order.after(step, number);
      const bool last = next == order.steps;
      if (!last || behind.follows) ask_planes(last ? behind : tile, own.stage[at ^ 1], last ? 0 : next);
      end_copies();
      const int lane = own_thread() % kWarp, first = own_thread() / kWarp * kTileColumns;
      PlanePart<F> part(stage.weights, first, lane, task, tile, step);
      planes.ask(part, stage);
      add_planes(part, planes, first, lane, stage, chain);
    }
    join(number, task, tile, chain, chain, own);
  }
  with_outputs(task, tile, chain, [](float& sum, float* y) { *y = sum + 0.0f; });
}

}  // namespace trigraph::TRIGRAPH_ISA
