// The kernels of few_products.h, for the types F: the one of a weight is chosen when it runs.
#pragma once

#include "few_products.h"
#include "rows.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kFewThreads = 256;

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

// Rows x(0) to x(count - 1) as int8, by a whole block.
template <class Row>
__device__ __forceinline__ void quantise_rows(const Row& x, int count, int64_t width, int64_t x_bytes, char* prepared) {
  const int supers = static_cast<int>((width + kSuper - 1) / kSuper);
  for (int task = threadIdx.x / kWarp; task < count * supers; task += kFewThreads / kWarp)
    quantise(x(task / supers), width, task % supers, prepared + task / supers * x_bytes);
}

// The block's rows of a weight with `count` rows of x: quantised, or as they are for a plain type. `target`: their rows
// of y, or nullptr for the same ones.
template <int kMost, class F>
__device__ __forceinline__ void few_of_task(const FewTask& task, const uint8_t* data, int64_t width, int count,
                                            const char* prepared, int64_t x_bytes, const float* plain,
                                            const int* target) {
  const int lane = threadIdx.x % task.lanes, rows_of_block = kFewThreads / task.lanes;
  for (int i = 0; i < task.rows_of_warp; ++i) {
    const int64_t row =
        (int64_t{static_cast<int>(blockIdx.x) - task.first_block} * task.rows_of_warp + i) * rows_of_block +
        threadIdx.x / task.lanes;
    const uint8_t* w = row < task.rows ? data + row * task.row_bytes : nullptr;
    if constexpr (kPlain<F>)
      some_rows<F, Layout::float32, kMost>(w, width, lane, task.lanes, reinterpret_cast<const char*>(plain),
                                           width * sizeof(float), nullptr, target, 0, count, task.y + row, task.rows);
    else
      some_rows<F, Layout::int8, kMost>(w, width, lane, task.lanes, prepared, x_bytes, nullptr, target, 0, count,
                                        task.y + row, task.rows);
  }
}

template <int kMost, class Source, class... F>
__global__ void __launch_bounds__(kFewThreads)
    few_products(const __grid_constant__ FewTasks tasks, Source x, int64_t x_bytes) {
  char* prepared = shared_memory();
  int number = 0;
  while (number + 1 < tasks.count && tasks.task[number + 1].first_block <= static_cast<int>(blockIdx.x)) ++number;
  if (tasks.quantised)
    quantise_rows([&](int row) { return x.row(row * tasks.width); }, tasks.m, tasks.width, x_bytes, prepared);
  __syncthreads();
  const FewTask& task = tasks.task[number];
  with_type(task.type, Types<F...>(), [&](auto type) {
    few_of_task<kMost, decltype(type)>(task, task.data, tasks.width, tasks.m, prepared, x_bytes, tasks.x, nullptr);
  });
}

// The pairs of the expert of pair blockIdx.y, of which it must be the first: how many, 0 for none. The whole block
// calls; the order of the pairs is of no matter.
__device__ __forceinline__ int find_pairs(const FewPairs& pairs, int* found) {
  __shared__ int count;
  const int own = blockIdx.y, i = threadIdx.x;
  const int64_t id = i < pairs.pairs ? pairs.ids[i] : 0, expert = pairs.ids[own];
  const bool bad = i < pairs.pairs && (id < 0 || id >= pairs.experts);
  if (__syncthreads_or(bad)) {
    if (blockIdx.x || own || blockIdx.z || i) return 0;
    int first = 0;
    while (pairs.ids[first] >= 0 && pairs.ids[first] < pairs.experts) ++first;
    report(pairs.record, Operator::grouped_expert_ffn, Reason::expert_id, pairs.ids[first],
           pairs.first_token + first / pairs.k, first % pairs.k, pairs.experts);
    return 0;
  }
  if (__syncthreads_or(i < own && id == expert)) return 0;
  if (i == 0) count = 0;
  __syncthreads();
  if (i >= own && i < pairs.pairs && id == expert) found[atomicAdd(&count, 1)] = i;
  __syncthreads();
  return count;
}

// grid: [parts of the weight rows, pairs, weights].
template <int kMost, class Source, class... F>
__global__ void __launch_bounds__(kFewThreads)
    few_experts(const __grid_constant__ FewTasks tasks, const __grid_constant__ FewPairs pairs, Source x,
                int64_t x_bytes) {
  __shared__ int found[FewPairs::kMost];
  char* prepared = shared_memory();
  const int count = find_pairs(pairs, found);
  const FewTask& task = tasks.task[blockIdx.z];
  const uint8_t* data = task.data + pairs.ids[blockIdx.y] * pairs.stride[blockIdx.z];
  for (int first = 0; first < count; first += kMost) {
    const int rows = min(kMost, count - first);
    __syncthreads();
    quantise_rows(
        [&](int row) {
          const int pair = found[first + row];
          return x.row((pairs.row_for_each ? pair : pair / pairs.k) * tasks.width);
        },
        rows, tasks.width, x_bytes, prepared);
    __syncthreads();
    with_type(task.type, Types<F...>(), [&](auto type) {
      few_of_task<kMost, decltype(type)>(task, data, tasks.width, rows, prepared, x_bytes, nullptr, found + first);
    });
  }
}

template <class... F>
void launch_few(const FewTasks& tasks, cudaStream_t stream, Types<F...>) {
  const int64_t x_bytes = prepared_bytes(Layout::int8, tasks.width);
  const size_t shared = tasks.quantised ? static_cast<size_t>(tasks.m * x_bytes) : 0;
  const auto blocks = static_cast<unsigned>(tasks.blocks);
  const auto run = [&](auto source) {
    using Source = decltype(source);
    const auto kernel = tasks.m <= 2   ? few_products<2, Source, F...>
                        : tasks.m <= 4 ? few_products<4, Source, F...>
                                       : few_products<kMostRows, Source, F...>;
    launch(kernel, blocks, kFewThreads, shared, stream, tasks, source, x_bytes);
  };
  if (tasks.up)
    run(Gated{tasks.x, tasks.up});
  else
    run(Plain{tasks.x});
}

}  // namespace trigraph::TRIGRAPH_ISA
