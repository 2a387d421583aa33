#include "../blocks/few_products.cuh"
#include "../cuda/last_block.cuh"
#include "few_experts.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kExpertBlocks = 2;              // of a multiprocessor: more would wait in the way of others
constexpr int kSharedTiles = 2;               // of a block
constexpr int kMostSlots = 16;                // of a token
constexpr int kMostSums = 128;                // chains of a block's tiles
constexpr int64_t kDevice = 2 * 132;          // blocks that keep a large device busy
constexpr int64_t kMostRowsBytes = 16 << 10;  // of activations in shared memory
constexpr int kStageBytes = 16 * 240;         // of a warp

// What a block does: tiles of 16 weight rows, each with a row of activations.
//   a maker     gate and up of one slot in turns, with the token's row
//   of shared   the shared expert's output, likewise
//   a taker     the slots of a tile of columns, and then those of the next, with the slots' hidden rows
struct Work {
  enum Kind { kMaker, kShared, kTaker };
  Kind kind;
  int number;  // of the block, in the order in which blocks begin
  int token, slot, first, tiles, slots, steps;

  // Blocks that make rows come first, so that none waits for one that has not begun.
  __device__ void decide(const FewExperts& all, int begun) {
    const int making = all.makers * all.tokens, k = all.k;
    const bool taker = begun >= making;
    const int at = taker ? begun - making : begun, of_token = taker ? all.takers : all.makers, part = at % of_token;
    const int own = part - all.sharing;  // among those that make hidden rows
    number = begun, token = at / of_token, slot = 0, slots = 1;
    steps = all.ffn / kSuper;
    if (taker)
      kind = kTaker, first = part * all.taken, tiles = all.taken * k, slots = k;
    else if (own < 0)
      kind = kShared, first = part * kSharedTiles, tiles = kSharedTiles;
    else
      kind = kMaker, slot = own / all.parts, first = own % all.parts * all.made, tiles = 2 * all.made,
      steps = all.width / kSuper;
  }
  __device__ const ExpertTask& task(const FewExperts& all) const {
    return kind == kMaker ? all.gate : kind == kShared ? all.shared : all.down;
  }
};

// A tile's first row, the end of its matrix, and which of the block's rows of activations it meets.
struct ExpertTile {
  const uint8_t *row, *end;
  int x;
};

// What a block knows of the step.
struct Step {
  int64_t ids[FewExperts::kMost];
  float weights[FewExperts::kMost];
  ExpertTile tile[kMostSums];
  Work work;
};

// What the block is to do; false when an id is bad. The whole block calls.
__device__ __forceinline__ bool begin_step(const FewExperts& all, Step& step) {
  const int i = threadIdx.x;
  bool bad = false;
  if (i == kFewThreads - 1) step.work.decide(all, static_cast<int>(atomicInc(all.counters, gridDim.x - 1)));
  if (i < all.tokens * all.k) {
    step.ids[i] = all.ids[i], step.weights[i] = all.sum.weights[i];
    bad = step.ids[i] < 0 || step.ids[i] >= all.experts;
  }
  if (!__syncthreads_or(bad)) return true;
  if (i || step.work.number) return false;
  int first = 0;
  while (step.ids[first] >= 0 && step.ids[first] < all.experts) ++first;
  report(all.record, Operator::grouped_expert_ffn, Reason::expert_id, step.ids[first], all.first_token + first / all.k,
         first % all.k, all.experts);
  return false;
}

// Where the block's tiles begin. The whole block calls.
__device__ __forceinline__ void find_tiles(const FewExperts& all, Step& step) {
  const Work& work = step.work;
  if (const int i = threadIdx.x; i < work.tiles) {
    const ExpertTask* task = &work.task(all);
    const bool maker = work.kind == Work::kMaker;
    const int x = maker ? 0 : i % work.slots, row = work.first + i / (maker ? 2 : work.slots);
    if (maker && i % 2) task = &all.up;
    const int64_t id = work.kind == Work::kShared ? 0 : step.ids[work.token * all.k + work.slot * maker + x];
    const uint8_t* matrix = task->data + id * task->stride;
    step.tile[i] = {matrix + row * kTile * task->row_bytes, matrix + (maker ? all.ffn : all.width) * task->row_bytes,
                    x};
  }
  __syncthreads();
}

