// Scores of a tile's queries and a split's keys on a device.
#pragma once

#include "../cuda/last_block.cuh"
#include "heads.cuh"
#include "int8_scores.cuh"
#include "pairs.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kSplit = 256;                     // positions that share one softmax
constexpr int kThreads = 256;                   // of a block: a warp for each query when queries are made and finished
constexpr int kMostQueries = kThreads / kWarp;  // of a tile
constexpr int kManyQueries = 2 * kMostQueries;  // of a tile of long prompts
static_assert(kThreads == kSplit);
constexpr int kStagedWidth = 512;  // of heads whose keys go through shared memory, at most,
constexpr int kStagedStep = 64;    // and what divides it
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

// The sums of P positions, kSlots apart, with Q queries: of two of kLanes lanes in each thread.
template <int P, int Q>
struct ScoreSums {
  float2 sum[P * Q] = {};

  // `query`: of the same row of kLanes elements as the keys.
  __device__ __forceinline__ void add(const float2* key, const float* query) {
    const float4* own = reinterpret_cast<const float4*>(query) + threadIdx.x % kPairs;
#pragma unroll
    for (int m = 0; m < Q; m += 2) {
      const float4 two = own[m / 2 * kPairs];
#pragma unroll
      for (int i = 0; i < P; ++i) {
        float2 &a = sum[i * Q + m], &b = sum[i * Q + m + 1];
        a = {fmaf(two.x, key[i].x, a.x), fmaf(two.y, key[i].y, a.y)};
        b = {fmaf(two.z, key[i].x, b.x), fmaf(two.w, key[i].y, b.y)};
      }
    }
  }
  // Adds up the lanes as simd.h's reduce_add does; a thread ends with some of the queries of one position.
  __device__ __forceinline__ void write(int step, float* weight) {
    constexpr int kAll = P * Q;
    halve<kAll>(sum, 4);
    halve<kAll / 2>(sum, 2);
    halve<kAll / 4>(sum, 1);
    const int thread = threadIdx.x;
    const int index = (thread & 4 ? kAll / 2 : 0) + (thread & 2 ? kAll / 4 : 0) + (thread & 1 ? kAll / 8 : 0);
    const int position = (step * P + index / Q) * kSlots + thread / kPairs;
#pragma unroll
    for (int n = 0; n < kAll / 8; ++n) weight[position * Q + index % Q + n] = sum[n].x + sum[n].y;
  }
};

// Keys go through shared memory, which takes kStageBytes of each of a step's positions at once: the block reads whole
// lines, and what comes next while it uses what is there.
template <class T, int Q>
class StagedScores {
 public:
  static constexpr int kPositions = Q > kMostQueries ? 2 : 4, kStep = kSlots * kPositions;
  static constexpr int kStageBytes = 128, kStride = kStageBytes + 32;  // positions of a warp in banks of their own
  static constexpr int kBytes = kStep * kStride;

  __device__ __forceinline__ StagedScores(const T* keys, const uint32_t* entry, int seen, int stride, int width,
                                          char* stage)
      : keys_(keys),
        entry_(entry),
        steps_((seen + kStep - 1) / kStep),
        stride_(stride),
        stages_(width / kStageWidth),
        stage_(stage) {}

  // weight[position][query] = score
  __device__ __forceinline__ void operator()(const float* query, float* weight) {
    const int slot = static_cast<int>(threadIdx.x) / kPairs, column = threadIdx.x % kPairs * 2;
    read(0, 0);
    for (int step = 0; step < steps_; ++step) {
      ScoreSums<kPositions, Q> sums;
      for (int stage = 0; stage < stages_; ++stage) {
        __syncthreads();
        put();
        __syncthreads();
        if (stage + 1 < stages_)
          read(step, stage + 1);
        else if (step + 1 < steps_)
          read(step + 1, 0);
#pragma unroll kUnrolled
        for (int j = 0; j < kStageWidth / kLanes; ++j) {
          float2 key[kPositions];
#pragma unroll
          for (int i = 0; i < kPositions; ++i) {
            Pair<T> pair;
            pair.read(reinterpret_cast<const T*>(stage_ + (i * kSlots + slot) * kStride), j, column);
            key[i] = pair.wide();
          }
          sums.add(key, query + (stage * (kStageWidth / kLanes) + j) * kLanes * Q);
        }
      }
      sums.write(step, weight);
    }
  }

