// How a block of few_experts.cu meets its tiles: what it does of the step, and each warp's way through the weights.
#pragma once

#include "../blocks/cuda/few_products.cuh"
#include "few_experts.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kSharedTiles = 2;  // of a block
constexpr int kMostSums = 128;   // chains of a block's tiles

// What a block does: tiles of 16 weight rows, each with a row of activations.
//   a maker     gate and up of one slot in turns, with the token's row
//   of shared   the shared expert's output, likewise
//   a taker     the slots of a tile of columns, and then those of the next, with the slots' hidden rows
struct Work {
  enum Kind { kMaker, kShared, kTaker };
  Kind kind;
  int number;  // of the block, in the order in which blocks begin
  int token, slot, first, tiles, slots, steps;

  // Blocks that make rows come first, so that none waits for one that has not begun.
  __device__ void decide(const FewExperts& all, int begun) {
    const int making = all.makers * all.tokens, k = all.k;
    const bool taker = begun >= making;
    const int at = taker ? begun - making : begun, of_token = taker ? all.takers : all.makers, part = at % of_token;
    const int own = part - all.sharing;  // among those that make hidden rows
    number = begun, token = at / of_token, slot = 0, slots = 1;
    steps = all.ffn / kSuper;
    if (taker)
      kind = kTaker, first = part * all.taken, tiles = all.taken * k, slots = k;
    else if (own < 0)
      kind = kShared, first = part * kSharedTiles, tiles = kSharedTiles;
    else
      kind = kMaker, slot = own / all.parts, first = own % all.parts * all.made, tiles = 2 * all.made,
      steps = all.width / kSuper;
  }
  __device__ const ExpertTask& task(const FewExperts& all) const {
    return kind == kMaker ? all.gate : kind == kShared ? all.shared : all.down;
  }
};

// A tile's first row, the end of its matrix, and which of the block's rows of activations it meets.
struct ExpertTile {
  const uint8_t *row, *end;
  int x;
};

// What a block knows of the step.
struct TileStep {
  int64_t ids[FewExperts::kMost];
  float weights[FewExperts::kMost];
  ExpertTile tile[kMostSums];
  Work work;
};

// What the block is to do; false when an id is bad. The whole block calls.
__device__ __forceinline__ bool begin_step(const FewExperts& all, TileStep& step) {
  const int i = threadIdx.x;
  bool bad = false;
  if (i == kFewThreads - 1) step.work.decide(all, static_cast<int>(atomicInc(all.counters, gridDim.x - 1)));
  if (!all.ids) {
    __syncthreads();
    const int token = step.work.token, first = token * all.k;
    if (i < kWarp && step.work.kind != Work::kShared) all.routing.choose(token, step.ids + first, step.weights + first);
    __syncthreads();
    return true;
  }
  if (i < all.tokens * all.k) {
    step.ids[i] = all.ids[i], step.weights[i] = all.sum.weights[i];
    bad = step.ids[i] < 0 || step.ids[i] >= all.experts;
  }
  if (!__syncthreads_or(bad)) return true;
  if (i || step.work.number) return false;
  int first = 0;
  while (step.ids[first] >= 0 && step.ids[first] < all.experts) ++first;
  report(all.record, Operator::grouped_expert_ffn, Reason::expert_id, step.ids[first], all.first_token + first / all.k,
         first % all.k, all.experts);
  return false;
}

// Where the block's tiles begin. The whole block calls.
__device__ __forceinline__ void find_tiles(const FewExperts& all, TileStep& step) {
  const Work& work = step.work;
  if (const int i = threadIdx.x; i < work.tiles) {
    const ExpertTask* task = &work.task(all);
    const bool maker = work.kind == Work::kMaker;
    const int x = maker ? 0 : i % work.slots, row = work.first + i / (maker ? 2 : work.slots);
    if (maker && i % 2) task = &all.up;
    const int64_t id = work.kind == Work::kShared ? 0 : step.ids[work.token * all.k + work.slot * maker + x];
    const uint8_t* matrix = task->data + id * task->stride;
    step.tile[i] = {matrix + row * kTile * task->row_bytes, matrix + (maker ? all.ffn : all.width) * task->row_bytes,
                    x};
  }
  __syncthreads();
}

