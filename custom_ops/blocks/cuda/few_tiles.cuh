// Products of weight rows with up to eight activation rows by tensor cores, which form the exact integers of runs:
// eight rows cost what one costs. A warp meets 16 weight rows at a time, with the blocks of one chain; the warps of a
// thread block then join their chains. Blocks come through shared memory, some ahead of those that are met.
#pragma once

#include "few_products.h"
#include "single_row.cuh"

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

// Bytes from those 16 on to a block's end, at most. In all places of a block they are as many pieces of 16.
template <class F>
constexpr int kReach = F::kBytes + (F::kBytes % 16 ? 14 : 0);

// Asks for the blocks of a weight row that a warp meets at once, of which the lane takes every fourth 16 bytes, those
// `first` bytes from p on, `left` blocks at most, to the row's place in a stage. Nothing behind `end` is read.
template <class F>
__device__ __forceinline__ void ask_row(const uint8_t* p, int first, int left, const uint8_t* end, char* row) {
  static_assert((kReach<F> - 1) / 16 == (F::kBytes - 1) / 16);
  const uint8_t* from = p - shift_of<F>(low_word(p)) + first;
  char* to = row + first;
#pragma unroll
  for (int i = 0; i < kPieces<F>; ++i, from += kSuper / F::kBlock * F::kBytes, to += kPieceStride<F>) {
#pragma unroll
    for (int at = 0; at < kPieceStride<F>; at += 64) {
      const bool whole = at + 64 <= F::kBytes, inside = whole || F::kBytes % 16 == 0;
      if ((whole || at + first < kReach<F>) && (kPieces<F> == 1 || i < left))
        copy_ahead(to + at, from + at, inside ? 16 : static_cast<int>(min(int64_t{16}, end - from - at)));
    }
  }
}

// A warp's way through its part of a weight: tile after tile, in each the blocks of its chain.
struct TileWalk {
  const uint8_t* data;
  int64_t row_bytes;
  int rows, first, end, at_once;  // of the weight; of the thread block
  int steps, chains;
  int row, step;  // what is asked for next: a tile's first row, a super-block

  // `first`: the thread block's first row.
  __device__ TileWalk(const FewTask& task, const uint8_t* data, int64_t width, int first)
      : data(data), row_bytes(task.row_bytes), rows(static_cast<int>(task.rows)), first(first), at_once(task.at_once) {
    end = min(first + at_once * task.rounds, rows);
    steps = static_cast<int>(width / kSuper), chains = max(1, kFewWarps * kTile / at_once);
    row = first + own_row(), step = -1;
  }
  __device__ int chain() const { return static_cast<int>(threadIdx.x) / kWarp & (chains - 1); }
  // The warp's first row among those of a round.
  __device__ int own_row() const { return static_cast<int>(threadIdx.x) / kWarp * at_once / kFewWarps & -kTile; }
  // The warp's super-blocks: the first one, and from each to the next.
  template <class F>
  __device__ int begin() const {
    return kPieces<F> > 1 ? 0 : chain();
  }
  template <class F>
  __device__ int stride() const {
    return kPieces<F> > 1 ? kPieces<F> : chains;
  }
  template <class F>
  __device__ const uint8_t* block(int row, int step) const {
    const int blocks = kPieces<F> > 1 ? step * (kSuper / F::kBlock) + chain() : step;
    return data + min(row, rows - 1) * row_bytes + blocks * F::kBytes;
  }
  // Bytes from a super-block of the warp to the next.
  template <class F>
  __device__ int apart() const {
    return stride<F>() * (kSuper / F::kBlock * F::kBytes);
  }
};

// What a lane asks for of its warp's walk: blocks of rows g and g + 8 of a tile.
template <class F>
struct TileRequests {
  const uint8_t* from;
  int lower;  // bytes from there to the block of row g + 8

  __device__ explicit TileRequests(const TileWalk& walk) { place(walk); }
  __device__ void place(const TileWalk& walk) {
    const int row = walk.row + static_cast<int>(threadIdx.x) % kWarp / 4;
    from = walk.block<F>(row, walk.step);
    lower = static_cast<int>(walk.block<F>(row + 8, walk.step) - from);
  }
  // Asks for the next blocks, if there are some.
  __device__ __forceinline__ void ask(TileWalk& walk, const TileLane<F>& lane, char* slot) {
    char* row = slot + lane.block;
    if (walk.row < walk.end && walk.step < walk.steps) {
      const uint8_t* end = walk.data + walk.rows * walk.row_bytes;
      ask_row<F>(from, lane.piece, walk.steps - walk.step, end, row);
      ask_row<F>(from + lower, lane.piece, walk.steps - walk.step, end, row + 8 * kTileStride<F>);
      from += walk.apart<F>(), walk.step += walk.stride<F>();
      if (walk.step >= walk.steps) {
        walk.step = walk.begin<F>(), walk.row += walk.at_once;
        place(walk);
      }
    }
    end_copies();
  }
};

