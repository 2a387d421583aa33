// Attention of few rows without lists over a cache of halves: a split's keys come to registers and its values to shared
// memory, all at once. Blocks take tiles and splits as in attend.cuh, with the same sums, and the last block of a tile
// merges.
#pragma once

#include "few_split.cuh"

namespace trigraph::TRIGRAPH_ISA {

// The splits of a tile, in order, and y; the whole block calls. A thread has four columns of a query.
template <int W>
__device__ __forceinline__ void few_merge(int count, const Partials& partials, const float* q_gate,
                                          FewShared<W>& shared, float* y) {
  constexpr int kSplits = 16;  // that are read together
  static_assert(kFewQueries * W / 4 <= kFewThreads && kSplits <= kWarp);
  const int lane = threadIdx.x % kWarp, own = threadIdx.x / kWarp;
  const auto splits = [&](int m) { return static_cast<int>(shared.last[m] / kSplit) + 1; };
  const int m = threadIdx.x / (W / 4), column = threadIdx.x % (W / 4) * 4, most = splits(count - 1);
  const bool active = m < count;
  float4 all{}, gate{};
  if (active) gate = *reinterpret_cast<const float4*>(q_gate + (shared.head[m] * 2 + 1) * W + column);
  Merging merging;
  for (int first = 0; first < most; first += kSplits) {
    float4 part[kSplits];
    const int end = active ? min(kSplits, splits(m) - first) : 0;
#pragma unroll
    for (int n = 0; n < kSplits; ++n)
      if (n < end) part[n] = *reinterpret_cast<const float4*>(partials.at<kFewQueries>(W, first + n) + m * W + column);
    if (own < count && first < splits(own)) {
      const int last = min(splits(own), first + kSplits) - 1;
      const float* scalars = partials.at<kFewQueries>(W, min(first + lane, last)) + kFewQueries * W + own;
      const float2 factor = merging(scalars[0], scalars[kFewQueries], !first, last + 1 - first);
      __syncwarp();
      shared.factor[own][lane] = factor;
      if (lane == 0) shared.sum[own] = merging.sum;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kSplits; ++n) {
      if (n >= end) break;
      const auto [keep, take] = shared.factor[m][n];
      const float4& x = part[n];
      all = first + n == 0 ? x
                           : float4{fmaf(all.x, keep, x.x * take), fmaf(all.y, keep, x.y * take),
                                    fmaf(all.z, keep, x.z * take), fmaf(all.w, keep, x.w * take)};
    }
    __syncthreads();
  }
  if (!active) return;
  const float inverse = 1.0f / shared.sum[m];
  *reinterpret_cast<float4*>(y + shared.head[m] * W + column) = {
      all.x * inverse * sigmoid(gate.x), all.y * inverse * sigmoid(gate.y), all.z * inverse * sigmoid(gate.z),
      all.w * inverse * sigmoid(gate.w)};
}

// What a warp that makes a query has in shared memory: the query, the norm, and what turns pairs.
template <int W>
__device__ __forceinline__ float* own_vector(int which) {
  return reinterpret_cast<float*>(shared_memory() + kSplit * W * 2) + (threadIdx.x / kWarp * 3 + which) * W;
}
template <int W>
__device__ __forceinline__ float2* own_turns() {
  return reinterpret_cast<float2*>(own_vector<W>(2));
}

// Begins to copy one of the vectors.
template <int W>
__device__ __forceinline__ void ask_for_vector(int which, const float* from) {
  for (int i = threadIdx.x % kWarp * 4; i < W; i += 4 * kWarp) copy_ahead(own_vector<W>(which) + i, from + i);
  end_copies();
}

// The warp's query, normed, rotated and scaled, to where scores read it.
template <int W>
__device__ __forceinline__ void few_query(const Rotation& rotation, int count, FewShared<W>& shared) {
  const int m = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float* query = own_vector<W>(0);
  await_copies(0);
  __syncwarp();
  const auto turn = [&](int i) { return own_turns<W>()[i]; };
  if (m < count) norm_rotate(query, own_vector<W>(1), rotation, turn, W, 1.0f / sqrtf(static_cast<float>(W)), query);
  float* to = shared.query + lane / kHalf * FewShared<W>::kStride + m * kHalf + lane % kHalf;
#pragma unroll
  for (int i = 0; i < W / kWarp; ++i)
    to[i * (kWarp / kHalf) * FewShared<W>::kStride] = m < count ? query[i * kWarp + lane] : 0.0f;
}

constexpr int kMakers = kFewQueries * kWarp;  // threads, which make queries; the others bring values

// Where the entries of a split are in the cache; the whole block calls.
template <int W>
__device__ __forceinline__ void find_entries(const Ragged& sequences, const AttentionShape& shape, int split,
                                             FewShared<W>& shared) {
  if (const int thread = threadIdx.x; thread < shared.seen(shared.count - 1, split)) {
    const int64_t entry = sequences.entry(shared.sequence, int64_t{split} * kSplit + thread, shared.bad);
    shared.entry[thread] = static_cast<uint32_t>(entry * shape.kv_heads) + blockIdx.y;
  }
  __syncthreads();
}

// Asks for positions `begin` to `end` of a split: keys, of which each thread has a half, and values. kAll: for all.
template <int W, bool kAll>
__device__ __forceinline__ void ask_for_split(int begin, int end, int seen, const __half* keys, const __half* values,
                                              const FewShared<W>& shared, uint4* key) {
  constexpr int kPieces = W / 8;
  const int thread = fresh_thread(), position = min(thread / 2, seen - 1);
  if (kAll || (position >= begin && position < end))
    read_key<W>(key_of<W>(keys, shared.entry[position]), 0, kEarly<W>, key);
  if (thread < kMakers) return;
#pragma unroll 1
  for (int i = begin * kPieces + thread - kMakers; i < end * kPieces; i += kFewThreads - kMakers)
    copy_ahead(shared_memory() + i * 16,
               reinterpret_cast<const uint4*>(values + uint64_t{shared.entry[i / kPieces]} * W) + i % kPieces);
  end_copies();
}

// grid: [tiles, kv heads, splits that are walked at once]. Of a block's first split, positions before the step's are
// asked for before the launch ahead is done, which writes the others.
template <int W>
__global__ void __launch_bounds__(kFewThreads, 1)
    attend_few(const __grid_constant__ Ragged sequences, const __grid_constant__ Rotation rotation,
               const __grid_constant__ AttentionShape shape, const float* q_gate, const float* norm, const __half* keys,
               const __half* values, const __grid_constant__ Partials partials, float* y) {
  allow_next();
  __shared__ FewShared<W> shared;
  const int thread = threadIdx.x, m = thread / kWarp;
  {
    const AttendTile tile(sequences, Lists{}, shape.group, kFewQueries, blockIdx.x);
    know_queries(tile, shape, rotation, shared);
    if (thread == 0) {
      shared.sequence = tile.sequence, shared.count = tile.count, shared.splits = tile.count ? tile.splits() : 0;
      shared.place = tile.past;
    }
  }
  const bool can_be = sequences.can_be(), works = can_be && static_cast<int>(blockIdx.z) < shared.splits;
  uint4 key[W / kLanes];
  int split = static_cast<int>(blockIdx.z), seen = 0, known = 0;  // known: positions before the step's
  if (works) {
    if (m < shared.count) ask_for_vector<W>(1, norm), rotation.make_turns(shared.at[m], own_turns<W>());
    seen = shared.seen(shared.count - 1, split), known = max(0, min(shared.place - split * kSplit, seen));
    find_entries<W>(sequences, shape, split, shared);
    ask_for_split<W, false>(0, known, seen, keys, values, shared, key);
  }
  await_previous();
  if (!can_be) return sequences.tell();
  if (!works) return;
  if (m < shared.count) ask_for_vector<W>(0, q_gate + shared.head[m] * 2 * W);
  ask_for_split<W, false>(known, seen, seen, keys, values, shared, key);
  if (thread < kMakers) few_query<W>(rotation, shared.count, shared);
#pragma unroll 1
  for (;;) {
    if (thread == 0) shared.split = split;
    few_split<W>(keys, key, partials, shared);
    split = shared.split + static_cast<int>(gridDim.z);
    if (split >= shared.splits) break;
    find_entries<W>(sequences, shape, split, shared);
    seen = shared.seen(shared.count - 1, split);
    ask_for_split<W, true>(0, seen, seen, keys, values, shared, key);
  }
  if (thread == 0 && shared.bad >= 0) sequences.tell_page(shared.sequence, shared.bad);
  const int blocks = min(shared.splits, static_cast<int>(gridDim.z));
  if (is_last(partials.done + blockIdx.x * gridDim.y + blockIdx.y, static_cast<unsigned>(blocks)))
    few_merge<W>(shared.count, partials, q_gate, shared, y);
}

}  // namespace trigraph::TRIGRAPH_ISA
