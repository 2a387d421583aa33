// TopToken on a device: blocks find the best of their parts of the vocabulary, then add up their exponentials. The last
// block of a row puts its parts together, in order.
#include "../cuda/kernel.h"
#include "../cuda/last_block.cuh"
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

// grid: [parts, rows]. Among NaNs the first id of a part is its best. `best`: [rows, parts].
__global__ void __launch_bounds__(kThreads)
    find(const float* logits, int width, Ranked* best, int64_t* tokens, unsigned* done) {
  const int start = static_cast<int>(blockIdx.x) * kPart, end = min(start + kPart, width);
  const int parts = static_cast<int>(gridDim.x);
  const float* x = logits + int64_t{blockIdx.y} * width;
  best += int64_t{blockIdx.y} * parts;
  Ranked own{-INFINITY, start};
  for (int i = start + threadIdx.x; i < end; i += kThreads) {
    const Ranked other{x[i], i};
    if (other.before(own)) own = other;
  }
  own = best_of_block(own);
  if (threadIdx.x == 0) best[blockIdx.x] = own;
  if (!is_last(done + blockIdx.y, gridDim.x)) return;
  own = best[0];
  for (int i = threadIdx.x; i < parts; i += kThreads)
    if (best[i].before(own)) own = best[i];
  own = best_of_block(own);
  if (threadIdx.x == 0) tokens[blockIdx.y] = own.id;
}

// grid: [parts, rows]. `sums`: [rows, parts].
__global__ void __launch_bounds__(kThreads)
    add(const float* logits, int width, const int64_t* tokens, float* sums, float* probability, unsigned* done) {
  __shared__ float term[kPart];
  const float* x = logits + int64_t{blockIdx.y} * width;
  const int start = static_cast<int>(blockIdx.x) * kPart, count = min(kPart, width - start);
  const float largest = x[tokens[blockIdx.y]];
  sums += int64_t{blockIdx.y} * gridDim.x;
  for (int i = threadIdx.x; i < count; i += kThreads) term[i] = exp(x[start + i] - largest);
  __syncthreads();
  if (threadIdx.x < kWarp) {
    float sum = 0;
    for (int i = threadIdx.x % kLanes; i < count; i += kLanes) sum += term[i];
    sum = lane_sum(sum, kLanes);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  }
  if (!is_last(done + blockIdx.y, gridDim.x) || threadIdx.x) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += sums[i];
  probability[blockIdx.y] = 1.0f / sum;
}

class TopToken : public TopTokenSignature {
 public:
  explicit TopToken(const KernelInfo& info) : TopTokenSignature(info), arena_(info), done_(kMost) {}

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
    const int64_t together = std::min(kMost, rows);
    const Arena::Memory best = arena_.take<Ranked>(together * parts), sums = arena_.take<float>(together * parts);
    for (int64_t first = 0; first < rows; first += kMost) {
      const dim3 grid(parts, static_cast<unsigned>(std::min(kMost, rows - first)));
      launch(find, grid, kThreads, 0, stream, x + first * width, width, best.as<Ranked>(), tokens + first, done_.at(0));
      if (probability)
        launch(add, grid, kThreads, 0, stream, x + first * width, width, tokens + first, sums.as<float>(), out + first,
               done_.at(0));
    }
  }

 private:
  static constexpr int64_t kMost = 4096;  // rows of one launch
  Arena arena_;
  Counters done_;
};

}  // namespace

const OrtCustomOp* top_token() {
  static const Op<Checked<TopToken>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
