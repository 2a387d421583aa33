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

}  // namespace trigraph::TRIGRAPH_ISA
