// How one of the likeliest tokens is drawn: what trigraph_draw (draw.cc) draws after top-k.
#pragma once

#include "../draw.h"
#include "largest.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kMostCandidates = 128;  // top-k

// How a row's token is drawn, and where it goes. runtime/device/cuda/sampler.py fills it in.
struct Draw {
  double temperature;  // 0: the most likely token, which the step has found
  double top_p, min_p;
  uint64_t seed, position;
  int64_t* token;
  int32_t top_k;
  int32_t only_drawn;  // where no logit is finite: -1, and not the step's token
};

// The id that is drawn where the likeliest, top-k of them, are these; of a block's first thread, which the others wait
// for before they call again. -1 where none is finite, or they have no order.
__device__ __forceinline__ int64_t race(const Draw& draw, const Key* likeliest, bool ordered) {
  __shared__ double weight[kMostCandidates], time[kMostCandidates];
  const float largest = ordered ? logit_of(likeliest[0]) : NAN;
  if (!(fabsf(largest) < INFINITY)) return -1;
  const uint64_t key = draws::key_of(draw.seed, draw.position);
  if (static_cast<int>(threadIdx.x) < draw.top_k) {
    const Key own = likeliest[threadIdx.x];
    const float logit = own == kNone ? -INFINITY : logit_of(own);
    weight[threadIdx.x] = draws::weight_of(logit, largest, draw.temperature);
    time[threadIdx.x] = draws::time_of(key, id_of(own), weight[threadIdx.x]);
  }
  __syncthreads();
  if (threadIdx.x != 0) return -1;
  double total = 0, sum = 0, best = INFINITY;
#pragma unroll 8
  for (int i = 0; i < draw.top_k; ++i) total += weight[i];
  int64_t winner = -1;
  for (int i = 0; i < draw.top_k; ++i) {
    if (weight[i] == 0 || weight[i] < draw.min_p) break;
    if (time[i] < best || (time[i] == best && id_of(likeliest[i]) < winner))
      best = time[i], winner = id_of(likeliest[i]);
    sum += weight[i];
    if (draw.top_p < 1 && sum >= draw.top_p * total) break;
  }
  return winner;
}

}  // namespace trigraph::TRIGRAPH_ISA
