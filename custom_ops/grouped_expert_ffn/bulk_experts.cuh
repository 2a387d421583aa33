// few_experts.cu's kernel for sm_90: a block's tiles of weights, 16 rows that lie side by side, come as bulk copies of
// whole rows or tiles, as many at once as there is room for. What blocks do, and all sums, are the same.
#pragma once

#include "../cuda/bulk.cuh"
#include "expert_rows.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kBulkBlocks = 3;       // of a multiprocessor
constexpr int kBulkRing = 53 << 10;  // bytes of a block's tiles that are on their way
constexpr int kMostBulkStages = 16;

// How the tiles of a matrix lie in shared memory. Rows of whole 16 bytes begin 16 bytes behind a multiple of 128, so
// that eight of them meet all banks; other tiles are one piece.
struct TilePlace {
  int row_bytes, stride, bytes, stages;
  bool by_rows;

  __device__ explicit TilePlace(const ExpertTask& task) : row_bytes(static_cast<int>(task.row_bytes)) {
    by_rows = row_bytes % 16 == 0;
    stride = by_rows ? row_bytes + (8 + 1 - row_bytes / 16 % 8) % 8 * 16 : row_bytes;
    bytes = kTile * stride + 16;  // the last block's last word goes on
    stages = min(kBulkRing / bytes, kMostBulkStages);
  }
  // Whether rows of so many bytes fit.
  static bool fits(int64_t row_bytes) { return kTile * (row_bytes + 112) + 16 <= kBulkRing; }
};

struct BulkStages {
  Arrival there[kMostBulkStages];
  unsigned met[kMostBulkStages];  // by so many of the warps that have a part of the tile
};

// Asks for a tile of the block, if there is such; a whole warp calls.
__device__ __forceinline__ void ask_tile(const TileStep& step, const TilePlace& place, int tile, char* ring,
                                         BulkStages& stages) {
  if (tile >= step.work.tiles) return;
  const int lane = threadIdx.x % kWarp, stage = tile % place.stages;
  const uint8_t* from = step.tile[tile].row;
  char* to = ring + stage * place.bytes;
  if (lane == 0) stages.there[stage].expect(kTile * place.row_bytes);
  __syncwarp();
  if (place.by_rows) {
    if (lane < kTile)
      stages.there[stage].copy(to + lane * place.stride, from + lane * place.row_bytes, place.row_bytes);
  } else if (lane == 0) {
    stages.there[stage].copy(to, from, kTile * place.row_bytes);
  }
}

// As `meet`; the last warp that has met a tile asks for the next one in its place.
template <class F>
__device__ __forceinline__ void meet_bulk(const TileStep& step, const ExpertTask& task, const TilePlace& place,
                                          char* ring, BulkStages& stages, const char* x, int64_t x_bytes, float* sums) {
  const int lane = threadIdx.x % kWarp, steps = step.work.steps;
  const ExpertWalk walk(step, task);
#pragma unroll 1
  for (int tile = walk.tile; tile < walk.count; tile += walk.groups) {
    const int stage = tile % place.stages;
    float chain[4] = {};
    const char* codes = x + walk.tiles[tile].x * x_bytes;
    const auto* rows = reinterpret_cast<const uint8_t*>(ring) + stage * place.bytes + lane / 4 * place.stride;
    stages.there[stage].await(tile / place.stages);
    for (int at = walk.begin<F>(); at < steps; at += walk.stride<F>()) {
      const char* super = codes + at * Int8Row::kStride;
      const float* scale = reinterpret_cast<const float*>(super + Int8Row::kScales) + (kPieces<F> > 1 ? walk.chain : 0);
      const float* x_scale[2] = {scale, scale};
      constexpr int kSuperBytes = kSuper / F::kBlock * F::kBytes;
      const uint8_t* upper = rows + at * kSuperBytes + (kPieces<F> > 1 ? walk.chain * F::kBytes : 0);
      if constexpr (kPieces<F> > 1)
        meet_pieces<F, true, kSuperBytes>(upper, upper + 8 * place.stride, steps - at, super + walk.chain * kRun,
                                          x_scale, chain);
      else
        meet_block<F, true>(upper, upper + 8 * place.stride, super, x_scale, chain);
    }
    if (lane % 4 == 0)
      for (int i = 0; i < 2; ++i) sums[(tile * walk.chains + walk.chain) * kTile + lane / 4 + 8 * i] = chain[2 * i];
    if (tile + place.stages >= walk.count) continue;
    __syncwarp();
    unsigned before = 0;
    if (lane == 0) before = atomicInc(stages.met + stage, static_cast<unsigned>(walk.chains) - 1);
    if (__shfl_sync(kAllLanes, before, 0) + 1 == static_cast<unsigned>(walk.chains))
      ask_tile(step, place, tile + place.stages, ring, stages);
  }
}

template <class... F>
__global__ void __launch_bounds__(kFewThreads, kBulkBlocks) bulk_experts(const __grid_constant__ FewExperts all) {
  allow_next();
  if constexpr (!kCanBeginEarly) return;  // before sm_90
  await_previous();
  __shared__ TileStep step;
  __shared__ BulkStages stages;
  if (threadIdx.x < kMostBulkStages) stages.there[threadIdx.x].make(), stages.met[threadIdx.x] = 0;
  if (!begin_step(all, step)) return;
  find_tiles(all, step);
  const Work& work = step.work;
  const ExpertTask& task = work.task(all);
  const TilePlace place(task);
  char *ring = shared_memory(), *rows = ring + kBulkRing;
  auto* sums = reinterpret_cast<float*>(rows + all.rows_bytes);
  const auto x_bytes = static_cast<int>(Int8Row::apart(work.steps * kSuper));
  for (int tile = threadIdx.x / kWarp; tile < place.stages; tile += kFewWarps)
    ask_tile(step, place, tile, ring, stages);
  const bool prepared = ask_prepared(all, work, rows);
  await_makers(all, work);
  if (prepared)
    await_copies(0);
  else
    quantise_rows_of(all, work, rows, x_bytes);
  __syncthreads();
  with_type(task.type, Types<F...>(), [&](auto type) {
    if constexpr (kTiled<decltype(type)>)
      meet_bulk<decltype(type)>(step, task, place, ring, stages, rows, x_bytes, sums);
  });
  __syncthreads();
  finish(all, work, step.weights, sums);
  arrive(all, work);
}

// Whether the kernel is asked for, and tiles fit.
inline bool takes_bulk(const FewExperts& all, const void* kernel) {
  return takes_sm_90(kernel) && TilePlace::fits(all.gate.row_bytes) && TilePlace::fits(all.down.row_bytes) &&
         TilePlace::fits(all.shared.row_bytes);
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
