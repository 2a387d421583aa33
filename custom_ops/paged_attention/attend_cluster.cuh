// Attention of few rows as attend_few.cuh has it, by clusters of four blocks: for a split, each makes the scores of a
// quarter of its positions with eight queries, reads the others', and adds up a quarter of the values' columns. All
// sums are those of attend_few.cuh. From the weights on, a block is like one of attend_few that has its columns alone.
#pragma once

#include "../cuda/cluster.cuh"
#include "attend_few.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kRanks = 4;
constexpr int kClusterThreads = 256;  // four for each of the block's positions: two for four queries
constexpr int kClusterQueries = 8;
constexpr int kOwnPositions = kSplit / kRanks;

static_assert(kClusterThreads == kSplit && kClusterThreads == 4 * kOwnPositions);
static_assert(kClusterThreads == kWarp * kClusterQueries);

template <int W>
struct ClusterShared : Shared<kClusterQueries> {
  static constexpr int kColumns = W / kRanks;
  static constexpr int kWarps = kClusterThreads / kWarp;
  __align__(16) float query[2][W / kHalf * FewShared<W>::kStride];  // as FewShared has them, of four queries each
  __align__(16) float score[kOwnPositions][kClusterQueries];
  float largest_of_warp[kWarps][kClusterQueries];         // of its positions
  __align__(16) uint4 values[kSplit][kColumns / 8];       // of the split, the block's columns
  __align__(16) float own_query[kClusterQueries][2 * W];  // a warp's query and the norm
  float2 factor[kClusterQueries][kWarp];                  // see few_merge
  bool last;
};

// Scores of the block's positions, and the largest ones of each warp.
template <int W>
__device__ __forceinline__ void cluster_scores(const uint4* own_key, uint4* key, int count, int split, int rank,
                                               ClusterShared<W>& shared) {
  const int thread = threadIdx.x, four = thread / 2 % 2, first = 4 * four + thread % 2 * 2;
  const int position = rank * kOwnPositions + thread / 4;
  const float2 score = four_scores<W>(own_key, key, shared.query[four] + thread % 2 * FewShared<W>::kStride);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const float own = m ? score.y : score.x;
    float most = first + m < count && position < shared.seen(first + m, split) ? own : -INFINITY;
    for (int offset = kWarp / 2; offset > 2; offset /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
    if (thread % kWarp < 4) shared.largest_of_warp[thread / kWarp][first + m] = most;
  }
  *reinterpret_cast<float2*>(shared.score[thread / 4] + first) = score;
}

// All blocks' scores of a split to the weights of eight queries, a position a thread.
template <int W>
__device__ __forceinline__ void cluster_weights(ClusterShared<W>& shared) {
  const int thread = threadIdx.x, m = thread / kWarp, lane = thread % kWarp;
  const float* score = of_rank(shared.score[thread % kOwnPositions], thread / kOwnPositions);
  const float4 low = reinterpret_cast<const float4*>(score)[0], high = reinterpret_cast<const float4*>(score)[1];
  constexpr int kWarps = ClusterShared<W>::kWarps;
  static_assert(kRanks * kWarps == kWarp);
  const float most = lane_max(*of_rank(shared.largest_of_warp[lane % kWarps] + m, lane / kWarps));
  if (lane == 0) shared.largest[m] = most;
  cluster_arrive();  // the block reads nothing of the others any more
  __syncthreads();
  const float* largest = shared.largest;
  auto* weight = reinterpret_cast<float4*>(shared.weight + thread * kClusterQueries);
  weight[0] = {exp(low.x - largest[0]), exp(low.y - largest[1]), exp(low.z - largest[2]), exp(low.w - largest[3])};
  weight[1] = {exp(high.x - largest[4]), exp(high.y - largest[5]), exp(high.z - largest[6]), exp(high.w - largest[7])};
}

// Two columns of two queries' weighted values, by the first half of the threads for heads of 256.
template <int W>
__device__ __forceinline__ void cluster_values(int count, int split, const ClusterShared<W>& shared, float* partial) {
  constexpr int kPairs = ClusterShared<W>::kColumns / 2;
  const int column = threadIdx.x % kPairs, first = threadIdx.x / kPairs * 2;
  const auto* values = reinterpret_cast<const uint32_t*>(shared.values);
  const int seen[] = {first < count ? shared.seen(first, split) : 0,
                      first + 1 < count ? shared.seen(first + 1, split) : 0};
  const int all = first + 1 < count ? min(seen[0], seen[1]) : seen[0], last = max(seen[0], seen[1]);
  float2 sum[2] = {};
  int position = 0;
  const auto add = [&](auto&& sees) {
    const float2 x = Pair<__half>{values[position * kPairs + column]}.wide();
    const float2 by = *reinterpret_cast<const float2*>(shared.weight + position * kClusterQueries + first);
    if (sees(0)) sum[0] = {fmaf(by.x, x.x, sum[0].x), fmaf(by.x, x.y, sum[0].y)};
    if (sees(1)) sum[1] = {fmaf(by.y, x.x, sum[1].x), fmaf(by.y, x.y, sum[1].y)};
  };
#pragma unroll 8
  for (; position < all; ++position) add([](int) { return true; });
#pragma unroll 1
  for (; position < last; ++position) add([&](int m) { return position < seen[m]; });
#pragma unroll
  for (int m = 0; m < 2; ++m)
    if (first + m < count) *reinterpret_cast<float2*>(partial + (first + m) * 2 * kPairs + 2 * column) = sum[m];
}

