// The largest logits of a row, in order, by blocks that share it. The last one to be done ranks what may be among them.
#pragma once

#include "last_block.cuh"
#include "ranked.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kThreads = 256;
constexpr int kQuad = 4;                       // logits that a thread reads at once
constexpr int kShares = kThreads;              // of a row: quads i, i + kShares, ...
constexpr int kBlocks = 128;                   // of a row
constexpr int kOwnShares = kShares / kBlocks;  // of a block
constexpr int kMostSurvivors = 1024;  // logits that may be among the candidates, as far as these are ranked at once

// A logit and its id as one number: larger for the larger logit, and among equal ones for the lower id.
using Key = unsigned long long;
constexpr Key kNone = 0, kUnordered = ~Key{0};  // less than any logit's; a NaN's

__device__ __forceinline__ Key key_of(float logit, int id) {
  if (logit != logit) return kUnordered;
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // no -0
  return Key{bits >> 31 ? ~bits : bits | 0x80000000} << 32 | ~static_cast<uint32_t>(id);
}
__device__ __forceinline__ int id_of(Key key) { return static_cast<int>(~static_cast<uint32_t>(key)); }
__device__ __forceinline__ float logit_of(Key key) {
  const auto bits = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(bits >> 31 ? bits & 0x7fffffff : ~bits);
}
__device__ __forceinline__ Key larger(Key a, Key b) { return a > b ? a : b; }

// The largest of a block's, in every thread.
__device__ inline Key largest_of_block(Key own) {
  __shared__ Key largest[kThreads / kWarp];
  for (int offset = kWarp / 2; offset; offset /= 2) own = larger(own, __shfl_xor_sync(kAllLanes, own, offset));
  __syncthreads();
  if (threadIdx.x % kWarp == 0) largest[threadIdx.x / kWarp] = own;
  __syncthreads();
  for (int i = 0; i < kThreads / kWarp; ++i) own = larger(own, largest[i]);
  return own;
}

// The keys of a quad from element `first` on, those behind the row's end kNone.
__device__ __forceinline__ Key key_in(const float* quad, int i, int first, int width) {
  return first + i < width ? key_of(quad[i], first + i) : kNone;
}

// The largest key of each of the block's shares of a row.
template <bool kWhole>
__device__ void find_largest(const float* row, int width, Key* out) {
  static_assert(kOwnShares == 2);
  __shared__ Key largest[kThreads / kWarp][kOwnShares];
  constexpr int kStep = kShares * kQuad, kTogether = 2;
  const int thread = static_cast<int>(threadIdx.x), share = static_cast<int>(blockIdx.x) * kOwnShares + thread % 2;
  Key own = kNone;
  for (int n = thread / 2; n * kStep < width; n += kTogether * kThreads / 2) {
    float x[kTogether][kQuad];
    const auto first = [&](int m) { return (n + m * kThreads / 2) * kStep + share * kQuad; };
#pragma unroll
    for (int m = 0; m < kTogether; ++m) read_quad<kWhole>(row, width, first(m), x[m]);
#pragma unroll
    for (int m = 0; m < kTogether; ++m)
#pragma unroll
      for (int i = 0; i < kQuad; ++i) own = larger(own, key_in(x[m], i, first(m), width));
  }
  for (int offset = kWarp / 2; offset > 1; offset /= 2) own = larger(own, __shfl_xor_sync(kAllLanes, own, offset));
  if (thread % kWarp < 2) largest[thread / kWarp][thread % 2] = own;
  __syncthreads();
  if (thread >= kOwnShares) return;
  for (int i = 0; i < kThreads / kWarp; ++i) own = larger(own, largest[i][thread]);
  out[share] = own;
}

// How many of `count` keys are larger, each of which is there once.
__device__ __forceinline__ int rank_of(Key key, const Key* keys, int count) {
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) rank += keys[i] > key;
  return rank;
}

// The keys of some shares that are no less than `least`, in any order: all that there is room for. Returns their
// number.
template <bool kWhole>
__device__ int find_survivors(const float* row, int width, const int* shares, int count, Key least, Key* keys) {
  constexpr int kTogether = 4;
  __shared__ int found;
  const int thread = static_cast<int>(threadIdx.x), each = (width + kQuad * kShares - 1) / (kQuad * kShares);
  if (thread == 0) found = 0;
  __syncthreads();
  for (int n = thread; n < count * each; n += kTogether * kThreads) {
    float x[kTogether][kQuad];
    int first[kTogether];
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      const int at = n + m * kThreads;
      first[m] = at < count * each ? (at / count * kShares + shares[at % count]) * kQuad : width;
      read_quad<kWhole>(row, width, first[m], x[m]);
    }
#pragma unroll
    for (int m = 0; m < kTogether; ++m)
      for (int i = 0; i < kQuad; ++i) {
        const Key key = key_in(x[m], i, first[m], width);
        if (key < least) continue;
        const int at = atomicAdd(&found, 1);
        if (at < kMostSurvivors) keys[at] = key;
      }
  }
  __syncthreads();
  return found;
}

// The largest key of a row that is less than `last`. kNumbers: NaN counts as -infinity.
template <bool kNumbers>
__device__ Key find_next(const float* row, int width, Key last) {
  Key next = kNone;
  for (int id = static_cast<int>(threadIdx.x); id < width; id += kThreads) {
    const float logit = row[id];
    if (const Key key = key_of(kNumbers && logit != logit ? -INFINITY : logit, id); key < last)
      next = larger(next, key);
  }
  return largest_of_block(next);
}

// The `k` largest keys of a row, in order, from the largest of each share. Whatever is among them lies in one of the k
// shares whose largest are the largest, and is no less than the last of these. False where there is a NaN.
template <bool kWhole>
__device__ bool find_candidates(const float* row, int width, int k, const Key* largest, Key* candidates) {
  __shared__ __align__(16) Key keys[kMostSurvivors];
  __shared__ int chosen[kShares];
  __shared__ Key least;
  const int thread = static_cast<int>(threadIdx.x), shares = min(kShares, (width + kQuad - 1) / kQuad);
  const Key own = largest[thread];
  keys[thread] = own;
  if (thread == 0) least = kNone + 1;
  if (thread < k) candidates[thread] = kNone;
  if (__syncthreads_or(own == kUnordered)) return false;
  const int rank = rank_of(own, keys, kShares);
  if (own != kNone && rank < k) chosen[rank] = thread;
  if (own != kNone && rank == k - 1) least = own;
  __syncthreads();
  const int count = find_survivors<kWhole>(row, width, chosen, min(k, shares), least, keys);
  for (int i = thread; i < count && count <= kMostSurvivors; i += kThreads)
    if (const int place = rank_of(keys[i], keys, count); place < k) candidates[place] = keys[i];
  for (int n = 0; n < k && count > kMostSurvivors; ++n) {  // so many that they are found one by one
    const Key next = find_next<false>(row, width, n ? candidates[n - 1] : kUnordered);
    if (thread == 0) candidates[n] = next;
    __syncthreads();
  }
  __syncthreads();
  return true;
}

}  // namespace trigraph::TRIGRAPH_ISA
