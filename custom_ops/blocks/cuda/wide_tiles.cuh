// Tiles of more activation rows, which share weights that are unpacked once: a warp has all chains of its weight rows,
// one after the other in the order in which their tree joins them. Both come through shared memory, a step ahead.
#pragma once

#include "wide_parts.cuh"

namespace trigraph::TRIGRAPH_ISA {

// The chains of a weight row in that order: c0, c4, c2, c6, c1, c5, c3, c7, or as many of them as there are. The steps
// of a chain are `chains` apart.
struct ChainOrder {
  int steps, chains;

  __device__ int first(int number) const {
    const unsigned eighth = 0x73516240u >> (4 * number & 31) & 7;
    return static_cast<int>(eighth * static_cast<unsigned>(chains) / kChains);
  }
  // The step after one of the chain that comes as `number`, or `steps`.
  __device__ int after(int step, int number) const {
    step += chains;
    while (step >= steps && ++number < chains) step = first(number);  // chains may be empty
    return min(step, steps);
  }
};

// A tile of a block, which has another one before it and behind it.
template <int kRows>
struct TileInTurn : ManyTile<kRows> {
  int asked;     // rows of whole eights
  bool follows;  // has the type of the one before
  int stage;     // that its first step comes to
  int behind;    // where the block has the next one
  int next;      // its number
  ManyTask task;
};
using WideTile = TileInTurn<kWideRows>;

// Asks for the weights of a step, by kThreads threads. A thread copies of a row each second piece of 16 bytes.
template <class F, int kThreads = kTileThreads, int kRows>
__device__ __forceinline__ void ask_weights(const TileInTurn<kRows>& tile, uint8_t* weights, int step,
                                            int thread = own_thread()) {
  const int half = thread % 2;
#pragma unroll
  for (int i = 0; i < kWideColumns; i += kThreads / 2) {
    const int row = i + thread / 2;
    const uint8_t* from = tile.w + (row_at(tile.task, tile, row) + step * F::kBytes);
    uint8_t* to = weights + row * kTileStride<F> + 16 * half;
    if constexpr (F::kBytes % 16 == 0) {
#pragma unroll
      for (int at = 0; at < F::kBytes; at += 32)
        copy_ahead_if(at + 32 <= F::kBytes || half == 0, to + at, from + 16 * half + at);
    } else {
      from += 16 * half - static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
      const int left = static_cast<int>(min(int64_t{kTileStride<F>}, tile.end - from));  // nothing behind it is read
#pragma unroll
      for (int at = 0; at < F::kBytes; at += 32) copy_ahead(to + at, from + at, max(0, min(16, left - at)));
    }
  }
}

// Asks for a step: its weights, and of a row of activations, in as many eights as there are, each eighth piece; kSums:
// and of sums a word.
template <class F, int kThreads = kTileThreads, bool kSums = F::kMin, int kRows>
__device__ __forceinline__ void ask_step(const TileInTurn<kRows>& tile, WideActivations<kRows>& rows, uint8_t* weights,
                                         int step, int thread = own_thread()) {
  ask_weights<F, kThreads>(tile, weights, step, thread);
  const int e = thread % 8;
#pragma unroll
  for (int i = 0; i < kRows; i += kThreads / 8) {
    const int row = i + thread / 8;
    const bool wanted = row < tile.asked;
    const char* codes = tile.x[row] + (step * Int8Row::kStride + e * 16);
#pragma unroll
    for (int piece = 0; piece < kSuper / 16; piece += 8)
      copy_ahead_if(wanted, rows.row[row] + (piece + e) * 16, codes + piece * 16);
    if constexpr (kSums) copy_ahead_if<4>(wanted, rows.row[row] + kSuper + e * 4, codes + (kSuper - e * 12));
    copy_ahead_if<4>(wanted && e == 0, rows.factor + row, codes + Int8Row::kScales);
  }
}

// Two sums of 16 codes as halves.
__device__ __forceinline__ uint32_t sums_as_halves(uint32_t two) {
  return as_halves(static_cast<int16_t>(two), static_cast<int16_t>(two >> 16));
}

// Makes halves of the sums of the first kRows rows that this thread has asked for, when they are there. `sums`: of the
// first one; those of the next one lie kStride bytes further on.
template <int kRows, int kStride>
__device__ __forceinline__ void make_halves(char* sums) {
  constexpr int kAtOnce = kTileThreads / 8;
  const int thread = own_thread();
#pragma unroll
  for (int i = 0; i < kRows; i += kAtOnce) {
    const int row = i + thread / 8;
    auto* two = reinterpret_cast<uint32_t*>(sums + row * kStride) + thread % 8;
    if (kRows % kAtOnce == 0 || row < kRows) *two = sums_as_halves(*two);
  }
}

// Visits a thread's sums that are there with where they go: visit(sum, y).
template <int kRows, int kEights, class Visit>
__device__ __forceinline__ void with_outputs(const ManyTask& task, const ManyTile<kRows>& tile, WideSums<kEights>& sums,
                                             const Visit& visit) {
  const int thread = own_thread(), first = thread % 4 * 2, column = thread / kWarp * kTileColumns + thread % kWarp / 4;
  const int rows = tile.rows, columns = tile.columns, of_row = static_cast<int>(task.rows);
  float* y = tile.y + (first * of_row + column);
#pragma unroll
  for (int n = 0; n < kEights; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * n + i;
      if (row >= rows - first) return;
      if (0 < columns - column) visit(sums.sum[n][i], y + row * of_row);
      if (8 < columns - column) visit(sums.sum[n][2 + i], y + (row * of_row + 8));
    }
}

// Joins the chain that comes as `number` with those that wait for it, or lets it wait: the sum of the first four where
// the product will be.
template <int kRows, int kEights, class Memory>
__device__ __forceinline__ void join(int number, const ManyTask& task, const ManyTile<kRows>& tile,
                                     WideSums<kEights>& chain, WideSums<kEights>& one, Memory& memory) {
  constexpr bool kStored = Memory::kWaiting > 1;
  const int thread = own_thread();
  if (!(number & 1)) {
    if constexpr (kStored)
      chain.write(memory.waiting[1], thread);
    else
      one = chain;
    return;
  }
  if constexpr (kStored)
    chain.add(memory.waiting[1], thread);
  else
    chain.add(one);
  if (!(number & 2)) {
    chain.write(memory.waiting[0], thread);
    return;
  }
  chain.add(memory.waiting[0], thread);
  if (number & 4)
    with_outputs(task, tile, chain, [](float& sum, float* y) { sum += *y; });
  else
    with_outputs(task, tile, chain, [](float& sum, float* y) { *y = sum; });
}

template <class F, int kEights>
__device__ __forceinline__ void meet_eights(const WideTile& tile, const WideTile& behind, int64_t width, char* memory) {
  const ManyTask& task = tile.task;
  auto& own = *reinterpret_cast<WideMemory<F>*>(memory);
  const ChainOrder order{static_cast<int>(width / kSuper), task.chains};
  WideSums<kEights> chain, one;
  chain.clear(), one.clear();  // else they would be kept from one tile to the next
  int at = tile.stage;
  if (!tile.follows) {
    __syncthreads();  // others may still have the tile before
    ask_step<F>(tile, own.stage[at].x, own.stage[at].weights, 0);
    end_copies();
  }
#pragma unroll 1
  for (int number = 0; number < order.chains; ++number) {
    chain.clear();
#pragma unroll 1
    for (int step = order.first(number); step < order.steps; step += order.chains, at ^= 1) {
      await_copies(0);
      if constexpr (F::kMin)
        make_halves<8 * kEights, WideActivations<kWideRows>::kStride>(own.stage[at].x.row[0] + kSuper);
      __syncthreads();
      const int next = order.after(step, number);
      const bool last = next == order.steps;
      if (!last || behind.follows)
        ask_step<F>(last ? behind : tile, own.stage[at ^ 1].x, own.stage[at ^ 1].weights, last ? 0 : next);
      end_copies();
      chain.add_step(own.stage[at], task, tile, step);
    }
    join(number, task, tile, chain, one, own);
  }
  with_outputs(task, tile, chain, [](float& sum, float* y) { *y = sum + 0.0f; });
}

template <class F>
__device__ __forceinline__ void meet_wide(const WideTile& tile, const WideTile& behind, int64_t width, char* memory) {
  static_assert(kWideEights == 4);
  if (tile.rows > 24)
    meet_eights<F, 4>(tile, behind, width, memory);
  else if (tile.rows > 16)
    meet_eights<F, 3>(tile, behind, width, memory);
  else if (tile.rows > 8)
    meet_eights<F, 2>(tile, behind, width, memory);
  else
    meet_eights<F, 1>(tile, behind, width, memory);
}

}  // namespace trigraph::TRIGRAPH_ISA
