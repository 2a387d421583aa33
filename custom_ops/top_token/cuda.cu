// TopToken on a device: blocks find the best of their parts of the vocabulary, then add up their exponentials.
#include "../cuda/kernel.h"
#include "../cuda/ranked.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;
constexpr int kPart = static_cast<int>(TopTokenSignature::kPart);

// The first one of a block's, in every thread.
__device__ Ranked best_of_block(Ranked own) {
  __shared__ float value[kThreads / kWarp];
  __shared__ int id[kThreads / kWarp];
  own = best_of_warp(own);
  if (threadIdx.x % kWarp == 0) value[threadIdx.x / kWarp] = own.value, id[threadIdx.x / kWarp] = own.id;
  __syncthreads();
  for (int i = 0; i < kThreads / kWarp; ++i) {
    const Ranked other{value[i], id[i]};
    if (other.before(own)) own = other;
  }
  return own;
}

// grid: [parts, rows]. Among NaNs the first id of a part is its best.
__global__ void __launch_bounds__(kThreads) find(const float* logits, int width, Ranked* best) {
  const int start = static_cast<int>(blockIdx.x) * kPart, end = min(start + kPart, width);
  const float* x = logits + int64_t{blockIdx.y} * width;
  Ranked own{-INFINITY, start};
  for (int i = start + threadIdx.x; i < end; i += kThreads) {
    const Ranked other{x[i], i};
    if (other.before(own)) own = other;
  }
  own = best_of_block(own);
  if (threadIdx.x == 0) best[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = own;
}

// grid: [parts, rows], or [1, rows] when no sums are wanted.
__global__ void __launch_bounds__(kThreads)
    add(const float* logits, int width, const Ranked* best, int parts, int64_t* tokens, float* sums) {
  __shared__ float term[kPart];
  const float* x = logits + int64_t{blockIdx.y} * width;
  Ranked own = best[int64_t{blockIdx.y} * parts];
  for (int i = threadIdx.x; i < parts; i += kThreads) {
    const Ranked other = best[int64_t{blockIdx.y} * parts + i];
    if (other.before(own)) own = other;
  }
  own = best_of_block(own);
  if (threadIdx.x == 0 && blockIdx.x == 0) tokens[blockIdx.y] = own.id;
  if (!sums) return;
  const int start = static_cast<int>(blockIdx.x) * kPart, count = min(kPart, width - start);
  for (int i = threadIdx.x; i < count; i += kThreads) term[i] = exp(x[start + i] - x[own.id]);
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  float sum = 0;
  for (int i = threadIdx.x % kLanes; i < count; i += kLanes) sum += term[i];
  sum = lane_sum(sum, kLanes);
  if (threadIdx.x == 0) sums[int64_t{blockIdx.y} * parts + blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) finish(const float* sums, int rows, int parts, float* probability) {
  const int row = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  float sum = 0;
  for (int i = 0; i < parts; ++i) sum += sums[int64_t{row} * parts + i];
  probability[row] = 1.0f / sum;
}

class TopToken : public TopTokenSignature {
 public:
  explicit TopToken(const KernelInfo& info) : TopTokenSignature(info), arena_(info) {}

  void compute(const Context& context) const {
    const Tensor logits = context.input(0);
    check(logits);
    context.expect_outputs(probability ? 2 : 1);
    const int64_t rows = logits.dims[0], width = logits.dims[1];
    const unsigned parts = blocks_of(width, kPart);
    const auto* x = logits.as<float>();
    auto* tokens = context.output(0, {rows}).as<int64_t>();
    float* out = probability ? context.output(1, {rows}).as<float>() : nullptr;
    const cudaStream_t stream = stream_of(context);
    constexpr int64_t kMost = 65535;  // rows of one launch: the second dimension of a grid
    const int64_t together = std::min(kMost, rows);
    const Arena::Memory best = arena_.take<Ranked>(together * parts), sums = arena_.take<float>(together * parts);
    for (int64_t first = 0; first < rows; first += kMost) {
      const auto count = static_cast<unsigned>(std::min(kMost, rows - first));
      launch(find, dim3(parts, count), kThreads, 0, stream, x + first * width, width, best.as<Ranked>());
      launch(add, dim3(probability ? parts : 1, count), kThreads, 0, stream, x + first * width, width,
             best.as<Ranked>(), parts, tokens + first, probability ? sums.as<float>() : nullptr);
      if (probability)
        launch(finish, blocks_of(count, kThreads), kThreads, 0, stream, sums.as<float>(), count, parts, out + first);
    }
  }

 private:
  Arena arena_;
};

}  // namespace

const OrtCustomOp* top_token() {
  static const Op<Checked<TopToken>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
