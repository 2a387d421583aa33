// Scores of a tile's queries and a split's keys on a device.
#pragma once

#include "../cuda/last_block.cuh"
#include "device.cuh"
#include "pairs.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kSplit = 256;                     // positions that share one softmax
constexpr int kThreads = 256;                   // of a block: a warp for each query when queries are made and finished
constexpr int kMostQueries = kThreads / kWarp;  // of a tile
static_assert(kThreads == kSplit);
constexpr int kPairs = kLanes / 2, kSlots = kThreads / kPairs;  // two lanes a thread: so many positions at once

// Where element i of query m lies: what a thread reads for two queries is side by side, and what a warp reads too.
template <int Q>
__device__ __forceinline__ int query_at(int m, int i) {
  return (((i / kLanes * (Q / 2) + m / 2) * kPairs + i % kLanes / 2) * 2 + m % 2) * 2 + i % 2;
}

// One step of the tree that adds up the lanes of scores: of N sums in each of two threads, half stay in each.
template <int N>
__device__ __forceinline__ void halve(float2* sums, int lanes) {
  const bool upper = threadIdx.x & lanes;
#pragma unroll
  for (int n = 0; n < N / 2; ++n) {
    const float2 low = sums[n], high = sums[n + N / 2], mine = upper ? high : low, other = upper ? low : high;
    sums[n] = {mine.x + __shfl_xor_sync(kAllLanes, other.x, lanes),
               mine.y + __shfl_xor_sync(kAllLanes, other.y, lanes)};
  }
}

// Each score is a sum in kLanes lanes, added up as simd.h's reduce_add does. Keys go in steps of kSlots * kPositions
// positions and, in each, R rows of kLanes elements, which are read before those before them are used.
template <class T, int Q, int R>
class Scores {
 public:
  __device__ __forceinline__ Scores(const T* keys, const uint32_t* entry, int seen, int stride, int width)
      : keys_(keys), entry_(entry), steps_((seen + kStep - 1) / kStep), stride_(stride), rows_(width / kLanes) {}

  // weight[position][query] = score
  __device__ __forceinline__ void operator()(const float* query, float* weight) {
    locate(0);
    read(0);
    for (int step = 0; step < steps_; ++step) {
      float2 sums[kPositions * Q] = {};
      for (int first = 0; first < rows_; first += R) {
        Pair<T> now[kPositions * R];
#pragma unroll
        for (int n = 0; n < kPositions * R; ++n) now[n] = next_[n];
        const bool more = first + R < rows_;
        if (!more) locate(min(step + 1, steps_ - 1));
        read(more ? first + R : 0);
        add(now, query, first, sums);
      }
      write(step, sums, weight);
    }
  }

 private:
  static constexpr int kPositions = 16 / sizeof(Pair<T>), kStep = kSlots * kPositions;

  __device__ __forceinline__ void locate(int step) {
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      const int position = (step * kPositions + i) * kSlots + static_cast<int>(threadIdx.x) / kPairs;
      head_[i] = keys_ + uint64_t{entry_[position]} * static_cast<uint32_t>(stride_);
    }
  }
  __device__ __forceinline__ void read(int first) {
    const int column = threadIdx.x % kPairs * 2;
#pragma unroll
    for (int j = 0; j < R; ++j)
#pragma unroll
      for (int i = 0; i < kPositions; ++i) next_[i * R + j].read(head_[i] + first * Pair<T>::kRowSize, j, column);
  }
  __device__ __forceinline__ void add(const Pair<T>* keys, const float* query, int first, float2* sums) const {
    const float4* own = reinterpret_cast<const float4*>(query) + first * (Q / 2) * kPairs + threadIdx.x % kPairs;
#pragma unroll
    for (int j = 0; j < R; ++j) {
      float2 key[kPositions];
#pragma unroll
      for (int i = 0; i < kPositions; ++i) key[i] = keys[i * R + j].wide();
#pragma unroll
      for (int m = 0; m < Q; m += 2) {
        const float4 two = own[(j * (Q / 2) + m / 2) * kPairs];
#pragma unroll
        for (int i = 0; i < kPositions; ++i) {
          float2 &a = sums[i * Q + m], &b = sums[i * Q + m + 1];
          a = {fmaf(two.x, key[i].x, a.x), fmaf(two.y, key[i].y, a.y)};
          b = {fmaf(two.z, key[i].x, b.x), fmaf(two.w, key[i].y, b.y)};
        }
      }
    }
  }
  // A thread ends with some of the queries of one position.
  __device__ __forceinline__ void write(int step, float2* sums, float* weight) const {
    constexpr int kAll = kPositions * Q;
    halve<kAll>(sums, 4);
    halve<kAll / 2>(sums, 2);
    halve<kAll / 4>(sums, 1);
    const int thread = threadIdx.x;
    const int index = (thread & 4 ? kAll / 2 : 0) + (thread & 2 ? kAll / 4 : 0) + (thread & 1 ? kAll / 8 : 0);
    const int position = (step * kPositions + index / Q) * kSlots + thread / kPairs;
#pragma unroll
    for (int n = 0; n < kAll / 8; ++n) weight[position * Q + index % Q + n] = sums[n].x + sums[n].y;
  }

  const T* keys_;
  const uint32_t* entry_;
  int steps_, stride_, rows_;
  const T* head_[kPositions];
  Pair<T> next_[kPositions * R];
};

template <class T, int Q>
__device__ __forceinline__ void score(const T* keys, const uint32_t* entry, int seen, int stride, int width,
                                      const float* query, float* weight) {
  constexpr int kMany = 8, kFew = std::is_same_v<T, Q8> ? 2 : 1;  // rows; heads of any width are made of few
  if (width % (kMany * kLanes) == 0)
    Scores<T, Q, kMany>(keys, entry, seen, stride, width)(query, weight);
  else
    Scores<T, Q, kFew>(keys, entry, seen, stride, width)(query, weight);
}

}  // namespace trigraph::TRIGRAPH_ISA
