// TopToken: the likeliest token of each row of logits, and its probability. Rows are worked on in parts of the
// vocabulary. TopTokens: the likeliest ones.
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

struct TopTokens : TopTokensSignature {
  using TopTokensSignature::TopTokensSignature;

  void compute(const Context& context) const {
    const Tensor logits = context.input(0);
    check(logits);
    const int64_t rows = logits.dims[0], width = logits.dims[1];
    auto* values = context.output(0, {rows, count}).as<float>();
    auto* ids = context.output(1, {rows, count}).as<int64_t>();
    context.parallel_for(rows, [&](int64_t row) {
      rank(logits.as<float>() + row * width, width, values + row * count, ids + row * count);
    });
  }

 private:
  static constexpr int64_t kTogether = 16 * VL;  // logits that are looked at together

  // Where there are as many as wanted, only parts are looked at in which something is larger than the last of them.
  void rank(const float* x, int64_t width, float* values, int64_t* ids) const {
    int64_t found = 0;
    for (int64_t start = 0; start < width; start += kTogether) {
      const int64_t end = std::min(width, start + kTogether);
      if (found == count && !(maximum(x + start, end - start) > values[count - 1])) continue;
      for (int64_t id = start; id < end; ++id) {
        const float value = x[id] != x[id] ? -std::numeric_limits<float>::infinity() : x[id] + 0.0f;  // no -0
        if (found == count && !(value > values[count - 1])) continue;
        int64_t place = found < count ? found++ : count - 1;
        for (; place > 0 && value > values[place - 1]; --place)
          values[place] = values[place - 1], ids[place] = ids[place - 1];
        values[place] = value, ids[place] = id;
      }
    }
  }
};

}  // namespace

const OrtCustomOp* top_token() {
  static const Op<TopToken> op;
  return &op;
}

const OrtCustomOp* top_tokens() {
  static const Op<TopTokens> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
