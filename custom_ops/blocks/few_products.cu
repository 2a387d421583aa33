#include "few_products.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kFewGated = 4096;       // a wider gate is cheaper to compute once
constexpr int64_t kFullDevice = 2 * 132;  // blocks that fill a large device: beyond that, blocks take more rows
constexpr int64_t kMostOfWarp = 8;

// Of a warp, one after the other, in a launch that has so many in all.
int rows_of_warp(int64_t rows_of_launch, int64_t rows_of_block) {
  return static_cast<int>(std::min(kMostOfWarp, std::max<int64_t>(1, rows_of_launch / (rows_of_block * kFullDevice))));
}

// Rows that meet weights together: of few tokens hardly three choose the same expert, of eight hardly five.
int rows_of_expert(const FewPairs& pairs) { return pairs.pairs / pairs.k <= 4 ? 2 : 4; }

template <class... F>
void launch_pairs(FewTasks tasks, const FewPairs& pairs, cudaStream_t stream, Types<F...>) {
  const int64_t x_bytes = prepared_bytes(Layout::int8, tasks.width);
  int64_t blocks = 0;
  for (int i = 0; i < tasks.count; ++i) {
    FewTask& task = tasks.task[i];
    task.first_block = 0;
    task.rows_of_warp = rows_of_warp(task.rows * pairs.pairs * tasks.count, kFewThreads / task.lanes);
    blocks = std::max<int64_t>(blocks, blocks_of(task.rows, kFewThreads / task.lanes * task.rows_of_warp));
  }
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(pairs.pairs),
                  static_cast<unsigned>(tasks.count));
  const int most = rows_of_expert(pairs);
  const auto kernel = most == 2 ? few_experts<2, F...> : few_experts<4, F...>;
  launch(kernel, grid, kFewThreads, static_cast<size_t>(most * x_bytes), stream, tasks, pairs, x_bytes);
}

template <class... F>
void launch_sums(FewTasks tasks, const FewPairs& pairs, const FewShared& shared, const SlotSum& sum, unsigned* counters,
                 cudaStream_t stream, Types<F...>) {
  const int64_t x_bytes = prepared_bytes(Layout::int8, tasks.width);
  // Blocks of both weights take the same rows.
  int widest = kWarp;
  for (int i = 0; i < tasks.count; ++i) widest = std::min(widest, tasks.task[i].lanes);
  const int64_t at_once = kFewThreads / widest;
  const int64_t columns = at_once * rows_of_warp(tasks.task[0].rows * pairs.pairs, at_once);
  for (int i = 0; i < tasks.count; ++i) {
    tasks.task[i].first_block = 0;
    tasks.task[i].rows_of_warp = static_cast<int>(columns * tasks.task[i].lanes / kFewThreads);
  }
  const dim3 grid(blocks_of(tasks.task[0].rows, columns), static_cast<unsigned>(pairs.pairs + tasks.count - 1));
  const int most = rows_of_expert(pairs);
  const auto kernel = most == 2 ? few_expert_sums<2, F...> : few_expert_sums<4, F...>;
  launch(kernel, grid, kFewThreads, static_cast<size_t>(most * x_bytes), stream, tasks, pairs, shared, sum, counters,
         x_bytes);
}

}  // namespace

void few_common(const FewTasks& tasks, cudaStream_t stream) { launch_few(tasks, stream, CommonTypes()); }

bool FewPairs::fit(int64_t pairs, int64_t width) {
  return pairs <= kMost && static_cast<size_t>(kMostRows * prepared_bytes(Layout::int8, width)) <= kFewBytes;
}

bool SlotSum::fit(int64_t tokens, int64_t width) { return tokens * blocks_of(width, kFewThreads / kWarp) <= kMost; }

void few_of_pairs(const FewTasks& tasks, const FewPairs& pairs, cudaStream_t stream) {
  launch_pairs(tasks, pairs, stream, CommonTypes());
}

void few_sums(const FewTasks& tasks, const FewPairs& pairs, const FewShared& shared, const SlotSum& sum,
              unsigned* counters, cudaStream_t stream) {
  launch_sums(tasks, pairs, shared, sum, counters, stream, CommonTypes());
}

FewTasks::FewTasks(const float* x, const float* up, int64_t width, int64_t m)
    : task{}, x(x), up(up), width(width), m(static_cast<int>(m)), count(0), blocks(0), quantised(false) {}

bool FewTasks::fit(int64_t width, int64_t m, bool gated) {
  return m <= kMostRows && static_cast<size_t>(m * prepared_bytes(Layout::int8, width)) <= kFewBytes &&
         (!gated || width <= kFewGated);
}

void FewTasks::add(const ProductKernel& kernel, const uint8_t* data, int64_t rows, int64_t row_bytes, float* y) {
  const int lanes = kernel.lanes(width);
  const int64_t rows_of_block = kFewThreads / lanes;
  const int each = rows_of_warp(rows, rows_of_block);
  const bool int8 = kernel.layout == Layout::int8;
  task[count++] = {data, y, rows, row_bytes, kernel.few_type, int8, lanes, each, blocks};
  blocks += static_cast<int>(blocks_of(rows, rows_of_block * each));
  quantised = quantised || int8;
}

}  // namespace trigraph::TRIGRAPH_ISA
