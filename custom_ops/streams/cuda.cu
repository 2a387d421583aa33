// StreamNorm and StreamMean on a device: a block for each stream of a row, a thread for each element of a mean.
#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kNormThreads = 256, kMeanThreads = 256;

struct StreamRows {
  const float *x, *weight, *block, *inject;  // block, inject: or nullptr
  int64_t streams, hidden;
  float eps;
  float *y, *sum;  // sum: where there is a block
};

// grid: streams of all rows.
__global__ void __launch_bounds__(kNormThreads) norm_streams(const __grid_constant__ StreamRows rows) {
  __shared__ float factor;
  const int64_t row = blockIdx.x / rows.streams, stream = blockIdx.x % rows.streams, at = blockIdx.x * rows.hidden;
  const int width = static_cast<int>(rows.hidden);
  const float *from = rows.x + at, *weight = rows.weight + stream * rows.hidden;
  if (rows.block) {
    const float open = 2.0f * sigmoid(rows.inject[blockIdx.x] / static_cast<float>(rows.streams));
    const float* block = rows.block + row * rows.hidden;
    for (int i = threadIdx.x; i < width; i += kNormThreads) rows.sum[at + i] = fmaf(open, block[i], from[i]);
    from = rows.sum + at;
    __syncthreads();
  }
  if (threadIdx.x < kWarp) {
    const float squares = dot(from, from, width);
    if (threadIdx.x == 0) factor = 1.0f / sqrtf(squares / static_cast<float>(width) + rows.eps);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += kNormThreads) rows.y[at + i] = from[i] * factor * weight[i];
}

// grid: [parts of a row, rows].
__global__ void __launch_bounds__(kMeanThreads)
    mean_streams(const float* x, const float* logits, int64_t streams, int64_t hidden, float* y) {
  const int64_t column = int64_t{blockIdx.x} * kMeanThreads + threadIdx.x;
  if (column >= hidden) return;
  const int64_t first = blockIdx.y * streams * hidden + column;
  float sum = sigmoid(logits[first]) * x[first];
  for (int64_t stream = 1; stream < streams; ++stream) {
    const int64_t at = first + stream * hidden;
    sum += sigmoid(logits[at]) * x[at];
  }
  y[blockIdx.y * hidden + column] = sum * (1.0f / static_cast<float>(streams));
}

struct StreamNorm : StreamNormSignature {
  using StreamNormSignature::StreamNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), block = context.input(2), inject = context.input(3);
    const int64_t hidden = check(x, weight, block, inject), width = streams * hidden;
    context.expect_outputs(block.rank ? 2 : 1);
    float* y = context.output(0, {x.dims[0], width}).as<float>();
    float* sum = block.rank ? context.output(1, {x.dims[0], width}).as<float>() : nullptr;
    const StreamRows rows{
        x.as<float>(), weight.as<float>(), block.as<float>(), inject.as<float>(), streams, hidden, eps, y, sum};
    launch(norm_streams, static_cast<unsigned>(x.dims[0] * streams), kNormThreads, 0, stream_of(context), rows);
  }
};

struct StreamMean : StreamMeanSignature {
  using StreamMeanSignature::StreamMeanSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), logits = context.input(1);
    const int64_t hidden = check(x, logits);
    const Tensor y = context.output(0, {x.dims[0], hidden});
    const dim3 grid(blocks_of(hidden, kMeanThreads), static_cast<unsigned>(x.dims[0]));
    launch(mean_streams, grid, kMeanThreads, 0, stream_of(context), x.as<float>(), logits.as<float>(), streams, hidden,
           y.as<float>());
  }
};

}  // namespace

const OrtCustomOp* stream_norm() {
  static const Op<Checked<StreamNorm>> op;
  return &op;
}

const OrtCustomOp* stream_mean() {
  static const Op<Checked<StreamMean>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
