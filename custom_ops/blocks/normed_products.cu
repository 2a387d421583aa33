// Each block makes the norms for itself, as it quantises rows for itself: less time than a launch.
#include "few_products.cuh"
#include "normed_products.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// dot(x, x, n), which waits for several elements together.
__device__ __forceinline__ float squares(const float* x, int n) {
  constexpr int kTogether = 16;
  float sum = 0;
  int i = threadIdx.x % kLanes;
  for (; i + (kTogether - 1) * kLanes < n; i += kTogether * kLanes) {
    float value[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) value[k] = x[i + k * kLanes];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) sum = fmaf(value[k], value[k], sum);
  }
  for (; i < n; i += kLanes) sum = fmaf(x[i], x[i], sum);
  return lane_sum(sum, kLanes);
}

// The norms of `count` rows from `first` on, in shared memory, by the whole block. `writes`: to norm.y and norm.sum
// too.
__device__ __forceinline__ void stage_norms(const Norm& norm, int first, int count, bool writes, float* staged) {
  constexpr int kTogether = 2;  // rows whose elements a thread waits for together
  __shared__ float factor[kMostRows][2];
  const int width = static_cast<int>(norm.width), both = static_cast<int>(norm.both());
  for (int column = 8 * threadIdx.x; column < both; column += 8 * kFewThreads) {
    const bool second = column >= width;
    const int64_t stride = second ? norm.other_width : norm.width;
    const Plain x{second ? norm.other + column - width : norm.x + column}, residual{norm.residual + column};
    for (int start = 0; start < count; start += kTogether) {
      float value[kTogether][8], more[kTogether][8] = {};
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (start + i >= count) continue;
        x.eight((first + start + i) * stride, value[i]);
        if (norm.residual && !second) residual.eight((first + start + i) * stride, more[i]);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (start + i >= count) continue;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if (norm.residual && !second) value[i][k] += more[i][k];
          staged[(start + i) * both + column + k] = value[i][k];
          if (writes && norm.residual && !second) norm.sum[(first + start + i) * stride + column + k] = value[i][k];
        }
      }
    }
  }
  __syncthreads();
  const int parts = norm.other ? 2 : 1, dots = count * parts;
  for (int i = threadIdx.x / kLanes; i < (dots + 1) / 2 * 2; i += kFewThreads / kLanes) {  // whole warps
    const int own = min(i, dots - 1), row = own / parts, part = own % parts;
    const int elements = part ? both - width : width;
    const float sum = squares(staged + row * both + (part ? width : 0), elements);
    if (i < dots && threadIdx.x % kLanes == 0) factor[row][part] = norm.factor(sum, elements);
  }
  __syncthreads();
  for (int column = 8 * threadIdx.x; column < both; column += 8 * kFewThreads) {
    const bool second = column >= width;
    float weight[8];
    Plain{second ? norm.other_weight + column - width : norm.weight + column}.eight(0, weight);
    for (int row = 0; row < count; ++row)
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        float& value = staged[row * both + column + k];
        value = value * factor[row][second] * weight[k];
        if (writes) norm.y[int64_t{first + row} * both + column + k] = value;
      }
  }
  __syncthreads();
}

// `at_once`: rows that are staged together.
template <int kMost, class... F>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks)
    normed(const __grid_constant__ FewTasks tasks, const __grid_constant__ Norm norm, int router,
           const __grid_constant__ Routing routing, unsigned* counter, int64_t x_bytes, int at_once) {
  char *rings = shared_memory(), *prepared = rings + kFewWarps * tasks.ring_bytes;
  float* staged = reinterpret_cast<float*>(prepared + (tasks.quantised ? tasks.m * x_bytes : 0));
  const int number = task_of_block(tasks);
  const FewTask& task = tasks.task[number];
  TileWalk walk = begin(task, task.data, first_row(task), tasks.width, rings, tasks.ring_bytes, Types<F...>());
  for (int first = 0; first < tasks.m; first += at_once) {
    const int count = min(at_once, tasks.m - first);
    stage_norms(norm, first, count, blockIdx.x == 0, staged);
    if (task.quantised) {
      quantise_rows<1>([&](int row) { return Plain{staged + row * tasks.width}; }, count, tasks.width, x_bytes,
                       prepared + first * x_bytes);
    } else {
      FewTask part = task;
      part.y += first * task.rows;
      with_type(task.type, Types<F...>(), [&](auto type) {
        if constexpr (kPlain<decltype(type)>)
          few_of_task<kMost, decltype(type)>(part, task.data, tasks.width, count, nullptr, 0, staged, nullptr);
      });
    }
    __syncthreads();
  }
  if (task.quantised)
    with_type(task.type, Types<F...>(), [&](auto type) {
      if constexpr (!kPlain<decltype(type)>)
        finish<kMost, decltype(type)>(walk, task, rings, tasks.ring_bytes, tasks.width, tasks.m, prepared, x_bytes,
                                      nullptr, nullptr);
    });
  if (number != router) return;
  const int end = number + 1 < tasks.count ? tasks.task[number + 1].first_block : tasks.blocks;
  if (!is_last(counter, end - task.first_block)) return;
  for (int row = threadIdx.x / kWarp; row < tasks.m; row += kFewThreads / kWarp) routing(row);
}

int64_t room(int64_t width, int64_t m, bool quantised) {
  const int64_t left = static_cast<int64_t>(kFewBytes) - (quantised ? m * prepared_bytes(Layout::int8, width) : 0);
  return std::min(m, left / (width * static_cast<int64_t>(sizeof(float))));
}

template <class... F>
void launch_normed(FewTasks tasks, const Norm& norm, int router, const Routing& routing, unsigned* counter,
                   cudaStream_t stream, Types<F...>) {
  const int64_t x_bytes = prepared_bytes(Layout::int8, tasks.width);
  const int64_t at_once = room(tasks.width, tasks.m, tasks.quantised);
  const int64_t rows = (tasks.quantised ? tasks.m * x_bytes : 0) + at_once * tasks.width * int64_t{sizeof(float)};
  int64_t weights = 0;
  for (int i = 0; i < tasks.count; ++i) weights += tasks.bytes(i);
  tasks.share(weights, rows);
  const auto bytes = static_cast<size_t>(tasks.rings() + rows);
  const auto kernel = tasks.m <= 2 ? normed<2, F...> : tasks.m <= 4 ? normed<4, F...> : normed<kMostRows, F...>;
  launch(kernel, static_cast<unsigned>(tasks.blocks), kFewThreads, bytes, stream, tasks, norm, router, routing, counter,
         x_bytes, at_once);
}

}  // namespace

bool normed_fit(int64_t width, int64_t other_width, int64_t m, bool quantised) {
  constexpr int64_t kFewest = 3;  // rows at a time: fewer take longer than a launch of their own
  return m > 0 && m <= kMostRows && width % 8 == 0 && other_width % 8 == 0 &&
         room(width + other_width, m, quantised) >= std::min(m, kFewest);
}

void normed_products(const FewTasks& tasks, const Norm& norm, int router, const Routing& routing, unsigned* counter,
                     cudaStream_t stream) {
  launch_normed(tasks, norm, router, routing, counter, stream, CommonTypes());
}

}  // namespace trigraph::TRIGRAPH_ISA
