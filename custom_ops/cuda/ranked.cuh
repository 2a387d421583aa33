// Values with their ids, in falling order, the lowest id first among equal ones.
#pragma once

#include "platform.cuh"

namespace trigraph::TRIGRAPH_ISA {

struct Ranked {
  float value;
  int id;
  __device__ bool before(const Ranked& other) const {
    return value > other.value || (value == other.value && id < other.id);
  }
};

// The first one of a warp's, in every lane.
__device__ __forceinline__ Ranked best_of_warp(Ranked own) {
  for (int offset = kWarp / 2; offset; offset /= 2) {
    const Ranked other{__shfl_xor_sync(kAllLanes, own.value, offset), __shfl_xor_sync(kAllLanes, own.id, offset)};
    if (other.before(own)) own = other;
  }
  return own;
}

// Four elements of a row from `first` on, a multiple of 4; -infinity behind its end. kWhole: its width is one too.
template <bool kWhole>
__device__ __forceinline__ void read_quad(const float* row, int width, int first, float* x) {
  float4 quad = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  if (kWhole && first < width) quad = *reinterpret_cast<const float4*>(row + first);
  x[0] = quad.x, x[1] = quad.y, x[2] = quad.z, x[3] = quad.w;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (!kWhole && first + i < width) x[i] = row[first + i];
}

}  // namespace trigraph::TRIGRAPH_ISA
