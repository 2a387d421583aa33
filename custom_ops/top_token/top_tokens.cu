// TopTokens on a device: blocks share a row, and the last of them to be done ranks its largest logits.
#include "../cuda/kernel.h"
#include "../cuda/largest.cuh"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kMostTokens = static_cast<int>(TopTokensSignature::kMostTokens);
static_assert(kMostTokens <= kShares);

// grid: [kBlocks, rows]. `largest`: [rows, kShares]. kWhole: rows are whole quads.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads, 4)
    rank_tokens(const float* logits, int width, int count, Key* largest, unsigned* done, float* values, int64_t* ids) {
  __shared__ Key found[kMostTokens];
  const float* row = logits + int64_t{blockIdx.y} * width;
  largest += int64_t{blockIdx.y} * kShares;
  find_largest<kWhole>(row, width, largest);
  if (!is_last(done + blockIdx.y, gridDim.x)) return;
  if (!find_candidates<kWhole>(row, width, count, largest, found))
    for (int n = 0; n < count; ++n) {
      const Key next = find_next<true>(row, width, n ? found[n - 1] : kUnordered);
      if (threadIdx.x == 0) found[n] = next;
      __syncthreads();
    }
  const int n = static_cast<int>(threadIdx.x);
  if (n >= count) return;
  values[int64_t{blockIdx.y} * count + n] = logit_of(found[n]);
  ids[int64_t{blockIdx.y} * count + n] = id_of(found[n]);
}

class TopTokens : public TopTokensSignature {
 public:
  explicit TopTokens(const KernelInfo& info) : TopTokensSignature(info), arena_(info), done_(kMostRows) {}

  void compute(const Context& context) const {
    const Tensor logits = context.input(0);
    check(logits);
    const int64_t rows = logits.dims[0], width = logits.dims[1];
    const Tensor values = context.output(0, {rows, count}), ids = context.output(1, {rows, count});
    const Arena::Memory largest = arena_.take<Key>(std::min(kMostRows, rows) * kShares);
    for (int64_t first = 0; first < rows; first += kMostRows)
      launch(width % kQuad ? rank_tokens<false> : rank_tokens<true>,
             dim3(kBlocks, static_cast<unsigned>(std::min(kMostRows, rows - first))), kThreads, 0, stream_of(context),
             logits.as<float>() + first * width, static_cast<int>(width), static_cast<int>(count), largest.as<Key>(),
             done_.at(0), values.as<float>() + first * count, ids.as<int64_t>() + first * count);
  }

 private:
  static constexpr int64_t kMostRows = 1024;  // of one launch
  Arena arena_;
  Counters done_;
};

}  // namespace

const OrtCustomOp* top_tokens() {
  static const Op<Checked<TopTokens>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
