// The choice of experts on a device.
#pragma once

#include "../cuda/ranked.cuh"

namespace trigraph::TRIGRAPH_ISA {

// The n logits of a row, those of every kWarp-th expert in a lane, in registers for as many experts as models have;
// what is no number comes last.
struct RankedRow {
  static constexpr int kOwn = 512 / kWarp;
  const float* x;
  int n;
  float own[kOwn];

  __device__ RankedRow(const float* x, int n) : x(x), n(n) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own[i] = logit(id_of(i));
  }
  // The best after `last`.
  __device__ Ranked next(Ranked last) const {
    Ranked best{-INFINITY, n};
    const auto take = [&](int id, float value) {
      const Ranked one{value, id};
      if (id < n && last.before(one) && one.before(best)) best = one;
    };
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (i * kWarp < n) take(id_of(i), own[i]);
    for (int i = kOwn; i * kWarp < n; ++i) take(id_of(i), logit(id_of(i)));
    return best_of_warp(best);
  }

 private:
  __device__ static int id_of(int i) { return i * kWarp + static_cast<int>(threadIdx.x % kWarp); }
  __device__ float logit(int id) const { return id < n && x[id] == x[id] ? x[id] : -INFINITY; }
};

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
    const RankedRow row_of(x, experts);
    Ranked last{INFINITY, -1};
    float most = 0, chosen = 0;
    for (int j = 0; j < k; ++j) {
      last = row_of.next(last);
      const float logit = last.value == -INFINITY ? x[last.id] : last.value;
      if (j == 0) most = logit;
      const float weight = exp(logit - most);
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
