// TopToken on a device: blocks find the best of their parts of the vocabulary, then add up their exponentials. The last
// block of a row puts its parts together, in order.
#include "../cuda/kernel.h"
#include "../cuda/last_block.cuh"
#include "../cuda/ranked.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;                 // logits that a thread reads at once
constexpr int kSpan = kEach * kThreads;  // ids that a block reads at once
constexpr int kPart = static_cast<int>(TopTokenSignature::kPart);
static_assert(kPart % kSpan == 0);

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

// kWhole: rows are whole quads. grid: [parts, rows]. Among NaNs the first id of a part is its best. `best`: [rows,
// parts].
template <bool kWhole>
__global__ void __launch_bounds__(kThreads)
    find(const float* logits, int width, Ranked* best, int64_t* tokens, unsigned* done) {
  const int start = static_cast<int>(blockIdx.x) * kPart, parts = static_cast<int>(gridDim.x);
  const int first = start + static_cast<int>(threadIdx.x) * kEach;
  float x[kPart / kSpan][kEach];
#pragma unroll
  for (int n = 0; n < kPart / kSpan; ++n)
    read_quad<kWhole>(logits + int64_t{blockIdx.y} * width, width, first + n * kSpan, x[n]);
  best += int64_t{blockIdx.y} * parts;
  Ranked own{-INFINITY, start};
#pragma unroll
  for (int n = 0; n < kPart / kSpan; ++n)
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Ranked other{x[n][i], first + n * kSpan + i};
      if (other.before(own)) own = other;
    }
  own = best_of_block(own);
  if (threadIdx.x == 0) best[blockIdx.x] = own;
  if (!is_last(done + blockIdx.y, gridDim.x)) return;
  own = best[0];
  for (int i = threadIdx.x; i < parts; i += kThreads)
    if (const Ranked other = best[i]; other.before(own)) own = other;
  own = best_of_block(own);
  if (threadIdx.x == 0) tokens[blockIdx.y] = own.id;
}

// grid: [parts, rows]. `sums`: [rows, parts].
template <bool kWhole>
__global__ void __launch_bounds__(kThreads)
    add(const float* logits, int width, const int64_t* tokens, float* sums, float* probability, unsigned* done) {
  constexpr int kLength = kPart / kLanes, kStride = kLength + 4;  // of a lane's terms, which lie side by side
  __shared__ __align__(16) float term[kLanes * kStride];
  const int thread = static_cast<int>(threadIdx.x), start = static_cast<int>(blockIdx.x) * kPart;
  const float* row = logits + int64_t{blockIdx.y} * width;
  float x[kPart / kSpan][kEach];
#pragma unroll
  for (int n = 0; n < kPart / kSpan; ++n) read_quad<kWhole>(row, width, start + n * kSpan + thread * kEach, x[n]);
  const float largest = row[tokens[blockIdx.y]];
#pragma unroll
  for (int n = 0; n < kPart / kSpan; ++n)
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = n * kSpan + thread * kEach + i;
      term[at % kLanes * kStride + at / kLanes] = exp(x[n][i] - largest);
    }
  __syncthreads();
  sums += int64_t{blockIdx.y} * gridDim.x;
  if (thread < kWarp) {
    const int lane = thread % kLanes, count = (min(kPart, width - start) - lane + kLanes - 1) / kLanes;
    float sum = 0;
#pragma unroll 32
    for (int i = 0; i < kLength; ++i) sum = i < count ? sum + term[lane * kStride + i] : sum;
    sum = lane_sum(sum, kLanes);
    if (thread == 0) sums[blockIdx.x] = sum;
  }
  if (!is_last(done + blockIdx.y, gridDim.x)) return;
  float sum = 0;
  for (int first = 0, parts = static_cast<int>(gridDim.x); first < parts; first += kThreads) {
    if (first + thread < parts) term[thread] = sums[first + thread];
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < min(kThreads, parts - first); ++i) sum += term[i];
    __syncthreads();
  }
  if (thread == 0) probability[blockIdx.y] = 1.0f / sum;
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
      launch(width % kEach ? find<false> : find<true>, grid, kThreads, 0, stream, x + first * width, width,
             best.as<Ranked>(), tokens + first, done_.at(0));
      if (probability)
        launch(width % kEach ? add<false> : add<true>, grid, kThreads, 0, stream, x + first * width, width,
               tokens + first, sums.as<float>(), out + first, done_.at(0));
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
