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
// The types that such tiles have.
template <class F>
constexpr bool kTall = kWhole<F> && !kPlain<F>;
// One asking warp for each scheduler, so that none has more to do than another. Registers are given out for multiples
// of four warps: nine would take as many as twelve.
constexpr int kAskingThreads = 128, kTallThreads = kTileThreads + kAskingThreads;
// Ahead of the tile whose last step is being joined there are at most as many as there are stages, and the next one.
constexpr int kTallTiles = kTallStages + 2;

template <class... F>
struct TallStage {
  TallActivations x;
  alignas(16) uint8_t weights[kWideColumns * std::max({kTall<F> ? kTileStride<F> : 0 ...})];
};
template <class... F>
struct TallMemory {
  TallStage<F...> stage[kTallStages];
  float4 waiting[2][kTallEights][kTileThreads];  // a thread's chains: two for two more, and one for one
};

// What all warps of a block share. `found` is one for each tile: a warp that asks may be some tiles ahead of another.
struct TallBlock {
  Mbarrier there[kTallStages], free[kTallStages], found[kTallTiles];
  TileInTurn<kTallRows> tile[kTallTiles];  // one of no rows is the end
};

// One of so many places, which are used in turn.
template <int kPlaces>
struct TallPlace {
  int at = 0;
  unsigned parity = 0;  // of the phases of its barriers
  __device__ __forceinline__ void advance() {
    if (++at == kPlaces) at = 0, parity ^= 1;
  }
};

// Sums of 16 of a step as an asking thread makes halves of them. They come through its registers while it waits for
// room: of copies it would have to wait until they are there.
struct TallHalves {
  static constexpr int kRowsAtOnce = kAskingThreads / 8;
  uint32_t two[kTallRows / kRowsAtOnce];

  __device__ __forceinline__ void read(const TileInTurn<kTallRows>& tile, int step, int thread) {
    const int at = step * Int8Row::kStride + kSuper + thread % 8 * 4;
#pragma unroll
    for (int i = 0; i < kTallRows; i += kRowsAtOnce)
      two[i / kRowsAtOnce] = *reinterpret_cast<const uint32_t*>(tile.x[i + thread / 8] + at);
  }
  __device__ __forceinline__ void write(TallActivations& x, int thread) const {
    char* to = x.row[thread / 8] + kSuper + thread % 8 * 4;
#pragma unroll
    for (int i = 0; i < kTallRows; i += kRowsAtOnce)
      *reinterpret_cast<uint32_t*>(to + i * x.kStride) = sums_as_halves(two[i / kRowsAtOnce]);
  }
};

// The asking warps' part: steps of one tile after the other, as places become free.
template <class... F>
__device__ __forceinline__ void ask_tiles(const TilesInTurn<kTallRows>& work, TallBlock& block,
                                          TallMemory<F...>& memory) {
  const int thread = own_thread() - kTileThreads;
  int number = static_cast<int>(blockIdx.x);
  TallPlace<kTallStages> place;
#pragma unroll 1
  for (TallPlace<kTallTiles> turn;; turn.advance()) {
    TileInTurn<kTallRows>& tile = block.tile[turn.at];
    if (thread < kWarp) {
      int next = 0;
      if (thread == 0) next = work.take(number);
      work.find(number, block.tile[turn.at ? turn.at - 1 : kTallTiles - 1], tile);
      __syncwarp();
      if (thread == 0) block.found[turn.at].arrive();
      number = __shfl_sync(kAllLanes, next, 0);
    }
    block.found[turn.at].await(turn.parity);
    const auto fill = [&](const auto& ask) {
      block.free[place.at].await(place.parity ^ 1);  // that of the first turn is over before it begins
      ask(memory.stage[place.at]);
      block.there[place.at].arrive_with_copies();
      __syncwarp();
      if (thread % kWarp == 0) block.there[place.at].arrive();  // orders what its warp has found and written
      place.advance();
    };
    if (!tile.rows) {
      fill([](TallStage<F...>&) {});
      break;
    }
    const ChainOrder order{static_cast<int>(work.tasks.width / kSuper), tile.task.chains};
    with_type(tile.task.type, Types<F...>(), [&](auto type) {
      using Own = decltype(type);
      if constexpr (kTall<Own>) {
#pragma unroll 1
        for (int chain = 0; chain < order.chains; ++chain)
#pragma unroll 1
          for (int step = order.first(chain); step < order.steps; step += order.chains) {
            TallHalves sums;
            if constexpr (Own::kMin) sums.read(tile, step, thread);
            fill([&](TallStage<F...>& stage) {
              ask_step<Own, kAskingThreads, false>(tile, stage.x, stage.weights, step, thread);
              if constexpr (Own::kMin) sums.write(stage.x, thread);
            });
          }
      }
    });
  }
  end_copies(), await_copies(0);  // no thread ends before its copies
}

