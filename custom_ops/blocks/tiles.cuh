// Products of weight rows with many activation rows of int8, by tensor cores: they form the exact integers of runs.
#pragma once

#include "rows.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kTileRows = 64, kTileColumns = 32;  // activation rows and weight rows of a block
constexpr int kStage = kThreads / kWarp;          // runs that a block unpacks at a time, one each warp
constexpr int kQuarters = kTileColumns / 8;
constexpr int kResults = 4 * kQuarters;  // of a thread: for each quarter of the columns the four of multiply_tiles
constexpr int kLevels = 3;               // of the tree over chains

// The steps of a weight row in the order in which the tree joins their chains: all of c0, then of c4, c2, c6, c1, c5,
// c3, c7. With fewer than eight chains each has one step.
struct ChainOrder {
  int steps, chains, levels, longest;  // longest: steps of the longest chain
  __device__ ChainOrder(int steps, int chains)
      : steps(steps), chains(chains), levels(0), longest((steps + chains - 1) / chains) {
    while (1 << levels < chains) ++levels;
  }
  __device__ int entries() const { return chains * longest; }
  // The step of an entry; not below `steps` when its chain is at its end.
  __device__ int operator()(int entry) const {
    const auto number = static_cast<uint32_t>(entry / longest);
    return static_cast<int>(levels ? __brev(number) >> (32 - levels) : 0) + entry % longest * chains;
  }
};

// Chains that wait for the other half of a sum.
struct ChainTree {
  float lowest[kResults];
  float (*upper)[kResults][kThreads];  // few chains get there; in registers they would halve the warps that fit

  // Joins the chain that came as `number` with those that wait for it. Returns whether it waits now itself.
  __device__ __forceinline__ bool join(int number, int levels, float* chain) {
    bool waits = false;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (waits || level >= levels) continue;
      waits = !(number >> level & 1);
#pragma unroll
      for (int i = 0; i < kResults; ++i) {
        float& there = level ? upper[level - 1][i][threadIdx.x] : lowest[i];
        if (waits)
          there = chain[i];
        else
          chain[i] += there;
      }
    }
    return waits;
  }
};

// A few runs of kTileColumns weight rows, unpacked.
template <class F>
struct Stage {
  static constexpr int kStride = 12;  // words; eight columns of four words each meet all banks
  uint32_t code[kStage][kTileColumns][kStride];
  int scale[kStage][kTileColumns][kScales<F>], min[kStage][kTileColumns][kScales<F>];
  float d[kStage][kTileColumns], dmin[kStage][kTileColumns];

  // Run `run` of the block at p as the one of this warp, a lane for each weight row; nullptr: a row of zeros.
  __device__ __forceinline__ void load(const uint8_t* p, int run) {
    const int lane = threadIdx.x % kWarp, s = threadIdx.x / kWarp;
    uint32_t word[8] = {};
    if (p) Words<F>::load(p, run, word);
#pragma unroll
    for (int i = 0; i < 8; ++i) code[s][lane][i] = word[i];
#pragma unroll
    for (int i = 0; i < kScales<F>; ++i) {
      scale[s][lane][i] = p ? F::scale(p, run * kScales<F> + i) : 0;
      if constexpr (F::kMin) min[s][lane][i] = p ? F::min(p, run * kScales<F> + i) : 0;
    }
    const int step = run * kRun / kStep<F>;
    d[s][lane] = p ? step_d<F>(p, step) : 0.0f;
    if constexpr (kTwoSums<F>) dmin[s][lane] = p ? step_dmin<F>(p, step) : 0.0f;
  }
};

// Two activation rows of a thread, and what it adds up for them and its columns.
struct TileSums {
  Int8Row row[2];
  int S[kResults], T[kResults];
  float chain[kResults];

  __device__ TileSums(const char* upper, const char* lower, int64_t width)
      : row{Int8Row(upper, width), Int8Row(lower, width)}, S{}, T{}, chain{} {}

