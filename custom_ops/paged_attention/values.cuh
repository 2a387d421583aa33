// The weighted sums of a split's values on a device, one chain of fma over positions for each column of each query.
#pragma once

#include "attend.cuh"
#include "block_pair.cuh"

namespace trigraph::TRIGRAPH_ISA {

// Merges two columns of N queries' sums over a split, from query `begin` on, into `total` [Q][width].
template <int Q, int N>
__device__ __forceinline__ void keep_values(int width, int count, int split, bool first, const Shared<Q>& shared,
                                            int begin, int column, const float2 (&sums)[N], float* total) {
#pragma unroll
  for (int m = 0; m < N; ++m) {
    if (begin + m >= count || !shared.seen(begin + m, split)) continue;
    float2& sum = *reinterpret_cast<float2*>(total + (begin + m) * width + column);
    const float keep = shared.keep[begin + m], take = shared.take[begin + m];
    sum = first ? sums[m] : float2{fmaf(sum.x, keep, sums[m].x * take), fmaf(sum.y, keep, sums[m].y * take)};
  }
}

// The bytes of the values that a thread reads together. Before sm_90, 64 take too many registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kAheadBytes = 32;
#else
constexpr int kAheadBytes = 64;
#endif

// The weighted sum of two columns of the values for four of the tile's queries, over a split.
template <class T>
struct ValueSums {
  static constexpr int kQueries = 4, kAhead = kAheadBytes / sizeof(Pair<T>);  // positions read together
  float2 sum[kQueries] = {};

  // kWhole: all queries see all kAhead positions. What lies behind a query's position must not touch its bits.
  template <bool kWhole>
  __device__ __forceinline__ void add(const Pair<T>* value, const float* weight, int step, const int* seen) {
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const float2 x = value[n].wide();
      const float4 four = *reinterpret_cast<const float4*>(weight + n * step);
      const float by[kQueries] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int m = 0; m < kQueries; ++m)
        if (kWhole || n < seen[m]) sum[m] = {fmaf(by[m], x.x, sum[m].x), fmaf(by[m], x.y, sum[m].y)};
    }
  }
};

// Adds a split's weighted values to `total` [Q][width].
template <class T, int Q>
__device__ __forceinline__ void add_values(const AttentionShape& shape, int count, const T* values, int split,
                                           bool first, const Shared<Q>& shared, float* total) {
  using Sums = ValueSums<T>;
  constexpr int kQueries = Sums::kQueries, kAhead = Sums::kAhead;
  const int last = shared.seen(count - 1, split), all = shared.seen(0, split), pairs = shape.width / 2;
  for (int task = threadIdx.x; task < Q / kQueries * pairs; task += kThreads) {
    const int begin = task / pairs * kQueries, column = task % pairs * 2;
    const auto read = [&](int from, Pair<T>* out) {
#pragma unroll
      for (int n = 0; n < kAhead; ++n)
        out[n].read(values + uint64_t{shared.entry[from + n]} * static_cast<uint32_t>(shape.stride), column / kLanes,
                    column % kLanes);
    };
    Sums sums;
    Pair<T> next[kAhead];
    read(0, next);
    for (int from = 0; from < last; from += kAhead) {
      Pair<T> now[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) now[n] = next[n];
      if (from + kAhead < last) read(from + kAhead, next);
      const float* weight = shared.weight + from * Q + begin;
      if (from + kAhead <= all) {
        sums.template add<true>(now, weight, Q, nullptr);
      } else {
        int seen[kQueries];
#pragma unroll
        for (int m = 0; m < kQueries; ++m) seen[m] = begin + m < count ? shared.seen(begin + m, split) - from : 0;
        sums.template add<false>(now, weight, Q, seen);
      }
    }
    keep_values<Q>(shape.width, count, split, first, shared, begin, column, sums.sum, total);
  }
}

// Values in Q8_0 blocks go through shared memory as floats: each is read and widened once for all queries.
template <int Q, bool kAligned>
class StagedValues {
 public:
  static constexpr int kTogether =
      16;  // positions that are in shared memory at once, with a pair's lanes for each thread
  static constexpr int kPairs = kThreads / kTogether / kPairLanes, kPairWidth = 2 * kQ8Width;
  static constexpr int kColumns = kPairs * kPairWidth;
  static constexpr int kBytes = kTogether * kColumns * static_cast<int>(sizeof(float));

  // Of columns `slab` to slab + kColumns.
  __device__ __forceinline__ StagedValues(const AttentionShape& shape, const Q8* values, const uint32_t* entry,
                                          int slab, float* stage)
      : values_(values), entry_(entry), stride_(shape.stride), slab_(slab), stage_(stage) {}

