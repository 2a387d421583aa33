// The weighted sums of a split's values on a device, one chain of fma over positions for each column of each query.
// Values go through shared memory, so that each is read once for all queries.
#pragma once

#include "attend.cuh"
#include "block_pair.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kTogether = 16;                    // positions in shared memory at once
constexpr int kReaders = kThreads / kTogether;   // threads that read a position's values
constexpr int kEachReads = 16;                   // columns of a reader
constexpr int kColumns = kReaders * kEachReads;  // in shared memory at once

// What a reader has of a position, kColumns columns from `slab` on.
template <class T>
class PlainValues {
 public:
  using Stored = T;
  __device__ __forceinline__ static int place(int column) { return column; }

  __device__ __forceinline__ void read(const T* head, int slab, int stride) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (slab + at(i) < stride) own_[i] = *reinterpret_cast<const uint4*>(head + slab + at(i));
  }
  __device__ __forceinline__ void put(T* to) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) *reinterpret_cast<uint4*>(to + at(i)) = own_[i];
  }

 private:
  static constexpr int kVector = 16 / sizeof(T), kVectors = kEachReads / kVector;
  __device__ __forceinline__ static int at(int i) {
    return (i * kReaders + static_cast<int>(threadIdx.x) % kReaders) * kVector;
  }
  uint4 own_[kVectors] = {};
};

// Q8_0 blocks, which are widened once for all queries.
template <bool kAligned>
class BlockValues {
 public:
  using Stored = float;
  __device__ __forceinline__ static int place(int column) {
    return place(column / kPairWidth, column / kQ8Width % 2, pair_place(column / kQ8Width, column % kQ8Width));
  }

  __device__ __forceinline__ void read(const Q8* head, int slab, int stride) {
    const int block = slab / kQ8Width + 2 * pair();
    if (block * kQ8Bytes < stride) own_.read(head, block, lane(), stride);
  }
  __device__ __forceinline__ void put(float* to) const { put<0>(to), put<1>(to); }

 private:
  static constexpr int kPairWidth = 2 * kQ8Width;
  static_assert(kEachReads * kPairLanes == kPairWidth);

  __device__ __forceinline__ static int pair() { return static_cast<int>(threadIdx.x) % kReaders / kPairLanes; }
  __device__ __forceinline__ static int lane() { return threadIdx.x % kPairLanes; }
  // Where code `at` of a pair's block is; lanes write without conflicts.
  __device__ __forceinline__ static int place(int pair, int second, int at) {
    return pair * kPairWidth + second * kQ8Width + (at ^ pair % 2 * 16);
  }
  template <int kSecond>
  __device__ __forceinline__ void put(float* to) const {
    uint32_t word[2];
    own_.template codes<kSecond>(lane(), word);
    const float d = own_.template d<kSecond>();
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint32_t shifted = word[n] ^ 0x80808080;  // codes and 128
      float x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        x[k] = d * (__uint_as_float(__byte_perm(shifted, 0x4b000000, 0x7440 + k)) - 8388736.0f);
      *reinterpret_cast<float4*>(to + place(pair(), kSecond, 16 * n + 4 * lane())) = {x[0], x[1], x[2], x[3]};
    }
  }
  BlockPair<kAligned> own_ = {};
};

