// What blocks leave of the splits that they walked, and how these are merged.
#pragma once

#include "attend.cuh"

namespace trigraph::TRIGRAPH_ISA {

// Where splits wait: of each kv head and split, tile after tile, the values [Q][width], largest [Q] and sum [Q].
struct Partials {
  float* memory;      // nullptr: blocks merge their own
  int64_t room;       // for splits of a kv head
  unsigned* done;     // [tiles, kv heads], counts splits
  int64_t first = 0;  // split of the block's tile

  // Those of a tile with `splits`; it merges its own where there is no room for them.
  __device__ void of(const AttendTile& tile, int splits) {
    first = tile.before;
    if (first + splits > room) memory = nullptr;
  }
  template <int Q>
  __device__ float* at(int width, int split) const {
    return memory + (blockIdx.y * room + first + split) * (Q * (width + 2));
  }
};

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
