// Products of a few rows that their own launch makes. All blocks ask for their weights; then each norms one or two rows
// for itself. Of more, each takes rows to make as long as there are some that none has taken, and waits for those of
// others. So none waits for one that has not begun.
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

  // Makes rows, as long as there are some. The whole block calls, and make(row) too.
  template <class Make>
  __device__ __forceinline__ void make(Make&& make) const {
    __shared__ unsigned next;
    unsigned row;
    do {
      if (threadIdx.x == 0) next = atomicInc(taken, rows + gridDim.x - 2);
      __syncthreads();
      row = next;
      if (row >= rows) break;
      make(static_cast<int>(row));
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence();
        arrives_last(arrived, rows + gridDim.x);
      }
    } while (row + 1 < rows);
  }
  // Until all rows are made; the whole block calls.
  __device__ __forceinline__ void await() const {
    if (threadIdx.x == 0)
      while (read_acquired(arrived) < rows) continue;
    __syncthreads();
    if (threadIdx.x == 0) arrives_last(arrived, rows + gridDim.x);
  }
};

// The norm's weights, by all blocks together.
__device__ __forceinline__ void prefetch_norm(const Norm& norm) {
  const int64_t at = (int64_t{blockIdx.x} * kFewThreads + threadIdx.x) * kSector, width = norm.width;
  if (at < norm.both()) prefetch(at < width ? norm.weight + at : norm.other_weight + at - width);
}

// Rows that are made to shared memory; the whole block calls.
__device__ __forceinline__ void bring_rows(const FewTasks& tasks, const FewTask& task, int64_t x_bytes,
                                           const Arrivals& arrivals, char* prepared) {
  arrivals.await();
  if (task.form) copy_form(tasks, task, x_bytes, prepared);
}

// Rows normed by the whole block to `staged` and, in a form as int8, to `prepared`. `keeps`: and to where others read
// them, in both.
__device__ __forceinline__ void norm_own_rows(const Norm& norm, int count, bool keeps, bool by_runs, int x_bytes,
                                              float* staged, float* factor, char* prepared) {
  const int both = static_cast<int>(norm.both()), bytes = static_cast<int>(norm.prepared_bytes / 2);
#pragma unroll 1
  for (int row = 0; row < count; ++row) {
    float* own = staged + row * both;
    float weight[8];
    begin_row<kFewThreads>(norm, row, keeps, own, factor, weight);
    char *own_form = prepared + row * x_bytes, *kept = keeps ? norm.prepared + 2 * row * bytes : nullptr;
    char* other = kept ? kept + (by_runs ? 0 : bytes) : nullptr;
    finish_row<kFewThreads>(norm, own, factor, weight, own, keeps && norm.y ? norm.y + int64_t{row} * both : nullptr,
                            by_runs ? other : own_form, by_runs ? own_form : other);
    __syncthreads();
    for (int i = threadIdx.x; keeps && i < bytes / 16; i += kFewThreads)
      reinterpret_cast<uint4*>(kept + (by_runs ? bytes : 0))[i] = reinterpret_cast<const uint4*>(own_form)[i];
  }
}

// Each block norms all rows, so that none waits for another; the first one keeps them.
template <int kMost, class... F>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks)
    normed_alone(const __grid_constant__ FewTasks tasks, const __grid_constant__ Norm norm, int64_t x_bytes) {
  __shared__ float factor[2];
  prefetch_norm(norm);
  const FewTask& task = tasks.task[task_of_block(tasks)];
  TileWalk walk = begin<kMost>(tasks, task, Types<F...>());
  const ParkedWalk parked(walk);
  allow_next();
  meet_few<kMost, true, false>(walk, parked, tasks, task, x_bytes, Types<F...>(), [&](char* prepared) {
    await_previous();
    auto* staged = reinterpret_cast<float*>(prepared + tasks.m * x_bytes);
    norm_own_rows(norm, tasks.m, blockIdx.x == 0, task.form == kByRuns, static_cast<int>(x_bytes), staged, factor,
                  prepared);
  });
}

template <class... F>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks)
    normed_products(const __grid_constant__ FewTasks tasks, const __grid_constant__ Norm norm,
                    const __grid_constant__ Arrivals arrivals, int64_t x_bytes) {
  __shared__ float factor[2];
  prefetch_norm(norm);
  const FewTask& task = tasks.task[task_of_block(tasks)];
  TileWalk walk = begin<kMostRows>(tasks, task, Types<F...>());
  const ParkedWalk parked(walk);
  allow_next();
  await_previous();
  arrivals.make([&](int row) {
    norm_row<kFewThreads>(norm, row, reinterpret_cast<float*>(shared_memory() + kFewWarps * tasks.ring_bytes), factor);
  });
  meet_few<kMostRows, false, false>(walk, parked, tasks, task, x_bytes, Types<F...>(),
                                    [&](char* prepared) { bring_rows(tasks, task, x_bytes, arrivals, prepared); });
}

template <class... F>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks)
    quantised_products(const __grid_constant__ FewTasks tasks, char* made, const __grid_constant__ Arrivals arrivals,
                       int64_t x_bytes) {
  const FewTask& task = tasks.task[task_of_block(tasks)];
  TileWalk walk = begin<kMostRows>(tasks, task, Types<F...>());
  const ParkedWalk parked(walk);
  allow_next();
  await_previous();
  arrivals.make([&](int row) {
    const Plain x{tasks.x + row * tasks.width};
    const int64_t bytes = Int8Row::bytes(tasks.width);
#pragma unroll 1
    for (int form = 0; form < 2; ++form)
      if (tasks.forms >> form & 1)
        quantise_rows<2>([&](int) { return x; }, 1, tasks.width, form == 1, bytes, made + (2 * row + form) * bytes);
  });
  meet_few<kMostRows, false, false>(walk, parked, tasks, task, x_bytes, Types<F...>(),
                                    [&](char* prepared) { bring_rows(tasks, task, x_bytes, arrivals, prepared); });
}

template <class... F>
void launch_normed(FewTasks tasks, const Norm& norm, unsigned* counters, cudaStream_t stream, Types<F...>) {
  const int64_t x_bytes = Int8Row::apart(tasks.width);
  const int64_t staged = tasks.width * static_cast<int64_t>(sizeof(float));
  if (tasks.m <= kFirstRows) {
    const size_t shared = tasks.share(tasks.m * (x_bytes + staged));
    const auto kernel = tasks.m == 1 ? normed_alone<1, F...> : normed_alone<kFirstRows, F...>;
    return launch_step(tasks.m, kernel, static_cast<unsigned>(tasks.blocks), kFewThreads, shared, stream, tasks, norm,
                       x_bytes);
  }
  const size_t shared = tasks.share(std::max(tasks.rows_bytes(), staged));  // one after the other
  const Arrivals arrivals{counters, counters + 1, static_cast<unsigned>(tasks.m)};
  launch_step(tasks.m, normed_products<F...>, static_cast<unsigned>(tasks.blocks), kFewThreads, shared, stream, tasks,
              norm, arrivals, x_bytes);
}

template <class... F>
void launch_quantised(FewTasks tasks, char* prepared, unsigned* counters, cudaStream_t stream, Types<F...>) {
  const int64_t x_bytes = Int8Row::apart(tasks.width);
  const size_t shared = tasks.share(tasks.rows_bytes());
  const Arrivals arrivals{counters, counters + 1, static_cast<unsigned>(tasks.m)};
  launch_step(tasks.m, quantised_products<F...>, static_cast<unsigned>(tasks.blocks), kFewThreads, shared, stream,
              tasks, prepared, arrivals, x_bytes);
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
