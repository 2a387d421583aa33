// The kernel of many_products.h, for the types F: the one of a weight is chosen when it runs.
#pragma once

#include "few_products.cuh"
#include "plain_tiles.cuh"

namespace trigraph::TRIGRAPH_ISA {

template <class F>
constexpr size_t tile_bytes() {
  if constexpr (kPlain<F>)
    return kPlainParts * sizeof(PlainSums);
  else
    return kTileWarps * sizeof(TileMemory<F>);
}

// How many blocks share a multiprocessor, which bounds registers: types that are decoded a code at a time need more.
template <class... F>
constexpr int kTileBlocks = ((kPlain<F> || !kWhole<F> || std::is_base_of_v<OwnFragment, Fragment<F>>) && ...) ? 2 : 1;

// grid: [blocks of the tasks, buckets, parts of a bucket's rows]. Without buckets there is one, with `count` rows.
template <class... F>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<F...>)
    tiles(const __grid_constant__ ManyTasks tasks, Buckets buckets, int count, int64_t x_bytes) {
  __shared__ ManyTile<kTileRows> tile;
  __shared__ ManyTask task;  // constants by a number that only runs know would take registers
  char* memory = shared_memory();
  if (threadIdx.x == 0) {
    int number = 0;
    while (number + 1 < tasks.count && tasks.task[number + 1].first_block <= static_cast<int>(blockIdx.x)) ++number;
    task = tasks.task[number];
  }
  __syncthreads();
  int base = static_cast<int>(blockIdx.z) * kTileRows, end = count;
  if (buckets.used) {
    if (static_cast<int>(blockIdx.y) >= *buckets.used) return;
    base += buckets.first[blockIdx.y];
    end = buckets.first[blockIdx.y + 1];
  }
  if (base >= end) return;
  if (threadIdx.x < kTileRows) {
    const int index = min(base + static_cast<int>(threadIdx.x), end - 1);
    const int64_t source = buckets.source ? buckets.source[index] : index;
    tile.x[threadIdx.x] = task.chains ? tasks.prepared + source * x_bytes + task.form_offset
                                      : reinterpret_cast<const char*>(tasks.x + source * tasks.width);
  }
  if (threadIdx.x == 0) {
    const int column = (static_cast<int>(blockIdx.x) - task.first_block) * task.columns;
    const uint8_t* matrix = task.data + (buckets.used ? buckets.matrix[blockIdx.y] * task.stride : 0);
    tile.w = matrix + column * task.row_bytes;
    tile.end = matrix + task.rows * task.row_bytes;
    tile.y = task.y + base * task.rows + column;
    tile.rows = min(kTileRows, end - base);
    tile.columns = min(task.columns, static_cast<int>(task.rows) - column);
  }
  __syncthreads();
  with_type(task.type, Types<F...>(), [&](auto type) {
    using Own = decltype(type);
    if constexpr (kPlain<Own>) {
#pragma unroll 1
      for (int first = 0; first < tile.columns; first += kPlainColumns)
        meet_plain<Own>(task, tile, first, tasks.width, memory);
    } else {
      meet_tile<Own>(task, tile, 0, tasks.width, memory);
    }
  });
}

template <class... F>
void launch_many(const ManyTasks& tasks, const Buckets& buckets, int64_t max_buckets, int64_t rows, cudaStream_t stream,
                 Types<F...>) {
  const int64_t most = buckets.used ? std::min<int64_t>(rows, buckets.most) : rows;
  const int64_t parts = std::min<int64_t>(65535, (most + kTileRows - 1) / kTileRows);
  const dim3 grid(static_cast<unsigned>(tasks.blocks), static_cast<unsigned>(max_buckets),
                  static_cast<unsigned>(parts));
  launch(tiles<F...>, grid, kTileThreads, std::max({tile_bytes<F>()...}), stream, tasks, buckets, rows,
         prepared_bytes(Layout::int8, tasks.width));
}

}  // namespace trigraph::TRIGRAPH_ISA