  __device__ __forceinline__ void operator()(int width, int count, int split, bool first, const Shared<Q>& shared,
                                             float* total) {
    const int half = min(kColumns, width - slab_) / 2;
    const int begin = static_cast<int>(threadIdx.x) / half * kOwn, column = static_cast<int>(threadIdx.x) % half * 2;
    const int last = shared.seen(count - 1, split), all = shared.seen(0, split);
    const float* own = stage_ + at(column / kPairWidth, pair_place(column / kQ8Width, column % kQ8Width) +
                                                            column % kPairWidth / kQ8Width * kQ8Width);
    float2 sums[kOwn] = {};
    read(0);
    for (int from = 0; from < last; from += kTogether) {
      __syncthreads();
      put<0>();
      put<1>();
      __syncthreads();
      if (from + kTogether < last) read(from + kTogether);
      if (begin >= Q) continue;
      const float* weight = shared.weight + from * Q + begin;
      if (from + kTogether <= all) {
        add<true>(own, weight, nullptr, sums);
      } else {
        int seen[kOwn];
#pragma unroll
        for (int m = 0; m < kOwn; ++m) seen[m] = begin + m < count ? shared.seen(begin + m, split) - from : 0;
        add<false>(own, weight, seen, sums);
      }
    }
    if (begin < Q) keep_values<Q>(width, count, split, first, shared, begin, slab_ + column, sums, total);
  }

 private:
  static constexpr int kOwn = Q > 8 ? 8 : 4;  // queries of a thread

  // Where a position has a code of a pair; lanes write without conflicts.
  __device__ __forceinline__ static int at(int pair, int place) { return pair * kPairWidth + (place ^ pair % 2 * 16); }
  __device__ __forceinline__ static int position() { return threadIdx.x / (kPairs * kPairLanes); }
  __device__ __forceinline__ static int pair() { return threadIdx.x / kPairLanes % kPairs; }
  __device__ __forceinline__ static int lane() { return threadIdx.x % kPairLanes; }

  __device__ __forceinline__ void read(int from) {
    const Q8* head = values_ + uint64_t{entry_[from + position()]} * static_cast<uint32_t>(stride_);
    const int block = slab_ / kQ8Width + 2 * pair();
    if (block * kQ8Bytes < stride_) next_.read(head, block, lane(), stride_);
  }
  template <int kSecond>
  __device__ __forceinline__ void put() const {
    uint32_t word[2];
    next_.template codes<kSecond>(lane(), word);
    const float d = next_.template d<kSecond>();
    float* to = stage_ + position() * kColumns;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint32_t shifted = word[n] ^ 0x80808080;  // the code and 128
      float x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        x[k] = d * (__uint_as_float(__byte_perm(shifted, 0x4b000000, 0x7440 + k)) - 8388736.0f);
      *reinterpret_cast<float4*>(to + at(pair(), kSecond * kQ8Width + 16 * n + 4 * lane())) = {x[0], x[1], x[2], x[3]};
    }
  }
  // kWhole: all queries see all positions. What lies behind a query's position must not touch its bits.
  template <bool kWhole>
  __device__ __forceinline__ void add(const float* value, const float* weight, const int* seen, float2* sum) const {
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const float2 x = *reinterpret_cast<const float2*>(value + n * kColumns);
#pragma unroll
      for (int m = 0; m < kOwn; m += 4) {
        const float4 four = *reinterpret_cast<const float4*>(weight + n * Q + m);
        const float by[] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (kWhole || n < seen[m + k]) sum[m + k] = {fmaf(by[k], x.x, sum[m + k].x), fmaf(by[k], x.y, sum[m + k].y)};
      }
    }
  }

  const Q8* values_;
  const uint32_t* entry_;
  int stride_, slab_;
  float* stage_;
  BlockPair<kAligned> next_ = {};
};

// add_values for a cache of Q8_0 blocks.
template <int Q, bool kAligned>
__device__ __forceinline__ void add_staged(const AttentionShape& shape, int count, const Q8* values, int split,
                                           bool first, const Shared<Q>& shared, float* stage, float* total) {
  using Values = StagedValues<Q, kAligned>;
  for (int slab = 0; slab < shape.width; slab += Values::kColumns)
    Values(shape, values, shared.entry, slab, stage)(shape.width, count, split, first, shared, total);
}

// Of a block's shared memory, for keys and then values.
template <class T, int Q>
int staged_bytes(int width) {
  if constexpr (std::is_same_v<T, Q8>) return StagedValues<Q, true>::kBytes;
  return staged<T>(width) ? StagedScores<T, Q>::kBytes : 0;
}

}  // namespace trigraph::TRIGRAPH_ISA
