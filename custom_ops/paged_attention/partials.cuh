// What blocks leave of the splits that they walked, and how these are merged.
#pragma once

#include "values.cuh"

namespace trigraph::TRIGRAPH_ISA {

// Where splits wait: of each the values [Q][width], largest [Q] and sum [Q].
struct Partials {
  float* memory;   // nullptr: blocks merge their own
  int64_t room;    // for splits of a kv head
  int splits;      // at most, of a tile
  unsigned* done;  // [tiles, kv heads], counts splits

  // Where the first of a tile's splits waits, tile after tile by their lengths; nullptr where there is no room for all
  // of them.
  template <int Q>
  __device__ float* of(const AttendTile& tile, int splits, int width) const {
    return int64_t{tile.before} + splits > room ? nullptr
                                                : memory + (blockIdx.y * room + tile.before) * (Q * (width + 2));
  }
  // Where each tile has room for the longest text.
  template <int Q>
  __device__ float* at(int width, int split) const {
    return memory + ((int64_t{blockIdx.x} * gridDim.y + blockIdx.y) * splits + split) * (Q * (width + 2));
  }
};

// Where one of a tile's splits waits.
template <int Q>
__device__ __forceinline__ float* partial_at(const Shared<Q>& shared, int width, int split) {
  return shared.partials + int64_t{split} * (Q * (width + 2));
}

template <int Q>
__device__ __forceinline__ void write_partial(int width, const Shared<Q>& shared, const float* total, float* partial) {
  const int thread = threadIdx.x;
  for (int i = thread; i < Q * width / 4; i += kThreads)
    reinterpret_cast<float4*>(partial)[i] = reinterpret_cast<const float4*>(total)[i];
  if (thread < Q) {
    partial[Q * width + thread] = shared.largest[thread];
    partial[Q * width + Q + thread] = shared.sum[thread];
  }
}

// What a warp knows of its query while it merges splits, kWarp of them at a time: a lane for each.
struct Merging {
  float largest = -INFINITY, sum = 0;  // of all before

  __device__ float2 operator()(float own_largest, float own_sum, bool begins, int count) {
    const int lane = threadIdx.x % kWarp;
    float all = fmaxf(own_largest, largest);  // up to the lane's
    for (int offset = 1; offset < kWarp; offset *= 2) all = fmaxf(all, __shfl_up_sync(kAllLanes, all, offset));
    const float before = __shfl_up_sync(kAllLanes, all, 1);
    const Merge merge(lane ? before : largest, own_largest);
    largest = __shfl_sync(kAllLanes, all, kWarp - 1);
    const float taken = own_sum * merge.take;
    if (begins) sum = __shfl_sync(kAllLanes, own_sum, 0);
    for (int n = begins; n < count; ++n)
      sum = fmaf(sum, __shfl_sync(kAllLanes, merge.keep, n), __shfl_sync(kAllLanes, taken, n));
    return {merge.keep, merge.take};
  }
};

// The splits of a tile, in order, by the whole block.
template <int Q>
__device__ __forceinline__ void merge_splits(int width, int count, Shared<Q>& shared, float* total) {
  auto* factors = reinterpret_cast<float2*>(shared.weight);                    // [Q][kWarp]: keep and take
  constexpr int kWarps = kThreads / kWarp, kEach = (Q + kWarps - 1) / kWarps;  // queries of a warp
  const int lane = threadIdx.x % kWarp, quads = width / 4;
  const auto splits = [&](int m) { return static_cast<int>(shared.last[m] / kSplit) + 1; };
  const int most = splits(count - 1);
  Merging merging[kEach];
  for (int first = 0; first < most; first += kWarp) {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int own = static_cast<int>(threadIdx.x) / kWarp + e * kWarps;
      if (own >= count || first >= splits(own)) continue;
      const int last = splits(own) - 1;
      const float* scalars = partial_at<Q>(shared, width, min(first + lane, last)) + Q * width + own;
      factors[own * kWarp + lane] = merging[e](scalars[0], scalars[Q], !first, min(kWarp, last + 1 - first));
      if (lane == 0) shared.sum[own] = merging[e].sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * quads; i += kThreads) {
      const int m = i / quads, end = min(kWarp, splits(m) - first);
      const float2* factor = factors + m * kWarp;
      const auto* split = reinterpret_cast<const float4*>(partial_at<Q>(shared, width, first)) + i;
      auto* out = reinterpret_cast<float4*>(total) + i;
      float4 all = *out;
#pragma unroll 8
      for (int n = 0; n < end; ++n, split += Q * (width + 2) / 4) {
        const float4 x = *split;
        const auto [keep, take] = factor[n];
        all = first + n == 0 ? x
                             : float4{fmaf(all.x, keep, x.x * take), fmaf(all.y, keep, x.y * take),
                                      fmaf(all.z, keep, x.z * take), fmaf(all.w, keep, x.w * take)};
      }
      *out = all;
    }
  }
  __syncthreads();
}

}  // namespace trigraph::TRIGRAPH_ISA
