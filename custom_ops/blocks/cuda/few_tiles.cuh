// Products of weight rows with up to eight activation rows by tensor cores, which form the exact integers of runs:
// eight rows cost what one costs. A warp meets 16 weight rows at a time, with the blocks of one chain; the warps of a
// thread block then join their chains. Blocks come through shared memory, some ahead of those that are met.
#pragma once

#include "few_products.h"
#include "tile_blocks.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kFewThreads = 256;
constexpr int kFewWarps = kFewThreads / kWarp;
constexpr int kTile = 16;            // weight rows of a warp
constexpr int kMostStages = 3;       // blocks of a warp in shared memory
constexpr int kJoinedStride = 20;    // words: what a warp writes of a tile meets all banks
constexpr int kMostSlot = 16 * 240;  // bytes of a stage
constexpr int kRing = 8 << 10;       // of a warp's stages: two of them, or a row of 2,048 floats

template <class F>
constexpr bool kAlwaysTiled = std::is_same_v<F, Q4_K> || std::is_same_v<F, Q5_K> || std::is_same_v<F, Q6_K>;
template <class F>
constexpr bool kTiled = kAlwaysTiled<F> || std::is_same_v<F, Q8_0>;  // Q8_0: rows of whole super-blocks
template <class F>
constexpr int kSlot = kTile * kTileStride<F>;

// Where a block begins in the first 16 bytes that hold some of it.
template <class F>
__device__ __forceinline__ int shift_of(const uint8_t* p) {
  return F::kBytes % 16 ? static_cast<int>(reinterpret_cast<uintptr_t>(p) & 15) : 0;
}

// Asks for the blocks of a weight row that a warp meets at once, of which the lane takes every fourth 16 bytes: from p
// on, `left` of them at most, to the row's place in a stage. Nothing behind `end` is read.
template <class F>
__device__ __forceinline__ void ask_row(const uint8_t* p, int left, const uint8_t* end, char* row) {
  const int t = threadIdx.x % 4, shift = shift_of<F>(p);
  const uint8_t* from = p - shift + 16 * t;
  char* to = row + 16 * t;
#pragma unroll
  for (int i = 0; i < kPieces<F>; ++i, from += kSuper / F::kBlock * F::kBytes, to += kPieceStride<F>) {
#pragma unroll
    for (int at = 0; at < kPieceStride<F>; at += 64) {
      const bool whole = at + 64 <= F::kBytes;
      if ((whole || at + 16 * t < F::kBytes + shift) && i < left)
        copy_ahead(to + at, from + at, whole ? 16 : static_cast<int>(min(int64_t{16}, end - from - at)));
    }
  }
}

// A warp's way through its part of a weight: tile after tile, in each the blocks of its chain.
struct TileWalk {
  const uint8_t* data;
  int64_t row_bytes;
  int rows, first, end, at_once;  // of the weight; of the thread block
  int steps, chains, chain, group;
  int row, step;  // what is asked for next: a tile's first row, a super-block

  // `first`: the thread block's first row.
  __device__ TileWalk(const FewTask& task, const uint8_t* data, int64_t width, int first)
      : data(data), row_bytes(task.row_bytes), rows(static_cast<int>(task.rows)), first(first), at_once(task.at_once) {
    const int warp = threadIdx.x / kWarp;
    end = min(first + at_once * task.rounds, rows);
    steps = static_cast<int>(width / kSuper), chains = max(1, kFewWarps * kTile / at_once);
    chain = warp % chains, group = warp / chains;
    row = first + group * kTile, step = -1;
  }
  // The warp's super-blocks: the first one, and from each to the next.
  template <class F>
  __device__ int begin() const {
    return kPieces<F> > 1 ? 0 : chain;
  }
  template <class F>
  __device__ int stride() const {
    return kPieces<F> > 1 ? kPieces<F> : chains;
  }
  template <class F>
  __device__ const uint8_t* block(int row, int step) const {
    const int blocks = kPieces<F> > 1 ? step * (kSuper / F::kBlock) + chain : step;
    return data + min(row, rows - 1) * row_bytes + blocks * F::kBytes;
  }
  // Asks for the next block of the lane's two rows, if there is one.
  template <class F>
  __device__ __forceinline__ void ask(char* slot) {
    const int g = threadIdx.x % kWarp / 4;
    if (row < end && step < steps) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        ask_row<F>(block<F>(row + g + 8 * half, step), steps - step, data + rows * row_bytes,
                   slot + (g + 8 * half) * kTileStride<F>);
      step += stride<F>();
      if (step >= steps) step = begin<F>(), row += at_once;
    }
    end_copies();
  }
};

