// What a block of few_experts.cu has beside its tiles: rows of activations, and what becomes of the products.
#pragma once

#include "../cuda/last_block.cuh"
#include "expert_tiles.cuh"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// Begins to copy the block's row of activations, where it is prepared: whether it is.
__device__ __forceinline__ bool ask_prepared(const FewExperts& all, const Work& work, char* rows) {
  if (work.kind != Work::kMaker || !all.prepared) return false;
  const auto bytes = static_cast<int>(Int8Row::bytes(all.width));
  const char* form = all.prepared + (2 * int64_t{work.token} + all.gate.by_runs) * bytes;
  for (int i = 16 * threadIdx.x; i < bytes; i += 16 * kFewThreads) copy_ahead(rows + i, form + i);
  end_copies();
  return true;
}

// A taker waits until the token's hidden rows are made. The whole block calls.
__device__ __forceinline__ void await_makers(const FewExperts& all, const Work& work) {
  if (work.kind != Work::kTaker) return;
  if (threadIdx.x == 0)
    while (read_acquired(all.counters + 1 + work.token) < static_cast<unsigned>(all.makers)) continue;
  __syncthreads();
}

// The block's activations as int8, but for those that are prepared.
__device__ __forceinline__ void quantise_rows_of(const FewExperts& all, const Work& work, char* rows, int64_t x_bytes) {
  const int64_t ffn = all.ffn;
  const bool by_runs = work.task(all).by_runs;
  if (work.kind == Work::kTaker) {
    const float* hidden = all.hidden + work.token * work.slots * ffn;
    quantise_rows<2>([&](int i) { return Plain{hidden + i * ffn}; }, work.slots, ffn, by_runs, x_bytes, rows);
  } else if (work.kind == Work::kShared) {
    const Gated x{all.shared_hidden + work.token * ffn, all.shared_up + work.token * ffn};
    quantise_rows<1>([&](int) { return x; }, 1, ffn, by_runs, x_bytes, rows);
  } else {
    quantise_rows<1>([&](int) { return Plain{all.x + int64_t{work.token} * all.width}; }, 1, all.width, by_runs,
                     x_bytes, rows);
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

// Tells that the block is done.
__device__ __forceinline__ void arrive(const FewExperts& all, const Work& work) {
  if (work.kind != Work::kTaker) __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    arrives_last(all.counters + 1 + work.token, static_cast<unsigned>(all.makers + all.takers));
  }
}

}  // namespace
}  // namespace trigraph::TRIGRAPH_ISA
