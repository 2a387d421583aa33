// LayerNorm on a device: a block for each row.
#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;

// Sum of term(value) over a row's values in the order of simd.h, by the block's first lanes; all threads get it.
template <class Term>
__device__ __forceinline__ float sum_of(const float* row, int64_t width, float* shared, const Term& term) {
  if (threadIdx.x < kWarp) {
    float sum = 0;
    if (threadIdx.x < kLanes)
      for (int64_t i = threadIdx.x; i < width; i += kLanes) sum = term(row[i], sum);
    sum = lane_sum(sum, kLanes);
    if (threadIdx.x == 0) *shared = sum;
  }
  __syncthreads();
  return *shared;
}

// grid: [rows]. A row without its mean is staged where its norm goes.
__global__ void __launch_bounds__(kThreads)
    layer_norm_rows(const float* x, const float* weight, const float* bias, int64_t width, float eps, float* y) {
  __shared__ float sum, squares;
  x += blockIdx.x * width;
  y += blockIdx.x * width;
  const float mean =
      sum_of(x, width, &sum, [](float value, float all) { return all + value; }) / static_cast<float>(width);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) y[i] = x[i] - mean;
  __syncthreads();
  const float variance = sum_of(y, width, &squares, [](float value, float all) { return fmaf(value, value, all); }) /
                         static_cast<float>(width);
  const float factor = 1.0f / sqrtf(variance + eps);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) y[i] = fmaf(y[i] * factor, weight[i], bias[i]);
}

struct LayerNorm : LayerNormSignature {
  using LayerNormSignature::LayerNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), bias = context.input(2);
    check(x, weight, bias);
    const Tensor y = context.output_like(0, x);
    launch(layer_norm_rows, static_cast<unsigned>(x.dims[0]), kThreads, 0, stream_of(context), x.as<float>(),
           weight.as<float>(), bias.as<float>(), x.dims[1], eps, y.as<float>());
  }
};

}  // namespace

const OrtCustomOp* layer_norm() {
  static const Op<Checked<LayerNorm>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
