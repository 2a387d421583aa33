#include "expert_rows.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kExpertBlocks = 2;              // of a multiprocessor: more would wait in the way of others
constexpr int kMostSlots = 16;                // of a token
constexpr int64_t kMostRowsBytes = 16 << 10;  // of activations in shared memory
constexpr int kStageBytes = 16 * 240;         // of a warp

template <class... F>
__global__ void __launch_bounds__(kFewThreads, kExpertBlocks) few_experts(const __grid_constant__ FewExperts all) {
  allow_next();
  await_previous();
  __shared__ TileStep step;
  clear_zeros();
  if (!begin_step(all, step)) return;
  find_tiles(all, step);
  const Work& work = step.work;
  const ExpertTask& task = work.task(all);
  char *ring = shared_memory() + threadIdx.x / kWarp * all.ring_bytes,
       *rows = shared_memory() + kFewWarps * all.ring_bytes;
  auto* sums = reinterpret_cast<float*>(rows + all.rows_bytes);
  const auto x_bytes = static_cast<int>(Int8Row::apart(work.steps * kSuper));
  const bool prepared = ask_prepared(all, work, rows);
  ExpertWalk walk(step, task);
  int stages = 0;
  with_type(task.type, Types<F...>(), [&](auto type) {
    using T = decltype(type);
    if constexpr (kTiled<T>) {
      stages = stages_of<T>(all.ring_bytes), walk.begin_tile<T>();
      const TileLane<T> lane;
#pragma unroll 1
      for (int s = 0; s < stages; ++s) walk.ask<T>(lane, ring + s * kSlot<T>);
    }
  });
  await_makers(all, work);
  if (prepared)
    await_copies(stages);
  else
    quantise_rows_of(all, work, rows, x_bytes);
  __syncthreads();
  with_type(task.type, Types<F...>(), [&](auto type) {
    if constexpr (kTiled<decltype(type)>) meet<decltype(type)>(walk, ring, stages, rows, x_bytes, sums);
  });
  __syncthreads();
  finish(all, work, step.weights, sums);
  arrive(all, work);
}

// The fewest tiles of a block, a power of two, so that blocks of `tiles` in all fit a device at once.
int tiles_of(int64_t tiles, int most) {
  const int64_t full_device = kExpertBlocks * multiprocessors();
  int own = 1;
  while (2 * own <= most && tiles / own > full_device) own *= 2;
  return own;
}

template <class... F>
void launch_experts(FewExperts all, cudaStream_t stream, Types<F...>) {
  const int k = all.k;
  all.made = tiles_of(int64_t{all.tokens} * k * all.ffn / kTile, 8);
  all.taken = tiles_of(int64_t{all.tokens} * all.width / kTile, std::min(16, kMostSums / (k * all.down.chains)));
  all.parts = all.ffn / kTile / all.made;
  all.sharing = all.shared.data ? all.width / kTile / kSharedTiles : 0;
  all.makers = all.sharing + k * all.parts;
  all.takers = all.width / kTile / all.taken;
  all.ring_bytes = 2 * kStageBytes;
  all.rows_bytes = static_cast<int>(std::max(Int8Row::apart(all.width), k * Int8Row::apart(all.ffn)));
  const int sums = std::max({2 * all.made * all.gate.chains, all.shared.data ? kSharedTiles * all.shared.chains : 0,
                             all.taken * k * all.down.chains});
  const auto blocks = static_cast<unsigned>(all.tokens * (all.makers + all.takers));
  const size_t bytes = kFewWarps * all.ring_bytes + all.rows_bytes + sums * kTile * sizeof(float);
  launch_step(all.tokens, few_experts<F...>, blocks, kFewThreads, bytes, stream, all);
}

}  // namespace

ExpertTask::ExpertTask(const ProductKernel& kernel, const uint8_t* data, int64_t width, int64_t row_bytes,
                       int64_t stride)
    : data(data), row_bytes(row_bytes), stride(stride), type(kernel.few_type), by_runs(kernel.form == kByRuns) {
  chains = kernel.lanes(width) / (kernel.block == kSuper ? kShare<Q4_K> : 1);
}

bool FewExperts::fit(int64_t tokens, int64_t k, int64_t width, int64_t ffn) {
  return k <= kMostSlots && tokens * k <= kMost && width % kSuper == 0 && ffn % kSuper == 0 &&
         std::max(Int8Row::apart(width), k * Int8Row::apart(ffn)) <= kMostRowsBytes;
}

void FewExperts::launch(cudaStream_t stream) { launch_experts(*this, stream, CommonTypes()); }

}  // namespace trigraph::TRIGRAPH_ISA