// A warp's way through its block's tiles, and in each through the super-blocks of its chain.
struct ExpertWalk {
  const ExpertTile* tiles;
  int lane_row, eight_rows;  // bytes
  int count, steps, chains, chain, groups;
  int tile, step;       // what is asked for next
  const uint8_t* from;  // the lane's block of it, of the upper eight rows

  __device__ ExpertWalk(const TileStep& of, const ExpertTask& task)
      : tiles(of.tile),
        lane_row(threadIdx.x % kWarp / 4 * static_cast<int>(task.row_bytes)),
        eight_rows(8 * static_cast<int>(task.row_bytes)),
        count(of.work.tiles),
        steps(of.work.steps),
        chains(task.chains) {
    const int warp = threadIdx.x / kWarp;  // chains: a power of two
    groups = kFewWarps / chains, chain = warp & (chains - 1), tile = warp / chains;
  }
  template <class F>
  __device__ __forceinline__ int begin() const {
    return kPieces<F> > 1 ? 0 : chain;
  }
  template <class F>
  __device__ __forceinline__ int stride() const {
    return kPieces<F> > 1 ? kPieces<F> : chains;
  }
  // Bytes from a super-block of the warp to the next.
  template <class F>
  __device__ __forceinline__ int apart() const {
    return stride<F>() * (kSuper / F::kBlock * F::kBytes);
  }
  // The lane's first block of a tile's upper eight rows.
  template <class F>
  __device__ __forceinline__ const uint8_t* block(int tile) const {
    return tiles[tile].row + lane_row + chain * F::kBytes;
  }
  template <class F>
  __device__ __forceinline__ void begin_tile() {
    step = begin<F>();
    if (tile < count) from = block<F>(tile);
  }
  template <class F>
  __device__ __forceinline__ void ask(const TileLane<F>& lane, char* stage) {
    if (tile < count && step < steps) {
      const uint8_t* end = tiles[tile].end;
      char* to = stage + lane.block;
      ask_row<F>(from, lane.piece, steps - step, end, to);
      ask_row<F>(from + eight_rows, lane.piece, steps - step, end, to + 8 * kTileStride<F>);
      step += stride<F>(), from += apart<F>();
      if (step >= steps) tile += groups, begin_tile<F>();
    }
    end_copies();
  }
};

// Meets all tiles of the warp, after it has asked for the first of them; each one's 16 sums to those of its chains.
template <class F>
__device__ __forceinline__ void meet(ExpertWalk& walk, char* ring, int stages, const char* x, int64_t x_bytes,
                                     float* sums) {
  const TileLane<F> lane;
  int stage = 0;
  for (int tile = threadIdx.x / kWarp / walk.chains; tile < walk.count; tile += walk.groups) {
    float chain = 0;
    const char* codes = x + walk.tiles[tile].x * x_bytes;
    const OwnColumns columns(codes);
    unsigned at = low_word(walk.block<F>(tile));
    for (int step = walk.begin<F>(); step < walk.steps; step += walk.stride<F>()) {
      await_stage(stages);
      __syncwarp();
      const TilePlace place = lane.place(ring + stage, at, at + walk.eight_rows);
      const int super = step * Int8Row::kStride;
      at += walk.apart<F>();
      if constexpr (kPieces<F> > 1) {
        const auto* scale = reinterpret_cast<const float*>(codes + super + Int8Row::kScales) + walk.chain;
        meet_pieces<F, true>(lane, place, walk.steps - step, codes + super + walk.chain * kRun, &scale, &chain);
      } else {
        meet_single<F>(lane, place, columns, super, chain);
      }
      __syncwarp();
      walk.ask<F>(lane, ring + stage);
      stage = stage + kSlot<F> == stages * kSlot<F> ? 0 : stage + kSlot<F>;
    }
    if (lane.t < 2) sums[(tile * walk.chains + walk.chain) * kTile + threadIdx.x % kWarp / 4 + 8 * lane.t] = chain;
  }
}

// The sum of a tile's chains for one of its rows.
__device__ __forceinline__ float join(const float* sums, int chains, int tile, int row) {
  float chain[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) chain[c] = c < chains ? sums[(tile * chains + c) * kTile + row] : 0.0f;
#pragma unroll
  for (int half = kChains / 2; half; half /= 2)
#pragma unroll
    for (int c = 0; c < half; ++c) chain[c] += chain[c + half];
  return chain[0] + 0.0f;
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