 private:
  static constexpr int kStageWidth = kStageBytes / sizeof(T), kVector = 16 / sizeof(T);
  static constexpr int kUnrolled = Q > kMostQueries || sizeof(T) > 2 ? 1 : 4;  // else registers do not suffice

  __device__ __forceinline__ void read(int step, int stage) {
    const int slot = static_cast<int>(threadIdx.x) / kPairs, at = stage * kStageWidth + threadIdx.x % kPairs * kVector;
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      const uint64_t head = entry_[(step * kPositions + i) * kSlots + slot];
      next_[i] = *reinterpret_cast<const uint4*>(keys_ + head * static_cast<uint32_t>(stride_) + at);
    }
  }
  __device__ __forceinline__ void put() const {
    const int slot = static_cast<int>(threadIdx.x) / kPairs, at = threadIdx.x % kPairs * 16;
#pragma unroll
    for (int i = 0; i < kPositions; ++i)
      *reinterpret_cast<uint4*>(stage_ + (i * kSlots + slot) * kStride + at) = next_[i];
  }

  const T* keys_;
  const uint32_t* entry_;
  int steps_, stride_, stages_;
  char* stage_;
  uint4 next_[kPositions];
};

// Keys go to registers: in steps of kSlots * kPositions positions and, in each, rows of kLanes elements, of which the
// next one is read before the last is used.
template <class T, int Q>
class Scores {
 public:
  __device__ __forceinline__ Scores(const T* keys, const uint32_t* entry, int seen, int stride, int width)
      : keys_(keys), entry_(entry), steps_((seen + kStep - 1) / kStep), stride_(stride), rows_(width / kLanes) {}

  // weight[position][query] = score
  __device__ __forceinline__ void operator()(const float* query, float* weight) {
    locate(0);
    read(0);
    for (int step = 0; step < steps_; ++step) {
      ScoreSums<kPositions, Q> sums;
      for (int row = 0; row < rows_; ++row) {
        Pair<T> now[kPositions];
#pragma unroll
        for (int i = 0; i < kPositions; ++i) now[i] = next_[i];
        const bool more = row + 1 < rows_;
        if (!more) locate(min(step + 1, steps_ - 1));
        read(more ? row + 1 : 0);
        float2 key[kPositions];
#pragma unroll
        for (int i = 0; i < kPositions; ++i) key[i] = now[i].wide();
        sums.add(key, query + row * kLanes * Q);
      }
      sums.write(step, weight);
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
  __device__ __forceinline__ void read(int row) {
    const int column = threadIdx.x % kPairs * 2;
#pragma unroll
    for (int i = 0; i < kPositions; ++i) next_[i].read(head_[i], row, column);
  }

  const T* keys_;
  const uint32_t* entry_;
  int steps_, stride_, rows_;
  const T* head_[kPositions];
  Pair<T> next_[kPositions];
};

// Whether heads go through shared memory, and leave room for queries and values there.
__device__ __forceinline__ bool staged(int width) { return width % kStagedStep == 0 && width <= kStagedWidth; }

// `stage`: of StagedScores.
template <class T, int Q>
__device__ __forceinline__ void score(const T* keys, const uint32_t* entry, int seen, int stride, int width,
                                      const float* query, char* stage, float* weight) {
  if constexpr (std::is_same_v<T, Q8>) {
    if (Q <= kMostQueries && !aligned_blocks(width))
      return int8_scores<Q, false>(keys, entry, seen, stride, width, query, weight);
    int8_scores<Q, true>(keys, entry, seen, stride, width, query, weight);
  } else {
    if (Q > kMostQueries || staged(width))
      return StagedScores<T, Q>(keys, entry, seen, stride, width, stage)(query, weight);
    if constexpr (Q <= kMostQueries) Scores<T, Q>(keys, entry, seen, stride, width)(query, weight);
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
