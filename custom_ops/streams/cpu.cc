// StreamNorm: residual streams with a part's result added to each, and their norms. StreamMean: one row of them.
#include "../rms_norm/norm.h"
#include "arithmetic.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kElements = 16384;  // fewer cost less than waking a thread

struct StreamNorm : StreamNormSignature {
  using StreamNormSignature::StreamNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), block = context.input(2), inject = context.input(3);
    const int64_t hidden = check(x, weight, block, inject), rows = x.dims[0], width = streams * hidden;
    context.expect_outputs(block.rank ? 2 : 1);
    float* y = context.output(0, {rows, width}).as<float>();
    float* sum = block.rank ? context.output(1, {rows, width}).as<float>() : nullptr;
    const int64_t together = kElements / hidden + 1;
    context.parallel_for((rows * streams + together - 1) / together, [&](int64_t task) {
      for (int64_t i = task * together; i < rows * streams && i < (task + 1) * together; ++i) {
        const int64_t row = i / streams, stream = i % streams;
        const float* from = x.as<float>() + i * hidden;
        if (sum) {
          add_block(from, block.as<float>() + row * hidden, inject.as<float>()[i], streams, hidden, sum + i * hidden);
          from = sum + i * hidden;
        }
        normalize(from, weight.as<float>() + stream * hidden, hidden, eps, y + i * hidden);
      }
    });
  }
};

struct StreamMean : StreamMeanSignature {
  using StreamMeanSignature::StreamMeanSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), logits = context.input(1);
    const int64_t hidden = check(x, logits), rows = x.dims[0], width = streams * hidden;
    float* y = context.output(0, {rows, hidden}).as<float>();
    const int64_t together = kElements / width + 1;
    context.parallel_for((rows + together - 1) / together, [&](int64_t task) {
      for (int64_t row = task * together; row < rows && row < (task + 1) * together; ++row)
        mean_of_streams(x.as<float>() + row * width, logits.as<float>() + row * width, streams, hidden,
                        y + row * hidden);
    });
  }
};

}  // namespace

const OrtCustomOp* stream_norm() {
  static const Op<StreamNorm> op;
  return &op;
}

const OrtCustomOp* stream_mean() {
  static const Op<StreamMean> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
