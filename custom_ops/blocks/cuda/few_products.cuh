// The kernels of few_products.h, for the types F: the one of a weight is chosen when it runs.
#pragma once

#include <cstring>

#include "few_tiles.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr size_t kFewBytes = 47 << 10;  // of rows in shared memory, beside what kernels have there
constexpr int kFewBlocks = 2;           // of a multiprocessor, which bounds registers

// The type of that number.
template <class Visit>
__device__ __forceinline__ void with_type(int, Types<>, Visit&&) {}
template <class F, class... Rest, class Visit>
__device__ __forceinline__ void with_type(int type, Types<F, Rest...>, Visit&& visit) {
  if (type == 0)
    visit(F());
  else
    with_type(type - 1, Types<Rest...>(), visit);
}

// Rows x(0) to x(count - 1) in a form as int8, by a whole block, of which each warp waits for kTogether super-blocks
// together.
template <int kTogether, int kWarps = kFewWarps, class Row>
__device__ __forceinline__ void quantise_rows(const Row& x, int count, int64_t width, bool by_runs, int64_t x_bytes,
                                              char* prepared) {
  const int supers = static_cast<int>((width + kSuper - 1) / kSuper), all = count * supers;
  for (int first = threadIdx.x / kWarp; first < all; first += kTogether * kWarps) {
    float value[kTogether][8];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int task = first + i * kWarps;
      if (task < all) load_eight(x(task / supers), width, task % supers, value[i]);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int task = first + i * kWarps;
      if (task < all) quantise(value[i], task % supers, by_runs, prepared + task / supers * x_bytes);
    }
  }
}

// The first weight row of the block.
__device__ __forceinline__ int first_row(const FewTask& task) {
  return (static_cast<int>(blockIdx.x) - task.first_block) * task.rounds * task.at_once;
}

