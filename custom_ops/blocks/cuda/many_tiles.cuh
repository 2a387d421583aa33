// The kernel of many_products.h, for the types F: the one of a weight is chosen when it runs. Tensor cores form the
// exact integers of runs.
#pragma once

#include "few_products.cuh"
#include "fragments.cuh"
#include "many_products.h"
#include "row_products.cuh"
#include "tensor_cores.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kTileThreads = 256, kTileWarps = kTileThreads / kWarp;
constexpr int kTileColumns = 16;           // weight rows of a warp
constexpr int kStageRuns = kSuper / kRun;  // runs of a stage

// Activation rows as a warp meets them: a step of 256, or a run of each of eight steps.
template <class F, int kRows>
struct Stage {
  static constexpr int kStride = kScales<F> == 1 ? 288 : 304;  // bytes; what eight rows have is in all banks
  static constexpr int kFactors = kWhole<F> ? 1 : kStageRuns;
  alignas(16) char row[kRows][kStride];  // codes, and behind those of a step the sums of 16
  float factor[kRows][kFactors];

  // A lane's words of a run.
  __device__ __forceinline__ void codes(int i, int run, int t, uint32_t* word) const {
    const char* p = row[i] + run * kRun;
    if constexpr (kScales<F> == 1) {
      const uint2 both = *reinterpret_cast<const uint2*>(p + 8 * t);
      word[0] = both.x, word[1] = both.y;
    } else {
      word[0] = *reinterpret_cast<const uint32_t*>(p + 4 * t),
      word[1] = *reinterpret_cast<const uint32_t*>(p + 16 + 4 * t);
    }
  }
  // Four sums of 16 codes: the low bytes, and the high ones.
  __device__ __forceinline__ void sums(int i, int t, uint32_t* low, uint32_t* high) const {
    const uint2 four = *reinterpret_cast<const uint2*>(row[i] + kSuper + 8 * t);
    *low = __byte_perm(four.x, four.y, 0x6420), *high = __byte_perm(four.x, four.y, 0x7531);
  }

  // Asks for step `first` of `rows` rows, or for the steps first, first + apart .. below `steps`, by `threads` threads.
  __device__ __forceinline__ void load(const char* const* x, int rows, int first, int apart, int steps, int thread,
                                       int threads) {
    constexpr int kPieces = kSuper / 16 + (kWhole<F> && F::kMin ? 2 : 0);
    for (int i = thread; i < rows * kPieces; i += threads) {
      const int at = i / kPieces, piece = i % kPieces, step = kWhole<F> ? first : first + piece / 2 * apart;
      const char* from = kWhole<F> ? x[at] + int64_t{step} * Int8Row::kStride + piece * 16
                                   : reinterpret_cast<const char*>(Int8Row(x[at]).codes(step)) + piece % 2 * 16;
      if (step < steps) copy_ahead(row[at] + piece * 16, from);
    }
    for (int i = thread; i < rows * kFactors; i += threads) {
      const int at = i / kFactors, step = first + i % kFactors * apart;
      if (step < steps) copy_word_ahead(&factor[at][i % kFactors], Int8Row(x[at]).scale(step * (kStep<F> / kRun)));
    }
  }
};

// A thread has weight rows g and g + 8 of its warp's and activation rows 2 t and 2 t + 1 of each eight; see
// half_dots. The chain that it adds to:
template <int kEights>
struct Chain {
  float sum[kEights][4] = {};

  // Adds a step's integers. `d`, `dmin`: of both weight rows.
  template <class F, int kRows>
  __device__ __forceinline__ void add(int n, const int* S, const int* T, const float* d, const float* dmin,
                                      const Stage<F, kRows>& x, int which) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float value = d[i / 2] * static_cast<float>(S[i]);
      if constexpr (kTwoSums<F>)
        value = fmaf(d[i / 2], static_cast<float>(S[i]), -(dmin[i / 2] * static_cast<float>(T[i])));
      sum[n][i] = fmaf(x.factor[8 * n + threadIdx.x % 4 * 2 + i % 2][which], value, sum[n][i]);
    }
  }

  // Adds a step of 256 for the first `eights` eights of rows.
  template <class Parts, class F, int kRows>
  __device__ __forceinline__ void add_step(const Parts* part, const Stage<F, kRows>& x, int eights) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    int S[kEights][4] = {};
