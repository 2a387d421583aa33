// RMSNorm and JoinedRMSNorm on a device: a block for each row.
#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;

// y = the norm of row x, by the whole block.
__device__ __forceinline__ void normalize_row(const float* x, const float* weight, int width, float eps, float* y) {
  __shared__ float factor;
  if (threadIdx.x < kWarp) {
    const float squares = dot(x, x, width);
    if (threadIdx.x == 0) factor = 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += kThreads) y[i] = x[i] * factor * weight[i];
}

// `sum` [rows, width] takes x + residual, when there is one.
__global__ void __launch_bounds__(kThreads)
    normalize(const float* x, const float* weight, const float* residual, int width, float eps, float* y, float* sum) {
  const int64_t row = int64_t{blockIdx.x} * width;
  x += row, y += row;
  if (residual) {
    for (int i = threadIdx.x; i < width; i += kThreads) sum[row + i] = x[i] + residual[row + i];
    x = sum + row;
    __syncthreads();
  }
  normalize_row(x, weight, width, eps, y);
}

// grid: [rows, 2].
__global__ void __launch_bounds__(kThreads)
    normalize_both(const float* x, const float* weight, int width, const float* other, const float* other_weight,
                   int other_width, float eps, float* y) {
  y += int64_t{blockIdx.x} * (width + other_width);
  if (blockIdx.y == 0)
    normalize_row(x + int64_t{blockIdx.x} * width, weight, width, eps, y);
  else
    normalize_row(other + int64_t{blockIdx.x} * other_width, other_weight, other_width, eps, y + width);
}

struct RMSNorm : RMSNormSignature {
  using RMSNormSignature::RMSNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), residual = context.input(2);
    check(x, weight, residual);
    context.expect_outputs(residual.rank ? 2 : 1);
    const Tensor y = context.output_like(0, x);
    float* sum = residual.rank ? context.output_like(1, x).as<float>() : nullptr;
    launch(normalize, static_cast<unsigned>(x.dims[0]), kThreads, 0, stream_of(context), x.as<float>(),
           weight.as<float>(), residual.as<float>(), x.dims[1], eps, y.as<float>(), sum);
  }
};

struct JoinedRMSNorm : JoinedRMSNormSignature {
  using JoinedRMSNormSignature::JoinedRMSNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), other = context.input(2);
    const Tensor other_weight = context.input(3);
    check(x, weight, other, other_weight);
    const Tensor y = context.output(0, {x.dims[0], x.dims[1] + other.dims[1]});
    launch(normalize_both, dim3(static_cast<unsigned>(x.dims[0]), 2), kThreads, 0, stream_of(context), x.as<float>(),
           weight.as<float>(), x.dims[1], other.as<float>(), other_weight.as<float>(), other.dims[1], eps,
           y.as<float>());
  }
};

}  // namespace

const OrtCustomOp* rms_norm() {
  static const Op<Checked<RMSNorm>> op;
  return &op;
}

const OrtCustomOp* joined_rms_norm() {
  static const Op<Checked<JoinedRMSNorm>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
