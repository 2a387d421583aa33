// Values with their ids, in falling order, the lowest id first among equal ones.
#pragma once

#include "device.cuh"

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

}  // namespace trigraph::TRIGRAPH_ISA