// Forms of rows x(0) to x(count - 1) to shared memory, by a whole block.
template <class Row>
__device__ __forceinline__ void copy_rows(const Row& x, int count, int64_t width, int64_t x_bytes, char* to) {
  constexpr int kTogether = 4;  // rows
  const int of_row = static_cast<int>(Int8Row::bytes(width) / sizeof(uint4));
  for (int at = threadIdx.x; at < of_row; at += kFewThreads)
    for (int first = 0; first < count; first += kTogether) {
      uint4 value[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (first + i < count) value[i] = reinterpret_cast<const uint4*>(x(first + i))[at];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (first + i < count) reinterpret_cast<uint4*>(to + (first + i) * x_bytes)[at] = value[i];
    }
}

// Asks for all weight rows of the block. They come while it prepares activations; registers hold too few of them to
// keep the memory busy.
__device__ __forceinline__ void prefetch_rows(const FewTask& task, const uint8_t* data, int first) {
  constexpr int kSector = 32;
  const uint8_t* end = data + min(first + int64_t{task.rounds} * task.at_once, task.rows) * task.row_bytes;
#pragma unroll 1
  for (const uint8_t* p = data + first * task.row_bytes + threadIdx.x * kSector; p < end; p += kFewThreads * kSector)
    prefetch(p);
}

// Rows of a plain weight through shared memory, a warp's one at a time: how many of them are there together.
__device__ __forceinline__ int staged_rows(const FewTask& task, int ring_bytes) {
  return min(task.rounds, min(kMostStages, ring_bytes / static_cast<int>(task.row_bytes)));
}
__device__ __forceinline__ void ask_whole_row(const FewTask& task, const uint8_t* data, int row, char* to) {
  const int bytes = row < static_cast<int>(task.rows) ? static_cast<int>(task.row_bytes) : 0;
#pragma unroll 1
  for (int at = threadIdx.x % kWarp * 16; at < bytes; at += kWarp * 16)
    copy_ahead(to + at, data + row * task.row_bytes + at);
  end_copies();
}

// The block's rows of a weight with `count` rows of x: quantised, or as they are for a plain type. `target`: their rows
// of y, or nullptr for the same ones.
template <int kMost, class F>
__device__ __forceinline__ void few_of_task(const FewTask& task, const uint8_t* data, int64_t width, int count,
                                            char* rings, int ring_bytes, const char* prepared, int64_t x_bytes,
                                            const float* plain, const int* target) {
  constexpr int kRows = kMost > kFirstRows ? 4 : kMost;  // at once, as there are registers for
  constexpr Layout kLayout = kPlain<F> ? Layout::float32 : Layout::int8;
  const char* x = kPlain<F> ? reinterpret_cast<const char*>(plain) : prepared;
  const int64_t stride = kPlain<F> ? width * static_cast<int64_t>(sizeof(float)) : x_bytes;
  const int lane = threadIdx.x % task.lanes, end = static_cast<int>(task.rows);
  const int first = first_row(task) + static_cast<int>(threadIdx.x) / task.lanes;
  const int ahead = kPlain<F> && task.staged ? staged_rows(task, ring_bytes) : 0;
  char* ring = rings + threadIdx.x / kWarp * ring_bytes;
#pragma unroll 1
  for (int from = 0; from < count; from += kRows) {
#pragma unroll 1
    for (int i = 0; i < task.rounds; ++i) {
      const int row = first + i * task.at_once;
      const uint8_t* w = row < end ? data + row * task.row_bytes : nullptr;
      char* staged = kPlain<F> && ahead ? ring + i % ahead * task.row_bytes : nullptr;
      if (staged) {
        await_copies(ahead - 1);
        __syncwarp();
        if (w) w = reinterpret_cast<const uint8_t*>(staged);
      }
      few_rows<F, kLayout, kRows>(w, width, lane, task.lanes, x, stride, nullptr, target, from,
                                  min(kRows, count - from), task.y + row, task.rows);
      if (!staged) continue;
      __syncwarp();
      ask_whole_row(task, data, i + ahead < task.rounds ? row + ahead * task.at_once : end, staged);
    }
  }
}

__device__ __forceinline__ void begin_rows(const FewTask& task, const uint8_t* data, int first, char* rings,
                                           int ring_bytes) {
  const int warp = threadIdx.x / kWarp, ahead = staged_rows(task, ring_bytes);
#pragma unroll 1
  for (int i = 0; i < ahead; ++i)
    ask_whole_row(task, data, first + warp + i * task.at_once, rings + warp * ring_bytes + i * task.row_bytes);
}

// A block's way through its rows of a weight of any type, from `first` on: tiles, or rows of warps.
template <int kMost, class... F>
__device__ __forceinline__ TileWalk begin(const FewTask& task, const uint8_t* data, int first, int64_t width,
                                          char* rings, int ring_bytes, Types<F...> types) {
  TileWalk walk(task, data, width, first);
  with_type(task.type, types, [&](auto type) {
    if constexpr (kTiled<decltype(type)>)
      if (task.tiled) return begin_tiles<decltype(type)>(walk, rings, ring_bytes);
    if constexpr (kPlain<decltype(type)> && kMost <= kFirstRows)
      if (task.staged) return begin_rows(task, data, first, rings, ring_bytes);
    prefetch_rows(task, data, first);
  });
  return walk;
}
template <int kMost, class F>
__device__ __forceinline__ void finish(TileWalk& walk, const FewTask& task, char* rings, int ring_bytes, int64_t width,
                                       int count, const char* prepared, int64_t x_bytes, const float* plain,
                                       const int* target) {
  if constexpr (kTiled<F>)
    if (kAlwaysTiled<F> || task.tiled)
      return meet_tiles<F, kMost == 1>(walk, rings, ring_bytes, prepared, x_bytes, count, task.y, task.rows, target);
  if constexpr (!kAlwaysTiled<F> && !(kPlain<F> && kMost > kFirstRows))
    if (count)
      few_of_task<kMost, F>(task, walk.data, width, count, rings, ring_bytes, prepared, x_bytes, plain, target);
}

__device__ __forceinline__ int task_of_block(const FewTasks& tasks) {
  int number = 0;
  while (number + 1 < tasks.count && tasks.task[number + 1].first_block <= static_cast<int>(blockIdx.x)) ++number;
  return number;
}

// Prepared rows as the block needs them for a weight, to shared memory.
__device__ __forceinline__ void copy_form(const FewTasks& tasks, const FewTask& task, int64_t x_bytes, char* to) {
  const int64_t bytes = Int8Row::bytes(tasks.width);
  const char* first = tasks.prepared + (task.form == kByRuns ? bytes : 0);
  copy_rows([&](int i) { return first + 2 * i * bytes; }, tasks.m, tasks.width, x_bytes, to);
}

// The rows of x as the block needs them for a weight, in shared memory.
__device__ __forceinline__ void prepare_rows(const FewTasks& tasks, const FewTask& task, int64_t x_bytes,
                                             char* prepared) {
  if (!task.form) return;
  if (tasks.prepared) return copy_form(tasks, task, x_bytes, prepared);
  quantise_rows<2>([&](int i) { return Plain{tasks.x + i * tasks.width}; }, tasks.m, tasks.width, task.form == kByRuns,
                   x_bytes, prepared);
}

// The walk of a block whose warps have asked for their first weights.
template <int kMost, class... F>
__device__ __forceinline__ TileWalk begin(const FewTasks& tasks, const FewTask& task, Types<F...> types) {
  return begin<kMost>(task, task.data, first_row(task), tasks.width, shared_memory(), tasks.ring_bytes, types);
}

// A warp's walk, in shared memory while the block needs its registers to make rows.
class ParkedWalk {
 public:
  __device__ explicit ParkedWalk(const TileWalk& walk) : own_(memory()) {
    int words[kWords];
    std::memcpy(words, &walk, sizeof walk);
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      if (threadIdx.x % kWarp == 0) own_[i] = words[i];
  }
  __device__ void restore(TileWalk& walk) const {
    int words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = own_[i];
    std::memcpy(&walk, words, sizeof walk);
  }

 private:
  static constexpr int kWords = sizeof(TileWalk) / sizeof(int);
  __device__ static volatile int* memory() {
    __shared__ int words[kFewWarps][kWords];
    return words[threadIdx.x / kWarp];
  }
  volatile int* own_;
};

// A block's products, after `begin`. bring(prepared) brings their rows to shared memory. kOwn: those of float32 are
// behind them.
// kAhead: goes through the code once without rows before, for in a step, instructions are in no cache.
template <int kMost, bool kOwn, bool kAhead, class Bring, class... F>
__device__ __forceinline__ void meet_few(TileWalk& walk, const ParkedWalk& parked, const FewTasks& tasks,
                                         const FewTask& task, int64_t x_bytes, Types<F...> types, Bring&& bring) {
  char *rings = shared_memory(), *prepared = rings + kFewWarps * tasks.ring_bytes;
  const auto meet = [&](int count) {
    with_type(task.type, types, [&](auto type) {
      const float* plain = nullptr;
      if constexpr (kPlain<decltype(type)>)
        plain = kOwn ? reinterpret_cast<const float*>(prepared + tasks.m * x_bytes) : tasks.x;
      finish<kMost, decltype(type)>(walk, task, rings, tasks.ring_bytes, tasks.width, count, prepared, x_bytes, plain,
                                    nullptr);
    });
  };
  if constexpr (kAhead) {
#pragma unroll 1
    for (int count = 0;; count = tasks.m) {
      if (count) {
        clear_zeros();
        bring(prepared);
        __syncthreads();
        parked.restore(walk);
      }
      meet(count);
      if (count) break;
    }
  } else {
    if constexpr (kMost == 1) clear_zeros();
    bring(prepared);
    __syncthreads();
    parked.restore(walk);
    meet(tasks.m);
  }
}

// A kernel that begins early has the time for a pass without rows; with one row, it has the registers too.
template <int kMost, class... F>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks)
    few_products(const __grid_constant__ FewTasks tasks, int64_t x_bytes) {
  const FewTask& task = tasks.task[task_of_block(tasks)];
  TileWalk walk = begin<kMost>(tasks, task, Types<F...>());
  const ParkedWalk parked(walk);
  meet_few<kMost, false, kCanBeginEarly && kMost == 1>(walk, parked, tasks, task, x_bytes, Types<F...>(),
                                                       [&](char* prepared) {
                                                         allow_next();
                                                         await_previous();
                                                         prepare_rows(tasks, task, x_bytes, prepared);
                                                       });
}

template <class... F>
void launch_few(FewTasks tasks, cudaStream_t stream, Types<F...>) {
  const int64_t x_bytes = Int8Row::apart(tasks.width);
  const size_t shared = tasks.share(tasks.rows_bytes());
  const auto blocks = static_cast<unsigned>(tasks.blocks);
  const auto kernel = tasks.m == 1            ? few_products<1, F...>
                      : tasks.m <= kFirstRows ? few_products<kFirstRows, F...>
                                              : few_products<kMostRows, F...>;
  launch_step(tasks.m, kernel, blocks, kFewThreads, shared, stream, tasks, x_bytes);
}

}  // namespace trigraph::TRIGRAPH_ISA
