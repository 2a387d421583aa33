// The choice of experts on a device.
#pragma once

#include "../cuda/ranked.cuh"

namespace trigraph::TRIGRAPH_ISA {

// The best of the n values after `last`.
__device__ __forceinline__ Ranked next(const float* x, int n, Ranked last) {
  Ranked best{-INFINITY, n};
  for (int i = threadIdx.x % kWarp; i < n; i += kWarp) {
    const Ranked own{x[i] == x[i] ? x[i] : -INFINITY, i};
    if (last.before(own) && own.before(best)) best = own;
  }
  return best_of_warp(best);
}

// Where a step's choice goes, and how it is made.
struct Routing {
  const float* logits;  // [rows, experts]
  int experts, k;
  bool normalize;
  int64_t* ids;    // [rows, k]
  float* weights;  // [rows, k]

  // Of one row, by a warp.
  __device__ void operator()(int64_t row) const {
    const float* x = logits + row * experts;
    const int lane = threadIdx.x % kWarp;
    int64_t* own_ids = ids + row * k;
    float* own = weights + row * k;
    Ranked last{INFINITY, -1};
    float most = 0, chosen = 0;
    for (int j = 0; j < k; ++j) {
      last = next(x, experts, last);
      if (j == 0) most = x[last.id];
      const float weight = exp(x[last.id] - most);
      chosen += weight;
      if (lane == 0) own_ids[j] = last.id, own[j] = weight;
    }
    float sum = 0;
    for (int i = lane % kLanes; i < experts && !normalize; i += kLanes) sum += exp(x[i] - most);
    sum = normalize ? chosen : lane_sum(sum, kLanes);
    __syncwarp();
    for (int j = lane; j < k; j += kWarp) own[j] /= sum;
  }
};

void route(const Routing& routing, int64_t rows, cudaStream_t stream);

}  // namespace trigraph::TRIGRAPH_ISA