// A tile's sums of each warp, two tiles in turns.
__device__ __forceinline__ float* chains_of_warps(int round) {
  __shared__ float sums[2][kFewWarps][8 * kJoinedStride];
  return sums[round][0];
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
// Until the one that was asked for first has come.
__device__ __forceinline__ void await_stage(int stages) {
  if (stages > 2)
    await_copies(2);
  else if (stages > 1)
    await_copies(1);
  else
    await_copies(0);
}
template <class F>
__device__ __forceinline__ void begin_tiles(TileWalk& walk, char* rings, int ring_bytes) {
  char* ring = rings + threadIdx.x / kWarp * ring_bytes;
  walk.step = walk.begin<F>();
  TileRequests<F> requests(walk);
  const TileLane<F> lane;
  for (int s = 0; s < stages_of<F>(ring_bytes); ++s) requests.ask(walk, lane, ring + s * kSlot<F>);
}

// The thread block's rows of a weight with `count` rows of x, at most eight, or one (kAlone), after begin_tiles. The
// whole block calls. Without rows, it goes through its first blocks and through the code once, and nothing comes of it.
template <class F, bool kAlone>
__device__ __forceinline__ void meet_tiles(TileWalk& walk, char* rings, int ring_bytes, const char* x, int64_t x_bytes,
                                           int count, float* y, int64_t y_stride, const int* target) {
  const int number = threadIdx.x % kWarp, g = number / 4, t = number % 4, warp = threadIdx.x / kWarp;
  const int stages = stages_of<F>(ring_bytes);
  const TileLane<F> lane;
  char* ring = rings + kept(warp * ring_bytes);
  TileRequests<F> requests(walk);
  const int last = max(count, 1) - 1;
  const char *matrices = x + min(number % 8, last) * x_bytes + number / 8 * 16, *codes = x + min(g, last) * x_bytes;
  const OwnColumns columns(x);
  const char* scales[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) scales[i] = x + min(2 * t + i, last) * x_bytes + Int8Row::kScales;
  for (int base = walk.first, round = 0, slot = 0; base < walk.end; base += walk.at_once, round ^= 1) {
    const int row = base + walk.own_row();
    float chain[4] = {};
    unsigned at[2];  // where blocks of the lane's rows begin
#pragma unroll
    for (int half = 0; half < 2; ++half) at[half] = low_word(walk.block<F>(row + g + 8 * half, walk.begin<F>()));
    for (int step = walk.begin<F>(); row < walk.end && step < walk.steps; step += walk.stride<F>()) {
      await_stage(stages);
      __syncwarp();
      const TilePlace place = lane.place(ring + slot, at[0], at[1]);
#pragma unroll
      for (unsigned& address : at) address += walk.apart<F>();
      const int super = step * Int8Row::kStride, scale = super + (kPieces<F> > 1 ? walk.chain() * 4 : 0);
      const float* x_scale[2] = {reinterpret_cast<const float*>(scales[0] + scale),
                                 reinterpret_cast<const float*>(scales[1] + scale)};
      if constexpr (kPieces<F> > 1)
        meet_pieces<F, kAlone>(lane, place, walk.steps - step, codes + super + walk.chain() * kRun, x_scale, chain);
      else if constexpr (kAlone)
        meet_single<F>(lane, place, columns, super, chain[0]);
      else
        meet_eight<F>(lane, place, matrices + super, x_scale, chain);
      __syncwarp();
      if (!count) break;
      requests.ask(walk, lane, ring + slot);
      slot = slot + kSlot<F> == stages * kSlot<F> ? 0 : slot + kSlot<F>;
    }
    float* sums = chains_of_warps(round);
    if constexpr (kAlone) {
      if (t < 2) sums[warp * 8 * kJoinedStride + g + 8 * t] = chain[0];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (2 * t + i % 2 < count)
          sums[warp * 8 * kJoinedStride + (2 * t + i % 2) * kJoinedStride + g + i / 2 * 8] = chain[i];
    }
    __syncthreads();
    join_chains(walk, sums, base, count, y, y_stride, target);
    if (!count) return;
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
