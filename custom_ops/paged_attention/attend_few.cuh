// Attention of few rows without lists over a cache of halves: a split's keys come to registers and its values to shared
// memory, all at once. Blocks take tiles and splits as in attend.cuh, with the same sums, and the last block of a tile
// merges.
#pragma once

#include "partials.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kFewThreads = 512;  // two for each position: of a row of kLanes elements a half each
constexpr int kHalf = kLanes / 2;
constexpr int kFewQueries = 4;  // of a tile

static_assert(kFewThreads == 2 * kSplit && kFewQueries == 4);

template <int W>
struct FewShared : Shared<kFewQueries> {
  static constexpr int kStride = kFewQueries * kHalf + 4;  // of half a row of all queries, in banks of its own
  __align__(16) float query[W / kHalf * kStride];          // [half row][query][element]
  __align__(8) float largest_of_warp[kFewThreads / kWarp][kFewQueries];  // of its positions
  float2 factor[kFewQueries][kWarp];                                     // of a query's splits: keep and take
};

// A split's values, [position][W], and of each query itself and the norm.
template <int W>
constexpr int kFewBytes = kSplit * W * 2 + 2 * kFewQueries * W * 4;

// Rows of a key that are asked for at once, and that after whose use the rest is: registers are few.
template <int W>
constexpr int kEarly = W < 128 ? W / kLanes : W / kLanes * 3 / 4;
template <int W>
constexpr int kLate = W < 128 ? -1 : W / kLanes / 4;

// Rows `begin` to `end` of the thread's half of a key.
template <int W>
__device__ __forceinline__ void read_key(const uint4* own_key, int begin, int end, uint4* key) {
#pragma unroll
  for (int j = begin; j < end; ++j) key[j] = own_key[2 * j];
}

// Scores of a thread's position with the queries, and the largest ones of its warp. Even threads
// end with those of the first two queries, odd ones with the others.
template <int W>
__device__ __forceinline__ void few_scores(const uint4* own_key, uint4* key, int count, int split,
                                           FewShared<W>& shared) {
  const int thread = threadIdx.x;
  const bool odd = thread % 2;
  const float* query = shared.query + odd * FewShared<W>::kStride;
  float sum[kFewQueries][kHalf] = {};
#pragma unroll
  for (int j = 0; j < W / kLanes; ++j) {
    if (j == kLate<W>) read_key<W>(own_key, kEarly<W>, W / kLanes, key);
    const uint32_t words[] = {key[j].x, key[j].y, key[j].z, key[j].w};
#pragma unroll
    for (int e = 0; e < kHalf; e += 4) {
      const float2 low = Pair<__half>{words[e / 2]}.wide(), high = Pair<__half>{words[e / 2 + 1]}.wide();
#pragma unroll
      for (int m = 0; m < kFewQueries; ++m) {
        const float4 q = *reinterpret_cast<const float4*>(query + 2 * j * FewShared<W>::kStride + m * kHalf + e);
        sum[m][e] = fmaf(q.x, low.x, sum[m][e]), sum[m][e + 1] = fmaf(q.y, low.y, sum[m][e + 1]);
        sum[m][e + 2] = fmaf(q.z, high.x, sum[m][e + 2]), sum[m][e + 3] = fmaf(q.w, high.y, sum[m][e + 3]);
      }
    }
  }
  const int first = odd * 2;
#pragma unroll
  for (int m = 0; m < 2; ++m) {  // adds up the lanes as simd.h's reduce_add does
#pragma unroll
    for (int e = 0; e < kHalf; ++e) {
      const float mine = odd ? sum[m + 2][e] : sum[m][e], other = odd ? sum[m][e] : sum[m + 2][e];
      sum[m][e] = mine + __shfl_xor_sync(kAllLanes, other, 1);
    }
#pragma unroll
    for (int n = kHalf / 2; n; n /= 2)
#pragma unroll
      for (int e = 0; e < n; ++e) sum[m][e] += sum[m][e + n];
    float most = first + m < count && thread / 2 < shared.seen(first + m, split) ? sum[m][0] : -INFINITY;
    for (int offset = kWarp / 2; offset > 1; offset /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
    if (thread % kWarp < 2) shared.largest_of_warp[thread / kWarp][first + m] = most;
  }
  *reinterpret_cast<float2*>(shared.weight + 2 * thread) = {sum[0][0], sum[1][0]};
}

// The thread's own scores to exp(score - largest).
template <int W>
__device__ __forceinline__ void few_weights(FewShared<W>& shared) {
  const int first = threadIdx.x % 2 * 2;
  auto* own = reinterpret_cast<float2*>(shared.weight + 2 * threadIdx.x);
  float2 most{-INFINITY, -INFINITY};
#pragma unroll
  for (int warp = 0; warp < kFewThreads / kWarp; ++warp) {
    const float2 other = *reinterpret_cast<const float2*>(shared.largest_of_warp[warp] + first);
    most = {fmaxf(most.x, other.x), fmaxf(most.y, other.y)};
  }
  const float2 score = *own;
  *own = {exp(score.x - most.x), exp(score.y - most.y)};
  if (threadIdx.x < 2) shared.largest[first] = most.x, shared.largest[first + 1] = most.y;
}

// The sum of query m's weights, by kLanes threads.
__device__ __forceinline__ void few_sum(int m, int count, int split, float* scalars, Shared<kFewQueries>& shared) {
  const int lane = threadIdx.x % kLanes, seen = m < count ? shared.seen(m, split) : 0;
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kSplit / kLanes; ++n) {
    const int position = n * kLanes + lane;
    const float weight = shared.weight[position * kFewQueries + m];
    sum = position < seen ? sum + weight : sum;
  }
  sum = lane_sum(sum, kLanes);
  if (lane == 0) scalars[m] = shared.largest[m], scalars[kFewQueries + m] = sum;
}