// A tile's sums of each warp, two tiles in turns.
__device__ __forceinline__ float* chains_of_warps(int round) {
  __shared__ float sums[2][kFewWarps][8 * kJoinedStride];
  return sums[round % 2][0];
}

// The products of at_once weight rows from `row` on, from what warps have written of them.
__device__ __forceinline__ void join_chains(const TileWalk& walk, const float* sums, int row, int count, float* y,
                                            int64_t y_stride, const int* target) {
  for (int i = threadIdx.x; i < walk.at_once * count; i += kFewThreads) {
    const int m = i / walk.at_once, own = i % walk.at_once, group = own / kTile;
    if (row + own >= walk.end) continue;
    float chain[kChains];
#pragma unroll
    for (int c = 0; c < kChains; ++c)
      chain[c] = c < walk.chains ? sums[(group * walk.chains + c) * 8 * kJoinedStride + m * kJoinedStride + own % kTile]
                                 : 0.0f;
#pragma unroll
    for (int half = kChains / 2; half; half /= 2)
#pragma unroll
      for (int c = 0; c < half; ++c) chain[c] += chain[c + half];
    y[(target ? target[m] : m) * y_stride + row + own] = chain[0] + 0.0f;
  }
}

// The ring of this warp in shared memory, and what it has asked for.
template <class F>
__device__ __forceinline__ int stages_of(int ring_bytes) {
  return min(kMostStages, ring_bytes / kSlot<F>);
}
template <class F>
__device__ __forceinline__ void begin_tiles(TileWalk& walk, char* rings, int ring_bytes) {
  char* ring = rings + threadIdx.x / kWarp * ring_bytes;
  walk.step = walk.begin<F>();
  for (int s = 0; s < stages_of<F>(ring_bytes); ++s) walk.ask<F>(ring + s * kSlot<F>);
}

// The thread block's rows of a weight with `count` rows of x, at most eight, after begin_tiles. The whole block calls.
// Without rows, it goes through its first blocks and through the code once, and nothing comes of it.
template <class F>
__device__ __forceinline__ void meet_tiles(TileWalk& walk, char* rings, int ring_bytes, const char* x, int64_t x_bytes,
                                           int count, float* y, int64_t y_stride, const int* target) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, warp = threadIdx.x / kWarp;
  const int stages = stages_of<F>(ring_bytes);
  char* ring = rings + warp * ring_bytes;
  const int last = max(count, 1) - 1;
  const char* codes = x + min(g, last) * x_bytes;
  const char* scales[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) scales[i] = x + min(2 * t + i, last) * x_bytes + Int8Row::kScales;
  for (int round = 0, slot = 0; walk.first + round * walk.at_once < walk.end; ++round) {
    const int base = walk.first + round * walk.at_once, row = base + walk.group * kTile;
    float chain[4] = {};
    for (int step = walk.begin<F>(); row < walk.end && step < walk.steps; step += walk.stride<F>()) {
      await_copies(stages - 1);
      __syncwarp();
      const uint8_t* block[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        block[half] = reinterpret_cast<const uint8_t*>(ring) + slot * kSlot<F> + (g + 8 * half) * kTileStride<F> +
                      shift_of<F>(walk.block<F>(row + g + 8 * half, step));
      const char* super = codes + step * Int8Row::kStride;
      const int at = step * Int8Row::kStride + (kPieces<F> > 1 ? walk.chain * 4 : 0);
      const float* x_scale[2] = {reinterpret_cast<const float*>(scales[0] + at),
                                 reinterpret_cast<const float*>(scales[1] + at)};
      if constexpr (kPieces<F> > 1)
        meet_pieces<F>(block[0], block[1], walk.steps - step, super + walk.chain * kRun, x_scale, chain);
      else
        meet_block<F>(block[0], block[1], super, x_scale, chain);
      __syncwarp();
      if (!count) break;
      walk.ask<F>(ring + slot * kSlot<F>);
      slot = slot + 1 == stages ? 0 : slot + 1;
    }
    float* sums = chains_of_warps(round);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (2 * t + i % 2 < count)
        sums[warp * 8 * kJoinedStride + (2 * t + i % 2) * kJoinedStride + g + i / 2 * 8] = chain[i];
    __syncthreads();
    join_chains(walk, sums, base, count, y, y_stride, target);
    if (!count) return;
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
