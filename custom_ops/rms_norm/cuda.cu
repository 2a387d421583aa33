// RMSNorm on a device: a block for each row.
#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;

// `sum` [rows, width] takes x + residual, when there is one.
__global__ void __launch_bounds__(kThreads)
    normalize(const float* x, const float* weight, const float* residual, int width, float eps, float* y, float* sum) {
  __shared__ float factor;
  const int64_t row = int64_t{blockIdx.x} * width;
  x += row, y += row;
  if (residual) {
    for (int i = threadIdx.x; i < width; i += kThreads) sum[row + i] = x[i] + residual[row + i];
    x = sum + row;
    __syncthreads();
  }
  if (threadIdx.x < kWarp) {
    const float squares = dot(x, x, width);
    if (threadIdx.x == 0) factor = 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += kThreads) y[i] = x[i] * factor * weight[i];
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

}  // namespace

const OrtCustomOp* rms_norm() {
  static const Op<Checked<RMSNorm>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
