// Router on a device: a warp for each row.
#include "../cuda/kernel.h"
#include "../cuda/ranked.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kWarps = 4;  // of a block

// The best of the n values after `last`.
__device__ Ranked next(const float* x, int n, Ranked last) {
  Ranked best{-INFINITY, n};
  for (int i = threadIdx.x % kWarp; i < n; i += kWarp) {
    const Ranked own{x[i] == x[i] ? x[i] : -INFINITY, i};
    if (last.before(own) && own.before(best)) best = own;
  }
  return best_of_warp(best);
}

__global__ void __launch_bounds__(kWarps* kWarp)
    route(const float* logits, int rows, int experts, int k, bool normalize, int64_t* ids, float* weights) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const float* x = logits + int64_t{row} * experts;
  ids += int64_t{row} * k, weights += int64_t{row} * k;
  Ranked last{INFINITY, -1};
  float most = 0, chosen = 0;
  for (int j = 0; j < k; ++j) {
    last = next(x, experts, last);
    if (j == 0) most = x[last.id];
    const float weight = exp(x[last.id] - most);
    chosen += weight;
    if (lane == 0) ids[j] = last.id, weights[j] = weight;
  }
  float sum = 0;
  for (int i = lane % kLanes; i < experts && !normalize; i += kLanes) sum += exp(x[i] - most);
  sum = normalize ? chosen : lane_sum(sum, kLanes);
  __syncwarp();
  for (int j = lane; j < k; j += kWarp) weights[j] /= sum;
}

struct Router : RouterSignature {
  using RouterSignature::RouterSignature;

  void compute(const Context& context) const {
    const Tensor logits = context.input(0);
    check(logits);
    const int64_t rows = logits.dims[0];
    const Tensor ids = context.output(0, {rows, k}), weights = context.output(1, {rows, k});
    launch(route, blocks_of(rows, kWarps), kWarps * kWarp, 0, stream_of(context), logits.as<float>(), rows,
           logits.dims[1], k, normalize, ids.as<int64_t>(), weights.as<float>());
  }
};

}  // namespace

const OrtCustomOp* router() {
  static const Op<Checked<Router>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
