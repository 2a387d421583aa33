// Products of many rows for the types F, in blocks that stay: a block has one tile after the other, and asks for the
// first step of the next one while it computes the last step of its own.
#pragma once

#include "wide_plain.cuh"
#include "wide_q8.cuh"
#include "wide_tiles.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kResident = 2;      // blocks of a multiprocessor
constexpr int kPartsAtOnce = 32;  // of rows, for which weights come from memory once: the second-level cache has them

template <class F>
constexpr size_t wide_bytes() {
  if constexpr (kPlain<F>)
    return std::max(sizeof(PlainMemory), kPlainParts * sizeof(PlainSums));
  else if constexpr (kWhole<F>)
    return sizeof(WideMemory<F>);
  else
    return sizeof(Q8Memory);
}

// The tiles of a launch, by number. All of a bucket's rows come one after the other; without buckets, all rows of some
// parts that meet the same weights.
template <int kRows>
struct TilesInTurn {
  const ManyTasks& tasks;
  const Buckets& buckets;
  int64_t x_bytes;
  int count;         // of rows
  const int& parts;  // of rows, or buckets; in shared memory, as registers are for sums

  __device__ int tiles() const { return parts * tasks.blocks; }

  // The number of a tile for this block, which has had the one of `number`. A thread calls.
  __device__ int take(int number) const {
    const int blocks = static_cast<int>(gridDim.x), all = tiles();
    if (number >= all) return number;
    return buckets.taken ? blocks + static_cast<int>(atomicInc(buckets.taken, static_cast<unsigned>(all - 1)))
                         : number + blocks;
  }

  // Says what the tile of that number is, which comes after `before`. A warp calls.
  __device__ __forceinline__ void find(int number, const TileInTurn<kRows>& before, TileInTurn<kRows>& tile) const {
    const int lane = own_thread() % kWarp;
    if (number >= tiles()) {
      if (lane == 0) tile.rows = 0, tile.follows = false;
      return;
    }
    int block = number % tasks.blocks, part = number / tasks.blocks, base, end = count;
    if (buckets.used) {
      base = buckets.first[part], end = buckets.first[part + 1];
    } else {
      const int first = part / kPartsAtOnce * kPartsAtOnce, own = min(kPartsAtOnce, parts - first);
      const int in_parts = number - first * tasks.blocks;
      block = in_parts / own, part = first + in_parts % own;
      base = part * kRows;
    }
    int at = 0;
    while (at + 1 < tasks.count && tasks.task[at + 1].first_block <= block) ++at;
    const ManyTask& task = tasks.task[at];
#pragma unroll
    for (int row = lane; row < kRows; row += kWarp) {
      const int index = min(base + row, end - 1);
      const int64_t source = buckets.source ? buckets.source[index] : index;
      tile.x[row] = task.chains ? tasks.prepared + source * x_bytes + task.form_offset
                                : reinterpret_cast<const char*>(tasks.x + source * tasks.width);
    }
    if (lane) return;
    const int column = (block - task.first_block) * task.columns;
    const uint8_t* matrix = task.data + (buckets.used ? buckets.matrix[part] * task.stride : 0);
    tile.w = matrix + column * task.row_bytes;
    tile.end = matrix + task.rows * task.row_bytes;
    tile.y = task.y + base * task.rows + column;
    tile.rows = min(kRows, end - base);
    tile.asked = (tile.rows + 7) / 8 * 8;
    tile.columns = min(task.columns, static_cast<int>(task.rows) - column);
    tile.follows = before.rows && before.task.type == task.type;
    tile.stage = (before.stage + static_cast<int>(tasks.width / kSuper)) % 2;
    tile.task = task;
  }
};

// One that has the type of the one before has its first step on the way where meet_wide has both.
template <class F>
__device__ __forceinline__ void meet(const WideTile& tile, const WideTile& behind, int64_t width, char* memory) {
  if constexpr (kWhole<F>) {
    meet_wide<F>(tile, behind, width, memory);
    return;
  }
  __syncthreads();  // others may still have the tile before
  if constexpr (std::is_same_v<F, Q8_0>) return meet_wide_q8(tile.task, tile, width, memory);
  if constexpr (kPlain<F>) {
    if (takes_wide_plain(tile.task, tile, width))
      return meet_wide_plain(tile.task, tile, static_cast<int>(width), memory);
#pragma unroll 1
    for (int first = 0; first < tile.columns; first += kPlainColumns)
      meet_plain<F>(tile.task, tile, first, width, memory);
  }
}

// Has the block take one tile after the other: meet(tile, the one behind).
template <int kRows, class Meet>
__device__ __forceinline__ void take_tiles(const ManyTasks& tasks, const Buckets& buckets, int count, int64_t x_bytes,
                                           const Meet& meet) {
  __shared__ TileInTurn<kRows> tile[3];  // the one before may still be read, when the next one is found
  __shared__ int parts;
  if (threadIdx.x == 0) parts = buckets.used ? *buckets.used : (count + kRows - 1) / kRows;
  __syncthreads();
  const TilesInTurn<kRows> work{tasks, buckets, x_bytes, count, parts};
  const int first = static_cast<int>(blockIdx.x);
  if (first >= work.tiles()) return;
  if (threadIdx.x == kWarp) tile[0].next = work.take(first);
  if (threadIdx.x < 3) tile[threadIdx.x].behind = (static_cast<int>(threadIdx.x) + 1) % 3;
  if (threadIdx.x == 0) tile[2].rows = tile[2].stage = 0;
  if (threadIdx.x < kWarp) work.find(first, tile[2], tile[0]);
  __syncthreads();
#pragma unroll 1
  for (const TileInTurn<kRows>* at = tile; at->rows; at = tile + at->behind) {
    const TileInTurn<kRows>& own = *at;
    TileInTurn<kRows>& next = tile[own.behind];
    // Two warps wait for answers at the same time.
    const int thread = own_thread();
    if (thread < kWarp) work.find(own.next, own, next);
    if (thread == kWarp) next.next = work.take(own.next);
    meet(own, next);
  }
}

template <class... F>
__global__ void __launch_bounds__(kTileThreads, kResident)
    wide_tiles(const __grid_constant__ ManyTasks tasks, const __grid_constant__ Buckets buckets, int count,
               int64_t x_bytes) {
  take_tiles<kWideRows>(tasks, buckets, count, x_bytes, [&](const WideTile& tile, const WideTile& behind) {
    with_type(tile.task.type, Types<F...>(),
              [&](auto type) { meet<decltype(type)>(tile, behind, tasks.width, shared_memory()); });
  });
}

template <class... F>
void launch_wide(const ManyTasks& tasks, const Buckets& buckets, int64_t max_buckets, int64_t rows, cudaStream_t stream,
                 Types<F...>) {
  const int64_t parts = buckets.used ? max_buckets : (rows + kWideRows - 1) / kWideRows;
  const int64_t blocks = std::min(tasks.blocks * parts, kResident * multiprocessors());
  launch(wide_tiles<F...>, static_cast<unsigned>(blocks), kTileThreads, std::max({wide_bytes<F>()...}), stream, tasks,
         buckets, rows, prepared_bytes(Layout::int8, tasks.width));
}

}  // namespace trigraph::TRIGRAPH_ISA