// Two columns of the split's weighted values, to where the tile's last block finds them.
template <int W>
__device__ __forceinline__ void few_values(int count, int split, const Shared<kFewQueries>& shared,
                                           const uint32_t* values, float* partial) {
  const int column = threadIdx.x;
  const int last = shared.seen(count - 1, split), all = shared.seen(0, split);
  float2 sum[kFewQueries] = {};
  int position = 0;
  const auto add = [&](auto&& sees) {
    const float2 x = Pair<__half>{values[position * (W / 2) + column]}.wide();
    const float4 four = *reinterpret_cast<const float4*>(shared.weight + position * kFewQueries);
    const float by[] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int m = 0; m < kFewQueries; ++m)
      if (sees(m)) sum[m] = {fmaf(by[m], x.x, sum[m].x), fmaf(by[m], x.y, sum[m].y)};
  };
#pragma unroll 8
  for (; position < all; ++position) add([](int) { return true; });
#pragma unroll 1
  for (; position < last; ++position) add([&](int m) { return m < count && position < shared.seen(m, split); });
#pragma unroll
  for (int m = 0; m < kFewQueries; ++m)
    if (m < count) *reinterpret_cast<float2*>(partial + m * W + 2 * column) = sum[m];
}

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

// Begins to copy the warp's query and the norm to `own` [2 W].
template <int W>
__device__ __forceinline__ void ask_for_query(const float* query, const float* norm, float* own) {
  for (int i = threadIdx.x % kWarp * 4; i < W; i += 4 * kWarp) {
    copy_ahead(own + i, query + i);
    copy_ahead(own + W + i, norm + i);
  }
  end_copies();
}

// The query, normed, rotated and scaled, to where scores read it, by its warp.
template <int W>
__device__ __forceinline__ void few_query(const Rotation& rotation, int count, float* own, FewShared<W>& shared) {
  const int m = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const float scale = 1.0f / sqrtf(static_cast<float>(W));
  await_copies(0);
  __syncwarp();
  if (m < count) norm_rotate(own, own + W, rotation, shared.at[m], W, scale, own);
  float* to = shared.query + lane / kHalf * FewShared<W>::kStride + m * kHalf + lane % kHalf;
#pragma unroll
  for (int i = 0; i < W / kWarp; ++i)
    to[i * (kWarp / kHalf) * FewShared<W>::kStride] = m < count ? own[i * kWarp + lane] : 0.0f;
}

