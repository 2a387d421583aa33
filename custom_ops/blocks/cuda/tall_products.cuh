// Products of many rows with super-blocks in tiles of 64 rows: a variant of wide_products.cuh with fewer instructions
// for a row and fewer warps. Four warps find a block's tiles and ask for their steps, as far ahead as there is room;
// eight compute. No barrier of the block is between them: a step is there when what was asked for has come, and its
// place is free when all warps have met it.
#pragma once

#include "../../cuda/mbarrier.cuh"
#include "tall_parts.cuh"
#include "wide_products.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kTallStages = 3;
// One asking warp for each scheduler, so that none has more to do than another. Registers are given out for multiples
// of four warps: nine would take as many as twelve.
constexpr int kAskingThreads = 128, kTallThreads = kTileThreads + kAskingThreads;
// Ahead of the tile whose last step is being joined there are at most as many as there are stages, and the next one.
constexpr int kTallTiles = kTallStages + 2;

template <class... F>
struct TallStage {
  TallActivations x;
  alignas(16) uint8_t weights[kWideColumns * std::max({kTileStride<F>...})];
};
template <class... F>
struct TallMemory {
  TallStage<F...> stage[kTallStages];
  float4 waiting[2][kTallEights][kTileThreads];  // a thread's chains: two for two more, and one for one
};

// What all warps of a block share.
struct TallBlock {
  Mbarrier there[kTallStages], free[kTallStages], found;
  TileInTurn<kTallRows> tile[kTallTiles];  // one of no rows is the end
};

// A stage, of which one is used after the other.
struct TallPlace {
  int stage = 0;
  unsigned parity = 0;  // of its phases
  __device__ __forceinline__ void advance() {
    if (++stage == kTallStages) stage = 0, parity ^= 1;
  }
};

// The asking warps' part: steps of one tile after the other, as places become free.
template <class... F>
__device__ __forceinline__ void ask_tiles(const TilesInTurn<kTallRows>& work, TallBlock& block, TallMemory<F...>& memory) {
  const int thread = own_thread() - kTileThreads;
  int number = static_cast<int>(blockIdx.x);
  TallPlace place;
  unsigned parity = 0;
#pragma unroll 1
  for (int at = 0;; at = at + 1 == kTallTiles ? 0 : at + 1, parity ^= 1) {
    TileInTurn<kTallRows>& tile = block.tile[at];
    if (thread < kWarp) {
      int next = 0;
      if (thread == 0) next = work.take(number);
      work.find(number, block.tile[at ? at - 1 : kTallTiles - 1], tile);
      __syncwarp();
      if (thread == 0) block.found.arrive();
      number = __shfl_sync(kAllLanes, next, 0);
    }
    block.found.await(parity);
    const bool end = tile.rows == 0;
    const ChainOrder order{static_cast<int>(work.tasks.width / kSuper), tile.task.chains};
    int step = 0, chain = 0;
#pragma unroll 1
    do {
      TallStage<F...>& stage = memory.stage[place.stage];
      block.free[place.stage].await(place.parity ^ 1);  // that of the first turn is over before it begins
      if (!end)
        with_type(tile.task.type, Types<F...>(), [&](auto type) {
          ask_step<decltype(type), kAskingThreads>(tile, stage.x, stage.weights, step, thread);
        });
      block.there[place.stage].arrive_with_copies();
      if (thread == 0) block.there[place.stage].arrive();  // orders what its warp has found
      place.advance();
    } while (!end && (step = order.after(step, chain)) < order.steps);
    if (end) break;
  }
  await_copies(0);  // no thread ends before its copies
}

// What a computing warp does with a tile.
template <class F, class Memory>
__device__ __forceinline__ void meet_tall(const TileInTurn<kTallRows>& tile, int64_t width, TallBlock& block,
                                          Memory& memory, TallPlace& place) {
  const ChainOrder order{static_cast<int>(width / kSuper), tile.task.chains};
  TallSums chain;
#pragma unroll 1
  for (int number = 0; number < order.chains; ++number) {
    chain.clear();
#pragma unroll 1
    for (int step = order.first(number); step < order.steps; step += order.chains, place.advance()) {
      block.there[place.stage].await(place.parity);
      const auto& stage = memory.stage[place.stage];
      add_step<F>(stage.x, stage.weights, tile.asked / 8, tile.task, tile, step, chain.sum);
      __syncwarp();
      if (own_thread() % kWarp == 0) block.free[place.stage].arrive();
    }
    end_chain(number, tile, chain, memory.waiting);
  }
}

template <class... F>
__global__ void __launch_bounds__(kTallThreads, 1)
    tall_tiles(const __grid_constant__ ManyTasks tasks, const __grid_constant__ Buckets buckets, int count,
               int64_t x_bytes) {
  __shared__ TallBlock block;
  __shared__ int parts;
  auto& memory = *reinterpret_cast<TallMemory<F...>*>(shared_memory());
  if (threadIdx.x == 0) {
    parts = buckets.used ? *buckets.used : (count + kTallRows - 1) / kTallRows;
    for (int i = 0; i < kTallStages; ++i)
      block.there[i].begin(kAskingThreads + 1), block.free[i].begin(kTileWarps);
    block.found.begin(1);
    block.tile[kTallTiles - 1].rows = block.tile[kTallTiles - 1].stage = 0;
  }
  __syncthreads();
  const TilesInTurn<kTallRows> work{tasks, buckets, x_bytes, count, parts};
  if (own_thread() >= kTileThreads) return ask_tiles<F...>(work, block, memory);
  TallPlace place;
#pragma unroll 1
  for (int at = 0;; at = at + 1 == kTallTiles ? 0 : at + 1) {
    block.there[place.stage].await(place.parity);  // a tile is known when its first step is there
    const TileInTurn<kTallRows>& tile = block.tile[at];
    if (!tile.rows) return;
    with_type(tile.task.type, Types<F...>(),
              [&](auto type) { meet_tall<decltype(type)>(tile, tasks.width, block, memory, place); });
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