// Adds kTogether positions of two columns to N queries' sums. kWhole: all queries see all of them. What lies behind a
// query's position must not touch its bits.
template <int N, int Q, bool kWhole, class Stored>
__device__ __forceinline__ void add_together(const Stored* value, const float* weight, const int* seen, float2* sum) {
#pragma unroll
  for (int n = 0; n < kTogether; ++n) {
    Pair<Stored> pair;
    pair.read(value + n * kColumns, 0, 0);
    const float2 x = pair.wide();
#pragma unroll
    for (int m = 0; m < N; m += 4) {
      const float4 four = *reinterpret_cast<const float4*>(weight + n * Q + m);
      const float by[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (kWhole || n < seen[m + k]) sum[m + k] = {fmaf(by[k], x.x, sum[m + k].x), fmaf(by[k], x.y, sum[m + k].y)};
    }
  }
}

// Merges two columns of N queries' sums over a split, from query `begin` on, into `total` [Q][width].
template <int N, int Q>
__device__ __forceinline__ void keep_values(int width, int count, int split, bool first, const Shared<Q>& shared,
                                            int begin, int column, const float2* sums, float* total) {
#pragma unroll
  for (int m = 0; m < N; ++m) {
    if (begin + m >= count || !shared.seen(begin + m, split)) continue;
    float2& sum = *reinterpret_cast<float2*>(total + (begin + m) * width + column);
    const float keep = shared.keep[begin + m], take = shared.take[begin + m];
    sum = first ? sums[m] : float2{fmaf(sum.x, keep, sums[m].x * take), fmaf(sum.y, keep, sums[m].y * take)};
  }
}

// Adds a split's weighted values to `total` [Q][width], columns `slab` to slab + kColumns; the whole block calls.
template <class Values, class T, int Q>
__device__ __forceinline__ void add_slab(const AttentionShape& shape, int slab, int count, const T* values, int split,
                                         bool first, const Shared<Q>& shared, typename Values::Stored* stage,
                                         float* total) {
  constexpr int kOwn = Q > kMostQueries ? 8 : 4;  // queries of a thread
  const int thread = threadIdx.x, half = min(kColumns, shape.width - slab) / 2, position = thread / kReaders;
  const int begin = thread / half * kOwn, column = thread % half * 2;
  const int last = shared.seen(count - 1, split), all = shared.seen(0, split);
  Values next;
  const auto read = [&](int from) {
    const uint64_t head = shared.entry[from + position];
    next.read(values + head * static_cast<uint32_t>(shape.stride), slab, shape.stride);
  };
  float2 sums[kOwn] = {};
  read(0);
  for (int from = 0; from < last; from += kTogether) {
    __syncthreads();
    next.put(stage + position * kColumns);
    __syncthreads();
    if (from + kTogether < last) read(from + kTogether);
    if (begin >= Q) continue;
    const auto* own = stage + Values::place(column);
    const float* weight = shared.weight + from * Q + begin;
    if (from + kTogether <= all) {
      add_together<kOwn, Q, true>(own, weight, nullptr, sums);
    } else {
      int seen[kOwn];
#pragma unroll
      for (int m = 0; m < kOwn; ++m) seen[m] = begin + m < count ? shared.seen(begin + m, split) - from : 0;
      add_together<kOwn, Q, false>(own, weight, seen, sums);
    }
  }
  if (begin < Q) keep_values<kOwn>(shape.width, count, split, first, shared, begin, slab + column, sums, total);
}

// Bytes of `stage` below.
template <class T>
constexpr int kValueBytes = kTogether * kColumns * (std::is_same_v<T, __half> ? 2 : 4);

// Adds a split's weighted values to `total` [Q][width]; the whole block calls.
template <class T, int Q>
__device__ __forceinline__ void add_values(const AttentionShape& shape, int count, const T* values, int split,
                                           bool first, const Shared<Q>& shared, char* stage, float* total) {
  const auto add = [&](auto kind) {
    using Values = decltype(kind);
    for (int slab = 0; slab < shape.width; slab += kColumns)
      add_slab<Values>(shape, slab, count, values, split, first, shared,
                       reinterpret_cast<typename Values::Stored*>(stage), total);
  };
  if constexpr (!std::is_same_v<T, Q8>)
    add(PlainValues<T>{});
  else if (Q <= kMostQueries && !aligned_blocks(shape.width))
    add(BlockValues<false>{});
  else
    add(BlockValues<true>{});
}

}  // namespace trigraph::TRIGRAPH_ISA
