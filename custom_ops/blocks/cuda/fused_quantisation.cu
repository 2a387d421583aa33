// Products of a few rows that their own launch makes. All blocks ask for their weights; then each takes rows to make as
// long as there are some that none has taken, and waits for those of others. So none waits for one that has not begun.
#include <cstring>

#include "../../cuda/last_block.cuh"
#include "../../rms_norm/norm_row.cuh"
#include "few_products.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// Rows that blocks have taken, and arrivals: of rows that are made, and of every block that has seen them all. Both
// come round to zero by themselves: all blocks but the one with the last row find once that none is left.
struct Arrivals {
  unsigned *taken, *arrived;
  unsigned rows;

  // Makes rows, as long as there are some; whether it made none. The whole block calls, and make(row) too.
  template <class Make>
  __device__ __forceinline__ bool make(Make&& make) const {
    __shared__ unsigned next;
    bool idle = true;
    unsigned row;
    do {
      if (threadIdx.x == 0) next = atomicInc(taken, rows + gridDim.x - 2);
      __syncthreads();
      row = next;
      if (row >= rows) break;
      idle = false;
      make(static_cast<int>(row));
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence();
        arrives_last(arrived, rows + gridDim.x);
      }
    } while (row + 1 < rows);
    return idle;
  }
  // Until all rows are made; the whole block calls.
  __device__ __forceinline__ void await() const {
    if (threadIdx.x == 0)
      while (read_acquired(arrived) < rows) continue;
    __syncthreads();
    if (threadIdx.x == 0) arrives_last(arrived, rows + gridDim.x);
  }
};

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

// Rows that are made to shared memory; the whole block calls.
__device__ __forceinline__ void bring_rows(const FewTasks& tasks, const FewTask& task, int64_t x_bytes,
                                           const Arrivals& arrivals, char* prepared) {
  arrivals.await();
  if (task.quantised) copy_rows([&](int i) { return tasks.prepared + i * x_bytes; }, tasks.m, x_bytes, prepared);
}

// Blocks that begin early and make no row have the time for a pass without rows.
template <int kMost, class... F>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks)
    normed_products(const __grid_constant__ FewTasks tasks, const __grid_constant__ Norm norm, Arrivals arrivals,
                    int64_t x_bytes) {
  __shared__ float factor[2];
  const int64_t at = (int64_t{blockIdx.x} * kFewThreads + threadIdx.x) * kSector, width = norm.width;
  if (at < norm.both()) prefetch(at < width ? norm.weight + at : norm.other_weight + at - width);
  const FewTask& task = tasks.task[task_of_block(tasks)];
  TileWalk walk = begin(tasks, task, Types<F...>());
  auto* staged = reinterpret_cast<float*>(shared_memory() + kFewWarps * tasks.ring_bytes);
  const ParkedWalk parked(walk);
  allow_next();
  await_previous();
  const bool idle = arrivals.make([&](int row) { norm_row<kFewThreads>(norm, row, staged, factor); });
  parked.restore(walk);
  meet_few<kMost>(walk, tasks, task, x_bytes, kCanBeginEarly && kMost <= kEarlyRows && idle ? 0 : 1, Types<F...>(),
                  [&](char* prepared) { bring_rows(tasks, task, x_bytes, arrivals, prepared); });
}

template <int kMost, class... F>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks)
    quantised_products(const __grid_constant__ FewTasks tasks, char* made, Arrivals arrivals, int64_t x_bytes) {
  const FewTask& task = tasks.task[task_of_block(tasks)];
  TileWalk walk = begin(tasks, task, Types<F...>());
  allow_next();
  arrivals.make([&](int row) {
    const Plain x{tasks.x + row * tasks.width};
    char* own = made + row * x_bytes;
    quantise_rows<2>([&](int) { return x; }, 1, tasks.width, x_bytes, own);
    fill_row(own, tasks.width, x_bytes);
  });
  meet_few<kMost>(walk, tasks, task, x_bytes, 1, Types<F...>(),
                  [&](char* prepared) { bring_rows(tasks, task, x_bytes, arrivals, prepared); });
}

template <class... F>
void launch_normed(FewTasks tasks, const Norm& norm, unsigned* counters, cudaStream_t stream, Types<F...>) {
  const int64_t x_bytes = prepared_bytes(Layout::int8, tasks.width);
  const int64_t staged = tasks.width * static_cast<int64_t>(sizeof(float));
  const size_t shared = tasks.share(std::max(tasks.m * x_bytes, staged));  // one after the other
  const auto blocks = static_cast<unsigned>(tasks.blocks);
  const Arrivals arrivals{counters, counters + 1, static_cast<unsigned>(tasks.m)};
  if (tasks.m <= kEarlyRows)
    return launch<true>(normed_products<kEarlyRows, F...>, blocks, kFewThreads, shared, stream, tasks, norm, arrivals,
                        x_bytes);
  const auto kernel = tasks.m <= 4 ? normed_products<4, F...> : normed_products<kMostRows, F...>;
  launch(kernel, blocks, kFewThreads, shared, stream, tasks, norm, arrivals, x_bytes);
}

template <class... F>
void launch_quantised(FewTasks tasks, char* prepared, unsigned* counters, cudaStream_t stream, Types<F...>) {
  const int64_t x_bytes = prepared_bytes(Layout::int8, tasks.width);
  const size_t shared = tasks.share(tasks.m * x_bytes);
  const Arrivals arrivals{counters, counters + 1, static_cast<unsigned>(tasks.m)};
  launch(quantised_products<kMostRows, F...>, static_cast<unsigned>(tasks.blocks), kFewThreads, shared, stream, tasks,
         prepared, arrivals, x_bytes);
}

}  // namespace

void few_normed(FewTasks tasks, const Norm& norm, unsigned* counters, cudaStream_t stream) {
  tasks.prepared = norm.prepared;
  launch_normed(tasks, norm, counters, stream, CommonTypes());
}

void few_quantised(FewTasks tasks, char* prepared, unsigned* counters, cudaStream_t stream) {
  tasks.prepared = prepared;
  launch_quantised(tasks, prepared, counters, stream, CommonTypes());
}

}  // namespace trigraph::TRIGRAPH_ISA