// A warp's way through its block's tiles, and in each through the super-blocks of its chain.
struct ExpertWalk {
  const ExpertTile* tiles;
  int64_t lane_row, eight_rows;  // bytes
  int count, steps, chains, chain, groups;
  int tile, step;  // what is asked for next

  __device__ ExpertWalk(const Step& of, const ExpertTask& task)
      : tiles(of.tile),
        lane_row(threadIdx.x % kWarp / 4 * task.row_bytes),
        eight_rows(8 * task.row_bytes),
        count(of.work.tiles),
        steps(of.work.steps),
        chains(task.chains) {
    const int warp = threadIdx.x / kWarp;  // chains: a power of two
    groups = kFewWarps / chains, chain = warp & (chains - 1), tile = warp / chains, step = -1;
  }
  template <class F>
  __device__ __forceinline__ int begin() const {
    return kPieces<F> > 1 ? 0 : chain;
  }
  template <class F>
  __device__ __forceinline__ int stride() const {
    return kPieces<F> > 1 ? kPieces<F> : chains;
  }
  // The lane's block of a tile's upper eight rows.
  template <class F>
  __device__ __forceinline__ const uint8_t* block(int tile, int step) const {
    return tiles[tile].row + lane_row + (kPieces<F> > 1 ? step * (kSuper / F::kBlock) + chain : step) * F::kBytes;
  }
  template <class F>
  __device__ __forceinline__ void ask(char* stage) {
    if (tile < count && step < steps) {
      const uint8_t *p = block<F>(tile, step), *end = tiles[tile].end;
      char* to = stage + threadIdx.x % kWarp / 4 * kTileStride<F>;
      ask_row<F>(p, steps - step, end, to);
      ask_row<F>(p + eight_rows, steps - step, end, to + 8 * kTileStride<F>);
      step += stride<F>();
      if (step >= steps) step = begin<F>(), tile += groups;
    }
    end_copies();
  }
};

// Meets all tiles of the warp, after it has asked for the first of them; each one's 16 sums to those of its chains.
template <class F>
__device__ __forceinline__ void meet(ExpertWalk& walk, char* ring, int stages, const char* x, int64_t x_bytes,
                                     float* sums) {
  const int lane = threadIdx.x % kWarp;
  int stage = 0;
  for (int tile = threadIdx.x / kWarp / walk.chains; tile < walk.count; tile += walk.groups) {
    float chain[4] = {};
    const char* codes = x + walk.tiles[tile].x * x_bytes;
    const auto* scales = reinterpret_cast<const float*>(codes + walk.steps * Int8Row::kStride);
    for (int step = walk.begin<F>(); step < walk.steps; step += walk.stride<F>()) {
      await_copies(stages - 1);
      __syncwarp();
      const auto* block = reinterpret_cast<const uint8_t*>(ring) + stage * kSlot<F> + lane / 4 * kTileStride<F>;
      const uint8_t *p = walk.block<F>(tile, step), *upper = block + shift_of<F>(p),
                    *lower = block + 8 * kTileStride<F> + shift_of<F>(p + walk.eight_rows);
      const char* super = codes + step * Int8Row::kStride;
      const float* x_scale[2] = {scales + step, scales + step};
      if constexpr (kPieces<F> > 1)
        meet_pieces<F, true>(upper, lower, walk.steps - step, super + walk.chain * kRun, x_scale, chain);
      else
        meet_block<F, true>(upper, lower, super, x_scale, chain);
      __syncwarp();
      walk.ask<F>(ring + stage * kSlot<F>);
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
    if (lane % 4 == 0)
      for (int i = 0; i < 2; ++i) sums[(tile * walk.chains + walk.chain) * kTile + lane / 4 + 8 * i] = chain[2 * i];
  }
}

// The sum of a tile's chains for one of its rows.
__device__ __forceinline__ float join(const float* sums, int chains, int tile, int row) {
  float chain[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) chain[c] = c < chains ? sums[(tile * chains + c) * kTile + row] : 0.0f;
#pragma unroll
  for (int half = kChains / 2; half; half /= 2)
#pragma unroll
    for (int c = 0; c < half; ++c) chain[c] += chain[c + half];
  return chain[0] + 0.0f;
}

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
  __shared__ Step step;
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
  int own = 1;
  while (2 * own <= most && tiles / own > kDevice) own *= 2;
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
  launch(few_experts<F...>, blocks, kFewThreads, bytes, stream, all);
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