// What a computing warp does with a tile.
template <class F, class Memory>
__device__ __forceinline__ void meet_tall(const TileInTurn<kTallRows>& tile, int64_t width, TallBlock& block,
                                          Memory& memory, TallPlace<kTallStages>& place) {
  const ChainOrder order{static_cast<int>(width / kSuper), tile.task.chains};
  TallSums chain;
#pragma unroll 1
  for (int number = 0; number < order.chains; ++number) {
    chain.clear();
#pragma unroll 1
    for (int step = order.first(number); step < order.steps; step += order.chains, place.advance()) {
      block.there[place.at].await(place.parity);
      const auto& stage = memory.stage[place.at];
      add_step<F>(stage.x, stage.weights, tile.asked / 8, tile.task, tile, step, chain.sum);
      __syncwarp();
      if (own_thread() % kWarp == 0) block.free[place.at].arrive();
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
      block.there[i].begin(kAskingThreads + kAskingThreads / kWarp), block.free[i].begin(kTileWarps);
    for (int i = 0; i < kTallTiles; ++i) block.found[i].begin(1);
    block.tile[kTallTiles - 1].rows = block.tile[kTallTiles - 1].stage = 0;
  }
  __syncthreads();
  const TilesInTurn<kTallRows> work{tasks, buckets, x_bytes, count, parts};
  if (own_thread() >= kTileThreads) return ask_tiles<F...>(work, block, memory);
  TallPlace<kTallStages> place;
#pragma unroll 1
  for (TallPlace<kTallTiles> turn;; turn.advance()) {
    block.there[place.at].await(place.parity);  // a tile is known when its first step is there
    const TileInTurn<kTallRows>& tile = block.tile[turn.at];
    if (!tile.rows) return;
    with_type(tile.task.type, Types<F...>(), [&](auto type) {
      using Own = decltype(type);
      if constexpr (kTall<Own>) meet_tall<Own>(tile, tasks.width, block, memory, place);
    });
  }
}

// For tasks of such types alone, numbers among F.
template <class... F>
void launch_tall(const ManyTasks& tasks, const Buckets& buckets, int64_t max_buckets, int64_t rows, cudaStream_t stream,
                 Types<F...>) {
  const int64_t parts = buckets.used ? max_buckets : (rows + kTallRows - 1) / kTallRows;
  launch(tall_tiles<F...>, static_cast<unsigned>(std::min(tasks.blocks * parts, multiprocessors())), kTallThreads,
         sizeof(TallMemory<F...>), stream, tasks, buckets, rows, prepared_bytes(Layout::int8, tasks.width));
}

// Whether the device has room for such tiles, and the type of that number has them.
template <class... F>
bool can_be_tall(int type, Types<F...>) {
  constexpr bool tall[] = {kTall<F>...};
  return tall[type] && sizeof(TallMemory<F...>) + sizeof(TallBlock) + sizeof(int) <= most_shared_bytes();
}

}  // namespace trigraph::TRIGRAPH_ISA
