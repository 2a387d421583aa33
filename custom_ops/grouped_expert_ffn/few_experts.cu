#include "../cuda/last_block.cuh"
#include "expert_tiles.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kExpertBlocks = 2;              // of a multiprocessor: more would wait in the way of others
constexpr int kMostSlots = 16;                // of a token
constexpr int64_t kMostRowsBytes = 16 << 10;  // of activations in shared memory
constexpr int kStageBytes = 16 * 240;         // of a warp

// The block's activations as int8, but for those that are prepared.
__device__ __forceinline__ void quantise_rows_of(const FewExperts& all, const Work& work, char* rows, int64_t x_bytes) {
  const int64_t ffn = all.ffn;
  if (work.kind == Work::kTaker) {
    const float* hidden = all.hidden + work.token * work.slots * ffn;
    quantise_rows<2>([&](int i) { return Plain{hidden + i * ffn}; }, work.slots, ffn, x_bytes, rows);
  } else if (work.kind == Work::kShared) {
    const Gated x{all.shared_hidden + work.token * ffn, all.shared_up + work.token * ffn};
    quantise_rows<1>([&](int) { return x; }, 1, ffn, x_bytes, rows);
  } else {
    quantise_rows<1>([&](int) { return Plain{all.x + int64_t{work.token} * all.width}; }, 1, all.width, x_bytes, rows);
  }
}

// What becomes of the block's tiles. The whole block calls.
__device__ __forceinline__ void finish(const FewExperts& all, const Work& work, const float* weights, float* sums) {
  const int chains = work.task(all).chains, i = threadIdx.x;
  if (work.kind == Work::kMaker) {
    float* hidden = all.hidden + (int64_t{work.token} * all.k + work.slot) * all.ffn + work.first * kTile;
    for (int at = i; at < work.tiles / 2 * kTile; at += kFewThreads) {
      const int tile = at / kTile * 2, row = at % kTile;
      hidden[at] = silu(join(sums, chains, tile, row)) * join(sums, chains, tile + 1, row);
    }
    return;
  }
  if (work.kind == Work::kShared) {
    float* output = const_cast<float*>(all.sum.shared) + int64_t{work.token} * all.width + work.first * kTile;
    for (int at = i; at < work.tiles * kTile; at += kFewThreads)
      output[at] = join(sums, chains, at / kTile, at % kTile);
    return;
  }
  // A thread has the chains of its sum alone, and so may write there.
  for (int at = i; at < work.tiles * kTile; at += kFewThreads) {
    const float sum = join(sums, chains, at / kTile, at % kTile);
    sums[at / kTile * chains * kTile + at % kTile] = sum;
  }
  __syncthreads();
  const SlotSum& sum = all.sum;
  for (int at = i; at < all.taken * kTile; at += kFewThreads) {
    const float* product = sums + at / kTile * work.slots * chains * kTile + at % kTile;
    float total = 0;
    for (int slot = 0; slot < work.slots; ++slot)
      total = fmaf(weights[work.token * work.slots + slot], product[slot * chains * kTile], total);
    sum.finish(total, work.token, work.first * kTile + at);
  }
}

template <class... F>
__global__ void __launch_bounds__(kFewThreads, kExpertBlocks) few_experts(const __grid_constant__ FewExperts all) {
  allow_next();
  await_previous();
  __shared__ TileStep step;
  if (!begin_step(all, step)) return;
  find_tiles(all, step);
  const Work& work = step.work;
  const ExpertTask& task = work.task(all);
  const bool taker = work.kind == Work::kTaker, prepared = work.kind == Work::kMaker && all.prepared;
  char *ring = shared_memory() + threadIdx.x / kWarp * all.ring_bytes,
       *rows = shared_memory() + kFewWarps * all.ring_bytes;
  auto* sums = reinterpret_cast<float*>(rows + all.rows_bytes);
  const int x_bytes = static_cast<int>(round_up(work.steps * (Int8Row::kStride + static_cast<int>(sizeof(float))), 16));
  if (prepared) {
    for (int i = threadIdx.x; i < x_bytes / 16; i += kFewThreads)
      copy_ahead(rows + 16 * i, all.prepared + int64_t{work.token} * x_bytes + 16 * i);
    end_copies();
  }
  ExpertWalk walk(step, task);
  int stages = 0;
  with_type(task.type, Types<F...>(), [&](auto type) {
    using T = decltype(type);
    if constexpr (kTiled<T>) {
      stages = stages_of<T>(all.ring_bytes), walk.step = walk.begin<T>();
#pragma unroll 1
      for (int s = 0; s < stages; ++s) walk.ask<T>(ring + s * kSlot<T>);
    }
  });
  unsigned* ready = all.counters + 1 + work.token;
  if (taker) {
    if (threadIdx.x == 0)
      while (read_acquired(ready) < static_cast<unsigned>(all.makers)) continue;
    __syncthreads();
  }
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
  if (!taker) __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    arrives_last(ready, static_cast<unsigned>(all.makers + all.takers));
  }
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
  all.rows_bytes =
      static_cast<int>(std::max(prepared_bytes(Layout::int8, all.width), k * prepared_bytes(Layout::int8, all.ffn)));
  const int sums = std::max({2 * all.made * all.gate.chains, all.shared.data ? kSharedTiles * all.shared.chains : 0,
                             all.taken * k * all.down.chains});
  const auto blocks = static_cast<unsigned>(all.tokens * (all.makers + all.takers));
  const size_t bytes = kFewWarps * all.ring_bytes + all.rows_bytes + sums * kTile * sizeof(float);
  launch_step(all.tokens, few_experts<F...>, blocks, kFewThreads, bytes, stream, all);
}

}  // namespace

ExpertTask::ExpertTask(const ProductKernel& kernel, const uint8_t* data, int64_t width, int64_t row_bytes,
                       int64_t stride)
    : data(data), row_bytes(row_bytes), stride(stride), type(kernel.few_type) {
  chains = kernel.lanes(width) / (kernel.block == kSuper ? kShare<Q4_K> : 1);
}

bool FewExperts::fit(int64_t tokens, int64_t k, int64_t width, int64_t ffn) {
  return k <= kMostSlots && tokens * k <= kMost && width % kSuper == 0 && ffn % kSuper == 0 &&
         std::max(prepared_bytes(Layout::int8, width), k * prepared_bytes(Layout::int8, ffn)) <= kMostRowsBytes;
}

void FewExperts::launch(cudaStream_t stream) { launch_experts(*this, stream, CommonTypes()); }

}  // namespace trigraph::TRIGRAPH_ISA
