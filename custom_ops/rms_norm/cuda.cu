// RMSNorm and JoinedRMSNorm on a device: a block for each row.
#include "../cuda/kernel.h"
#include "device.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 512;
constexpr int kSector = 8;     // floats that one prefetch asks for
constexpr int kStaged = 8192;  // elements of a row in shared memory

// grid: [rows, 2 with another tensor]. Squares are added in the order of `dot`, by the lanes of one half of a warp.
__global__ void __launch_bounds__(kThreads) normalize_rows(Norm norm) {
  __shared__ float staged[kStaged], factor;
  const int64_t row = blockIdx.x;
  const int thread = threadIdx.x;
  const bool second = blockIdx.y == 1;
  const int width = static_cast<int>(second ? norm.other_width : norm.width);
  const float* x = second ? norm.other + row * width : norm.x + row * width;
  const float* residual = norm.residual && !second ? norm.residual + row * width : nullptr;
  const float* weight = second ? norm.other_weight : norm.weight;
  float* y = norm.y + row * norm.both() + (second ? norm.width : 0);
  float* sum = residual ? norm.sum + row * width : nullptr;
  for (int i = thread * kSector; i < width; i += kThreads * kSector) prefetch(weight + i);
  float squares = 0;
  for (int first = 0; first < width; first += kStaged) {
    const int count = min(kStaged, width - first);
    __syncthreads();
    if (residual) {
#pragma unroll 4
      for (int i = thread; i < count; i += kThreads) {
        const float both = x[first + i] + residual[first + i];
        staged[i] = both, sum[first + i] = both;
      }
    } else {
#pragma unroll 4
      for (int i = thread; i < count; i += kThreads) staged[i] = x[first + i];
    }
    __syncthreads();
    if (thread < kLanes) {
#pragma unroll 16
      for (int i = thread; i < count; i += kLanes) squares = fmaf(staged[i], staged[i], squares);
    }
  }
  if (thread < kWarp) {
    squares = lane_sum(squares, kLanes);
    if (thread == 0) factor = norm.factor(squares, width);
  }
  __syncthreads();
  const float* from = width <= kStaged ? staged : residual ? sum : x;
#pragma unroll 4
  for (int i = thread; i < width; i += kThreads) y[i] = from[i] * factor * weight[i];
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
