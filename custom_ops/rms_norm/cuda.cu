// RMSNorm and JoinedRMSNorm on a device: a block for each row.
#include "../cuda/kernel.h"
#include "device.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;

// grid: [rows, 2 with another tensor].
__global__ void __launch_bounds__(kThreads) normalize_rows(Norm norm) {
  __shared__ float factor;
  const int64_t row = blockIdx.x;
  const bool second = blockIdx.y == 1;
  const int width = static_cast<int>(second ? norm.other_width : norm.width);
  const float* x = second ? norm.other + row * width : norm.x + row * width;
  const float* weight = second ? norm.other_weight : norm.weight;
  float* y = norm.y + row * norm.both() + (second ? norm.width : 0);
  if (norm.residual && !second) {
    float* sum = norm.sum + row * width;
    for (int i = threadIdx.x; i < width; i += kThreads) sum[i] = x[i] + norm.residual[row * width + i];
    x = sum;
    __syncthreads();
  }
  if (threadIdx.x < kWarp) {
    const float squares = dot(x, x, width);
    if (threadIdx.x == 0) factor = norm.factor(squares, width);
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
    normalize({x.as<float>(), weight.as<float>(), residual.as<float>(), x.dims[1], nullptr, nullptr, 0, eps,
               y.as<float>(), sum},
              x.dims[0], stream_of(context));
  }
};

struct JoinedRMSNorm : JoinedRMSNormSignature {
  using JoinedRMSNormSignature::JoinedRMSNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), other = context.input(2);
    const Tensor other_weight = context.input(3);
    check(x, weight, other, other_weight);
    const Tensor y = context.output(0, {x.dims[0], x.dims[1] + other.dims[1]});
    normalize({x.as<float>(), weight.as<float>(), nullptr, x.dims[1], other.as<float>(), other_weight.as<float>(),
               other.dims[1], eps, y.as<float>(), nullptr},
              x.dims[0], stream_of(context));
  }
};

}  // namespace

void normalize(const Norm& norm, int64_t rows, cudaStream_t stream) {
  launch(normalize_rows, dim3(static_cast<unsigned>(rows), norm.other ? 2 : 1), kThreads, 0, stream, norm);
}

const OrtCustomOp* rms_norm() {
  static const Op<Checked<RMSNorm>> op;
  return &op;
}

const OrtCustomOp* joined_rms_norm() {
  static const Op<Checked<JoinedRMSNorm>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