// One split of a tile; the whole block calls. The first warps make the
// queries, the others bring the values.
template <int W>
__device__ __forceinline__ void few_split(const Ragged& sequences, const Rotation& rotation,
                                          const AttentionShape& shape, const AttendTile& tile, int split, bool begins,
                                          const __half* keys, const __half* values, const Partials& partials,
                                          FewShared<W>& shared) {
  constexpr int kMakers = kFewQueries * kWarp, kPieces = W / 8;
  const int thread = threadIdx.x, count = tile.count, seen = shared.seen(count - 1, split);
  auto* own_values = reinterpret_cast<uint4*>(shared_memory());
  auto* scratch = reinterpret_cast<float*>(own_values + kSplit * kPieces);
  if (thread < seen) {
    const int64_t entry = sequences.entry(tile.sequence, int64_t{split} * kSplit + thread, shared.bad);
    shared.entry[thread] = static_cast<uint32_t>(entry * shape.kv_heads) + blockIdx.y;
  }
  __syncthreads();
  uint4 key[W / kLanes];
  const auto* own_key =
      reinterpret_cast<const uint4*>(keys + uint64_t{shared.entry[min(thread / 2, seen - 1)]} * W) + thread % 2;
  read_key<W>(own_key, 0, kEarly<W>, key);
  if (thread < kMakers) {
    if (begins) few_query<W>(rotation, count, scratch + thread / kWarp * 2 * W, shared);
  } else {
    for (int i = thread - kMakers; i < seen * kPieces; i += kFewThreads - kMakers)
      copy_ahead(own_values + i,
                 reinterpret_cast<const uint4*>(values + uint64_t{shared.entry[i / kPieces]} * W) + i % kPieces);
    end_copies();
  }
  __syncthreads();
  few_scores<W>(own_key, key, count, split, shared);
  __syncthreads();
  few_weights<W>(shared);
  await_copies(0);
  __syncthreads();
  float* partial = partials.at<kFewQueries>(W, split);
  if (thread < W / 2)
    few_values<W>(count, split, shared, reinterpret_cast<const uint32_t*>(own_values), partial);
  else if (const int m = (thread - W / 2) / kLanes; m < kFewQueries)
    few_sum(m, count, split, partial + kFewQueries * W, shared);
}

// grid: [tiles, kv heads, splits that are walked at once].
template <int W>
__global__ void __launch_bounds__(kFewThreads, 1)
    attend_few(Ragged sequences, Rotation rotation, AttentionShape shape, const float* q_gate, const float* norm,
               const __half* keys, const __half* values, Partials partials, float* y) {
  allow_next();
  __shared__ FewShared<W> shared;
  const int thread = threadIdx.x, begin = static_cast<int>(blockIdx.z);
  if (8 * thread < sequences.sequences * sequences.columns) prefetch(sequences.table + 8 * thread);
  await_previous();
  const AttendTile tile(sequences, Lists{}, shape.group, kFewQueries, blockIdx.x);
  const int count = tile.count, splits = tile.splits();
  const bool first_block = !blockIdx.x && !blockIdx.y && !blockIdx.z;  // tells what is wrong with the step
  if (!first_block && (!count || splits <= begin)) return;
  know_queries(tile, shape, rotation, shared);
  if (!sequences.holds() || !count) return;
  if (const int m = thread / kWarp; m < count) {
    auto* scratch = reinterpret_cast<float*>(shared_memory() + kSplit * W * 2);
    ask_for_query<W>(q_gate + shared.head[m] * 2 * W, norm, scratch + m * 2 * W);
  }
  for (int split = begin; split < splits; split += static_cast<int>(gridDim.z)) {
    few_split<W>(sequences, rotation, shape, tile, split, split == begin, keys, values, partials, shared);
    __syncthreads();
  }
  if (thread == 0 && shared.bad >= 0) sequences.tell_page(tile.sequence, shared.bad);
  const int blocks = min(splits, static_cast<int>(gridDim.z));
  if (is_last(partials.done + blockIdx.x * gridDim.y + blockIdx.y, static_cast<unsigned>(blocks)))
    few_merge<W>(count, partials, q_gate, shared, y);
}

}  // namespace trigraph::TRIGRAPH_ISA