// One split of a tile; the whole cluster calls.
template <int W>
__device__ __forceinline__ void cluster_split(const Ragged& sequences, const Rotation& rotation,
                                              const AttentionShape& shape, const AttendTile& tile, int split,
                                              bool begins, const __half* keys, const __half* values,
                                              const Partials& partials, ClusterShared<W>& shared) {
  constexpr int kColumns = ClusterShared<W>::kColumns, kPieces = kColumns / 8, kValueThreads = 2 * kColumns;
  const int thread = threadIdx.x, count = tile.count, seen = shared.seen(count - 1, split);
  const int rank = static_cast<int>(blockIdx.x) % kRanks;
  if (thread < seen) {
    const int64_t entry = sequences.entry(tile.sequence, int64_t{split} * kSplit + thread, shared.bad);
    shared.entry[thread] = static_cast<uint32_t>(entry * shape.kv_heads) + blockIdx.y;
  }
  __syncthreads();
  uint4 key[W / kLanes];
  const int position = min(rank * kOwnPositions + thread / 4, seen - 1);
  const auto* own_key = reinterpret_cast<const uint4*>(keys + uint64_t{shared.entry[position]} * W) + thread % 2;
  read_key<W>(own_key, 0, kEarly<W>, key);
  for (int i = thread; i < seen * kPieces; i += kClusterThreads)
    copy_ahead(&shared.values[i / kPieces][i % kPieces],
               values + uint64_t{shared.entry[i / kPieces]} * W + rank * kColumns + i % kPieces * 8);
  end_copies();
  if (const int m = thread / kWarp; begins)
    few_query<W>(rotation, m < count, shared.at[m], shared.own_query[m], shared.query[m / 4] + m % 4 * kHalf);
  __syncthreads();
  cluster_scores<W>(own_key, key, count, split, rank, shared);
  cluster_arrive();
  cluster_wait();
  cluster_weights<W>(shared);
  await_copies(0);
  __syncthreads();
  float* partial = partials.at<kClusterQueries>(kColumns, split);
  if (thread < kValueThreads)
    cluster_values<W>(count, split, shared, partial);
  else if (const int m = (thread - kValueThreads) / kLanes; m < kClusterQueries)
    few_sum(m, count, split, partial + kClusterQueries * kColumns, shared);
  cluster_wait();
}

// grid: [tiles x blocks of a cluster, kv heads, splits that are walked at once]; all shared memory is dynamic.
template <int W>
__global__ void __maxnreg__(160)
    attend_cluster(Ragged sequences, Rotation rotation, AttentionShape shape, const float* q_gate, const float* norm,
                   const __half* keys, const __half* values, Partials partials, float* y) {
  allow_next();
  if constexpr (!kCanBeginEarly) return;  // before sm_90
  auto& shared = *reinterpret_cast<ClusterShared<W>*>(shared_memory());
  const int thread = threadIdx.x, begin = static_cast<int>(blockIdx.z);
  if (8 * thread < sequences.sequences * sequences.columns) prefetch(sequences.table + 8 * thread);
  await_previous();
  const AttendTile tile(sequences, Lists{nullptr, 0, 0}, shape.group, kClusterQueries, blockIdx.x / kRanks);
  const int count = tile.count, splits = tile.splits();
  const bool first_block = !blockIdx.x && !blockIdx.y && !blockIdx.z;  // tells what is wrong with the step
  if (!first_block && (!count || splits <= begin)) return;
  know_queries(tile, shape, rotation, shared);
  if (!sequences.holds() || !count) return;
  if (const int m = thread / kWarp; m < count)
    ask_for_query<W>(q_gate + shared.head[m] * 2 * W, norm, shared.own_query[m]);
  for (int split = begin; split < splits; split += static_cast<int>(gridDim.z))
    cluster_split<W>(sequences, rotation, shape, tile, split, split == begin, keys, values, partials, shared);
  if (thread == 0 && shared.bad >= 0) sequences.tell_page(tile.sequence, shared.bad);
  const int blocks = min(splits, static_cast<int>(gridDim.z));
  if (is_last(partials.done + blockIdx.x * gridDim.y + blockIdx.y, static_cast<unsigned>(blocks), shared.last))
    few_merge<kClusterQueries, W, W / kRanks>(count, partials, q_gate, blockIdx.x % kRanks * (W / kRanks),
                                              shared.factor, shared, y);
}

}  // namespace trigraph::TRIGRAPH_ISA
