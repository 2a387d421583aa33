// Two neighbouring elements of a head as the cache has them, read before they are used; and merged softmaxes.
#pragma once

#include "heads.cuh"

namespace trigraph::TRIGRAPH_ISA {

// `read` takes elements `column` and `column + 1`, an even one, of the head's row `row` of kLanes elements.
template <class T>
struct Pair;

template <>
struct Pair<float> {
  float2 raw;
  __device__ __forceinline__ void read(const float* head, int row, int column) {
    raw = *reinterpret_cast<const float2*>(head + row * kLanes + column);
  }
  __device__ __forceinline__ float2 wide() const { return raw; }
};

template <>
struct Pair<__half> {
  uint32_t raw;
  __device__ __forceinline__ void read(const __half* head, int row, int column) {
    raw = *reinterpret_cast<const uint32_t*>(head + row * kLanes + column);
  }
  __device__ __forceinline__ float2 wide() const {
    return {half_bits(static_cast<uint16_t>(raw)), half_bits(static_cast<uint16_t>(raw >> 16))};
  }
};

// How the softmax of some positions and that of one more split, after them, become one.
struct Merge {
  float largest, keep, take;
  __device__ Merge(float before, float split)
      : largest(fmaxf(before, split)), keep(exp(before - largest)), take(exp(split - largest)) {}
  __device__ float operator()(float before, float split) const { return fmaf(before, keep, split * take); }
};

}  // namespace trigraph::TRIGRAPH_ISA