  // Adds run s of the stage, which meets run `at` of the rows.
  template <class F>
  __device__ __forceinline__ void add_run(const Stage<F>& stage, int s, int at) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const auto* up = reinterpret_cast<const uint32_t*>(row[0].codes(at));
    const auto* down = reinterpret_cast<const uint32_t*>(row[1].codes(at));
    const uint32_t a[4] = {up[t], down[t], up[4 + t], down[4 + t]};
    int sum[2][2];
    for (int i = 0; i < 2; ++i)
      for (int k = 0; k < 2; ++k) sum[i][k] = row[i].sums(at)[k];
#pragma unroll
    for (int n = 0; n < kQuarters; ++n) {
      int dot[2][4] = {};
      multiply_tiles(a[0], a[1], stage.code[s][8 * n + g][t], dot[0]);
      multiply_tiles(a[2], a[3], stage.code[s][8 * n + g][4 + t], dot[kScales<F> - 1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 8 * n + 2 * t + i % 2;
        const int *scale = stage.scale[s][column], *min = stage.min[s][column], *x_sum = sum[i / 2];
        if constexpr (F::kPaired) {
          S[4 * n + i] = dot[0][i];
          T[4 * n + i] = dot[1][i];
        } else if constexpr (kScales<F> == 1) {
          S[4 * n + i] += scale[0] * dot[0][i];
          if constexpr (F::kMin) T[4 * n + i] += min[0] * (x_sum[0] + x_sum[1]);
        } else {
          S[4 * n + i] += scale[0] * dot[0][i] + scale[1] * dot[1][i];
          if constexpr (F::kMin) T[4 * n + i] += min[0] * x_sum[0] + min[1] * x_sum[1];
        }
      }
    }
  }

  // Adds the step whose last run was run s of the stage, and which meets the activations of a super-block.
  template <class F>
  __device__ __forceinline__ void add_step(const Stage<F>& stage, int s, int64_t super) {
    const float factor[2] = {row[0].scales()[super], row[1].scales()[super]};
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
      float value = stage.d[s][column] * static_cast<float>(S[i]);
      if constexpr (kTwoSums<F>)
        value = fmaf(stage.d[s][column], static_cast<float>(S[i]), -(stage.dmin[s][column] * static_cast<float>(T[i])));
      chain[i] = fmaf(factor[i % 4 / 2], value, chain[i]);
      S[i] = T[i] = 0;
    }
  }
};

// A thread has rows g and g + 8 of its warp's 16 and columns 2 t and 2 t + 1 of each quarter; see multiply_tiles.
template <class F>
__global__ void __launch_bounds__(kThreads, 3) tiles(Weights weights, const char* x, int64_t x_bytes, Buckets buckets,
                                                     int64_t x_rows, float* y, const uint8_t* second, float* second_y) {
  constexpr int kRuns = kStep<F> / kRun;
  __shared__ Stage<F> stage;
  __shared__ float upper_levels[kLevels - 1][kResults][kThreads];
  const Task task(weights, buckets, x_rows, y, second, second_y);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const ChainOrder order(static_cast<int>(weights.width / kStep<F>), weights.lanes / kShare<F>);
  const int64_t own_row = int64_t{blockIdx.x} * kTileColumns + lane;  // that this lane unpacks
  const uint8_t* w = own_row < weights.rows ? task.w + own_row * weights.row_bytes : nullptr;

  for (int64_t base = task.first + task.part * kTileRows; base < task.end; base += task.parts * kTileRows) {
    const int64_t index[2] = {base + warp * 16 + lane / 4, base + warp * 16 + lane / 4 + 8};
    const auto row = [&](int i) {
      const int64_t last = min(index[i], task.end - 1);
      return x + (buckets.source ? buckets.source[last] : last) * x_bytes;
    };
    TileSums sums(row(0), row(1), weights.width);
    ChainTree tree{{}, upper_levels};
    for (int start = 0, end = order.entries() * kRuns; start < end; start += kStage) {
      __syncthreads();
      const int own = start + warp, own_step = own < end ? order(own / kRuns) : order.steps;
      stage.load(w && own_step < order.steps ? w + int64_t{own_step / kSteps<F>} * F::kBytes : nullptr,
                 own_step % kSteps<F> * kRuns + own % kRuns);
      __syncthreads();
      for (int s = 0; s < min(kStage, end - start); ++s) {
        const int entry = (start + s) / kRuns, run = (start + s) % kRuns, step = order(entry);
        if (step < order.steps) sums.add_run(stage, s, step * kRuns + run);
        if (run != kRuns - 1) continue;
        if (step < order.steps) sums.add_step(stage, s, int64_t{step} * kStep<F> / kSuper);
        if (entry % order.longest != order.longest - 1) continue;
        if (tree.join(entry / order.longest, order.levels, sums.chain))
          for (float& chain : sums.chain) chain = 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      const int64_t column = int64_t{blockIdx.x} * kTileColumns + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (index[i % 4 / 2] < task.end && column < weights.rows)
        task.y[index[i % 4 / 2] * weights.rows + column] = sums.chain[i] + 0.0f;  // a chain of zeros
    }
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
