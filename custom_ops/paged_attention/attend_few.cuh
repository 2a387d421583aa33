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
  int split;  // at work; in a register it would be in the way
};

// A split's values, [position][W], and of each query itself, the norm, and what turns pairs.
template <int W>
constexpr int kFewBytes = kSplit * W * 2 + 3 * kFewQueries * W * 4;

// Rows of a key that are asked for at once, and that after whose use the rest is: registers are few.
template <int W>
constexpr int kEarly = W < 128 ? W / kLanes : W / kLanes * 5 / 8;
template <int W>
constexpr int kLate = W < 128 ? -1 : W / kLanes / 4;

// threadIdx.x, of which the compiler makes nothing ahead of a loop: registers are few.
__device__ __forceinline__ int fresh_thread() {
  int thread = threadIdx.x;
#if defined(__CUDACC__)
  asm volatile("" : "+r"(thread));
#endif
  return thread;
}

// The thread's half of an entry's key: of each row of kLanes elements one.
template <int W>
__device__ __forceinline__ const uint4* key_of(const __half* keys, uint32_t entry) {
  return reinterpret_cast<const uint4*>(keys + uint64_t{entry} * W) + threadIdx.x % 2;
}

// Rows `begin` to `end` of the thread's half of a key.
template <int W>
__device__ __forceinline__ void read_key(const uint4* own_key, int begin, int end, uint4* key) {
#pragma unroll
  for (int j = begin; j < end; ++j) key[j] = own_key[2 * j];
}

// Scores of a thread's position with the queries, and the largest ones of its warp. Even threads
// end with those of the first two queries, odd ones with the others.
template <int W>
__device__ __forceinline__ void few_scores(const __half* keys, uint4* key, FewShared<W>& shared) {
  const int thread = fresh_thread();
  const bool odd = thread % 2;
  const float* query = shared.query + odd * FewShared<W>::kStride;
  float sum[kFewQueries][kHalf] = {};
#pragma unroll
  for (int j = 0; j < W / kLanes; ++j) {
    if (j == kLate<W>) {
      const int last = shared.seen(shared.count - 1, shared.split) - 1;
      read_key<W>(key_of<W>(keys, shared.entry[min(fresh_thread() / 2, last)]), kEarly<W>, W / kLanes, key);
    }
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
    float most =
        first + m < shared.count && fresh_thread() / 2 < shared.seen(first + m, shared.split) ? sum[m][0] : -INFINITY;
    for (int offset = kWarp / 2; offset > 1; offset /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
    if (thread % kWarp < 2) shared.largest_of_warp[thread / kWarp][first + m] = most;
  }
  *reinterpret_cast<float2*>(shared.weight + 2 * fresh_thread()) = {sum[0][0], sum[1][0]};
}

// The thread's own scores to exp(score - largest).
template <int W>
__device__ __forceinline__ void few_weights(FewShared<W>& shared) {
  const int thread = fresh_thread(), first = thread % 2 * 2;
  auto* own = reinterpret_cast<float2*>(shared.weight + 2 * thread);
  float2 most{-INFINITY, -INFINITY};
#pragma unroll
  for (int warp = 0; warp < kFewThreads / kWarp; ++warp) {
    const float2 other = *reinterpret_cast<const float2*>(shared.largest_of_warp[warp] + first);
    most = {fmaxf(most.x, other.x), fmaxf(most.y, other.y)};
  }
  const float2 score = *own;
  *own = {exp(score.x - most.x), exp(score.y - most.y)};
  if (thread < 2) shared.largest[first] = most.x, shared.largest[first + 1] = most.y;
}

// The sum of query m's weights, by kLanes threads.
__device__ __forceinline__ void few_sum(int m, int count, int split, float* scalars, Shared<kFewQueries>& shared) {
  const int lane = fresh_thread() % kLanes, seen = m < count ? shared.seen(m, split) : 0;
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
  const int column = fresh_thread();
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

// One split of a tile, whose keys and values are on their way; the whole block calls.
template <int W>
__device__ __forceinline__ void few_split(const __half* keys, uint4* key, const Partials& partials,
                                          FewShared<W>& shared) {
  __syncthreads();
  few_scores<W>(keys, key, shared);
  __syncthreads();
  few_weights<W>(shared);
  await_copies(0);
  __syncthreads();
  const int thread = fresh_thread();
  float* partial = partials.at<kFewQueries>(W, shared.split);
  if (thread < W / 2)
    few_values<W>(shared.count, shared.split, shared, reinterpret_cast<const uint32_t*>(shared_memory()), partial);
  else if (const int m = (thread - W / 2) / kLanes; m < kFewQueries)
    few_sum(m, shared.count, shared.split, partial + kFewQueries * W, shared);
  __syncthreads();
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
