// TopToken: the likeliest token of each row of logits, and its probability. Rows are worked on in parts of the
// vocabulary.
#include <algorithm>
#include <limits>

#include "../softmax.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct PartMaxima;
struct PartSums;

float maximum(const float* x, int64_t n) {
  vf most = splat(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + VL <= n; i += VL) most = max(load(x + i), most);
  float lanes[VL];
  store(lanes, most);
  float result = lanes[0];
  for (float lane : lanes) result = lane > result ? lane : result;
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

struct TopToken : TopTokenSignature {
  using TopTokenSignature::TopTokenSignature;

  void compute(const Context& context) const {
    const Tensor logits = context.input(0);
    check(logits);
    context.expect_outputs(probability ? 2 : 1);
    const int64_t rows = logits.dims[0], width = logits.dims[1], parts = (width + kPart - 1) / kPart;
    const auto* x = logits.as<const float>();
    auto* tokens = context.output(0, {rows}).as<int64_t>();
    auto* maxima = static_cast<float*>(scratch<PartMaxima>(static_cast<size_t>(rows * parts) * sizeof(float)));
    auto part = [&](int64_t task) {
      return std::pair(x + task / parts * width + task % parts * kPart, std::min(kPart, width - task % parts * kPart));
    };
    context.parallel_for(rows * parts, [&](int64_t task) {
      const auto [values, n] = part(task);
      maxima[task] = maximum(values, n);
    });
    for (int64_t i = 0; i < rows; ++i) {
      const float* most = std::max_element(maxima + i * parts, maxima + (i + 1) * parts);
      tokens[i] = first(x + i * width, width, (most - maxima - i * parts) * kPart, *most);
    }
    if (!probability) return;

    auto* out = context.output(1, {rows}).as<float>();
    auto* sums = static_cast<float*>(scratch<PartSums>(static_cast<size_t>(rows * parts) * sizeof(float)));
    context.parallel_for(rows * parts, [&](int64_t task) {
      const auto [values, n] = part(task);
      const int64_t i = task / parts;
      sums[task] = exp_sum(values, n, x[i * width + tokens[i]]);
    });
    for (int64_t i = 0; i < rows; ++i) {
      float sum = 0;
      for (int64_t p = 0; p < parts; ++p) sum += sums[i * parts + p];
      out[i] = 1 / sum;
    }
  }

 private:
  // The lowest id of the value, which lies in the part from `start` on. Without it, as among NaNs, `start`.
  static int64_t first(const float* x, int64_t width, int64_t start, float value) {
    for (int64_t id = start; id < std::min(width, start + kPart); ++id)
      if (x[id] == value) return id;
    return start;
  }
};

}  // namespace

const OrtCustomOp* top_token() {
  static const Op<TopToken> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
