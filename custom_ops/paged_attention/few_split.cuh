// A split of attention of few rows: its keys are in registers and its values in shared memory. The sums are those of
// attend.cuh.
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

// Scores of a thread's position with the queries, and the largest ones of its warp. Even threads end with those of the
// first two queries, odd ones with the others.
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

}  // namespace trigraph::TRIGRAPH_ISA