#pragma unroll
    for (int run = 0; run < kStageRuns; ++run) {
      uint32_t a[4];
      int scale[2][kScales<F>];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t word[2];
        part[i].codes(run, word);
        a[i] = word[0], a[2 + i] = word[1];
        for (int k = 0; k < kScales<F>; ++k) scale[i][k] = part[i].scale(run, k);
      }
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        if (n >= eights) continue;
        uint32_t b[2];
        int dot[4], second[4];
        x.codes(8 * n + g, run, t, b);
        if constexpr (kScales<F> == 1) {
          run_dots(a, b, dot);
          for (int i = 0; i < 4; ++i) S[n][i] += scale[i / 2][0] * dot[i];
        } else {
          half_dots(a[0], a[1], b[0], dot);
          half_dots(a[2], a[3], b[1], second);
          for (int i = 0; i < 4; ++i) S[n][i] += scale[i / 2][0] * dot[i] + scale[i / 2][1] * second[i];
        }
      }
    }
    const float d[2] = {part[0].d(0), part[1].d(0)};
    float dmin[2] = {};
    uint32_t mins[2] = {};
    if constexpr (F::kMin)
      for (int i = 0; i < 2; ++i) dmin[i] = part[i].dmin(0), mins[i] = part[i].mins();
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      if (n >= eights) continue;
      int T[4] = {}, high[4];
      if constexpr (F::kMin) {
        uint32_t low_bytes, high_bytes;
        x.sums(8 * n + g, t, &low_bytes, &high_bytes);
        half_dots<uint8_t>(mins[0], mins[1], low_bytes, T);
        half_dots(mins[0], mins[1], high_bytes, high);
        for (int i = 0; i < 4; ++i) T[i] += high[i] * 256;
      }
      add(n, S[n], T, d, dmin, x, 0);
    }
  }

  // Adds step number `which` of the stage, a run, which is step `step` of the parts' block.
  template <class F, int kRows>
  __device__ __forceinline__ void add_run(const Fragment<F>* part, int step, const Stage<F, kRows>& x, int which,
                                          int eights) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    uint32_t a[4];
    float d[2], dmin[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t word[2];
      part[i].codes(step, word);
      a[i] = word[0], a[2 + i] = word[1];
      d[i] = part[i].d(step);
      if constexpr (kTwoSums<F>) dmin[i] = part[i].dmin(step);
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      if (n >= eights) continue;
      uint32_t b[2];
      int S[4], T[4] = {};
      x.codes(8 * n + g, which, t, b);
      if constexpr (F::kPaired) {
        half_dots(a[0], a[1], b[0], S);
        half_dots(a[2], a[3], b[1], T);
      } else {
        constexpr uint32_t kOnes[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
        run_dots(a, b, S);
        if constexpr (F::kMin) run_dots(kOnes, b, T);
        for (int i = 0; i < 4; ++i) {
          S[i] *= part[i / 2].scale(step, 0);
          if constexpr (F::kMin) T[i] *= F::min(part[i / 2].p, step);
        }
      }
      add(n, S, T, d, dmin, x, which);
    }
  }
};

// Blocks of 16 activation rows. A warp has a chain of 16 weight rows.
constexpr int kTileRows = 16;

template <class F>
union TileMemory {
  Stage<F, kTileRows> stage;
  float sum[kTileRows][kTileColumns + 4];  // of a chain
};

template <class F>
__device__ __forceinline__ void add_chain(const uint8_t* const* w, const char* const* x, int rows, int64_t width,
                                          int chain, int chains, Stage<F, kTileRows>& stage,
                                          Chain<kTileRows / 8>& sums) {
  constexpr int kAhead = kWhole<F> ? 1 : kStageRuns;  // steps of a stage
  const int steps = static_cast<int>(width / kStep<F>), lane = threadIdx.x % kWarp, eights = (rows + 7) / 8;
#pragma unroll 1
  for (int first = chain; first < steps; first += chains * kAhead) {
    __syncwarp();
    stage.load(x, 8 * eights, first, chains, steps, lane, kWarp);
    end_copies();
    Fragment<F> part[kAhead][2];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      for (int i = 0; i < 2; ++i)
        part[k][i].load(w[i] + min(first + k * chains, steps - 1) / kSteps<F> * F::kBytes, lane % 4);
    await_copies(0);
    __syncwarp();
    if constexpr (kWhole<F>) {
      sums.add_step(part[0], stage, eights);
    } else {
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int step = first + k * chains;
        if (step < steps) sums.add_run(part[k], step % kSteps<F>, stage, k, eights);
      }
    }
  }
}

// A block's part of a product, in shared memory: registers are for sums.
template <int kRows>
struct ManyTile {
  const char* x[kRows];
  const uint8_t *w, *end;  // the first weight row, and the end of the matrix
  float* y;                // of the first rows of both
  int rows, columns;
};

// The rows of a tile from `first` on, of which there are at most kTileRows.
template <class F, int kRows>
__device__ __forceinline__ void meet_tile(const ManyTask& task, const ManyTile<kRows>& whole, int first, int64_t width,
                                          char* memory) {
  const int rows = min(kTileRows, whole.rows - first);
  auto* tile = reinterpret_cast<TileMemory<F>*>(memory);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int own = warp / task.chains * kTileColumns + g;
  const uint8_t* row[2];
  for (int i = 0; i < 2; ++i) row[i] = whole.w + min(own + 8 * i, whole.columns - 1) * task.row_bytes;
  Chain<kTileRows / 8> chain;
  add_chain(row, whole.x + first, rows, width, warp % task.chains, task.chains, tile[warp].stage, chain);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4 * kTileRows / 8; ++i)
    tile[warp].sum[i / 4 * 8 + 2 * t + i % 2][g + i % 4 / 2 * 8] = chain.sum[i / 4][i % 4];
  __syncthreads();
  for (int i = threadIdx.x; i < rows * task.columns; i += kTileThreads) {
    const int at = i / task.columns, column = i % task.columns;
    float sum[kChains];
#pragma unroll
    for (int c = 0; c < kChains; ++c)
      sum[c] = c < task.chains ? tile[column / kTileColumns * task.chains + c].sum[at][column % kTileColumns] : 0.0f;
#pragma unroll
    for (int half = kChains / 2; half; half /= 2)
      for (int c = 0; c < half; ++c) sum[c] += sum[c + half];
    if (column < whole.columns) whole.y[(first + at) * task.rows + column] = sum[0] + 0.0f;  // a chain of zeros
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
