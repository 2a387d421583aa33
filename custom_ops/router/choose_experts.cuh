// The choice of experts on a device.
#pragma once

#include "../cuda/platform.cuh"

namespace trigraph::TRIGRAPH_ISA {

constexpr int kFewLogits = 256 / kWarp, kManyLogits = 512 / kWarp;  // of a lane, in registers; more are read again

// The n logits of a row, those of every kWarp-th expert in a lane, as numbers of the same order above zero. What is no
// number comes last.
template <int kOwn>
struct RankedRow {
  const float* x;
  int n;
  uint32_t own[kOwn], key = 0xffffffff;  // key: of the last one taken
  int id = -1;                           // its

  __device__ RankedRow(const float* x, int n) : x(x), n(n) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own[i] = id_of(i) < n ? key_of(x[id_of(i)]) : 0;
  }
  // Takes the best that is left: its id, in every lane.
  __device__ int take() {
    uint32_t best = 0;
    int best_id = n;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (own[i] > best) best = own[i], best_id = id_of(i);
    if constexpr (kOwn == kManyLogits)
#pragma unroll 1
      for (int other = id_of(kOwn); other < n; other += kWarp) {
        const uint32_t it = key_of(x[other]);
        if (it > best && (it < key || (it == key && other > id))) best = it, best_id = other;
      }
    key = __reduce_max_sync(kAllLanes, best);
    id = static_cast<int>(__reduce_min_sync(kAllLanes, static_cast<unsigned>(best == key ? best_id : n)));
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (id_of(i) == id) own[i] = 0;
    return id;
  }

 private:
  __device__ static int id_of(int i) { return i * kWarp + static_cast<int>(threadIdx.x % kWarp); }
  __device__ static uint32_t key_of(float logit) {
    constexpr uint32_t kSign = 0x80000000;
    const uint32_t bits = __float_as_uint(logit == logit ? logit + 0.0f : -INFINITY);
    return bits & kSign ? ~bits : bits | kSign;
  }
};

// Where a step's choice goes, and how it is made.
struct Routing {
  const float* logits = nullptr;  // [rows, experts]
  int experts = 0, k = 0;
  bool normalize = false;
  int64_t* ids = nullptr;    // [rows, k]
  float* weights = nullptr;  // [rows, k]

  __device__ void operator()(int64_t row) const { choose(row, ids + row * k, weights + row * k); }

  // A row's ids and weights, by a warp.
  __device__ void choose(int64_t row, int64_t* own_ids, float* own) const {
    const float* x = logits + row * experts;
    if (experts <= kFewLogits * kWarp)
      rank<kFewLogits>(x, own_ids);
    else
      rank<kManyLogits>(x, own_ids);
    weigh(x, own_ids, own);
  }

 private:
  template <int kOwn>
  __device__ __forceinline__ void rank(const float* x, int64_t* own_ids) const {
    RankedRow<kOwn> ranked(x, experts);
#pragma unroll 1
    for (int j = 0; j < k; ++j) {
      const int id = ranked.take();
      if (threadIdx.x % kWarp == 0) own_ids[j] = id;
    }
    __syncwarp();
  }
  // Lanes make exponents side by side: each is a chain of its own.
  __device__ __forceinline__ void weigh(const float* x, const int64_t* own_ids, float* own) const {
    const int lane = threadIdx.x % kWarp;
    const float most = x[own_ids[0]];
#pragma unroll 1
    for (int j = lane; j < k; j += kWarp) own[j] = exp(x[own_ids[j]] - most);
    float sum = 0;
    for (int i = lane % kLanes; i < experts && !normalize; i += kLanes) sum += exp(x[i] - most);
    if (!normalize) sum = lane_sum(sum, kLanes);
    __syncwarp();
    for (int j = 0; j < k && normalize; ++j) sum += own[j];
    __syncwarp();
#pragma unroll 1
    for (int j = lane; j < k; j += kWarp) own[j] /= sum;
  }
};

void route(const Routing& routing, int64_t rows, cudaStream_t stream);

}  // namespace trigraph::TRIGRAPH_ISA
