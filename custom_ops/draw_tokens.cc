// DrawTokens: the tokens that a request draws from rows of logits, for a graph that goes on with them. See draw.cc.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernel.h"

extern "C" int64_t trigraph_draw(const float* logits, const int64_t* ids, int64_t count, double temperature,
                                 int64_t top_k, double top_p, double min_p, uint64_t seed, uint64_t position);

namespace trigraph {
namespace {

// Row i is drawn at position + i; at temperature 0 it is the likeliest token. A row without a finite logit has token
// -1. `before` are tokens that the rows follow, the first of them at position - 1; then a token is 0 in place of -1,
// for the graph goes on with it.
struct DrawTokens {
  static constexpr const char* kName = "DrawTokens";
  static constexpr Argument kInputs[] = {{"logits", DType::f32},   // [rows, vocab]
                                         {"filters", DType::f64},  // temperature, top-p, min-p
                                         {"numbers", DType::i64},  // top-k, seed, position
                                         {"before", DType::i64, true}};
  static constexpr Argument kOutputs[] = {{"tokens", DType::i64}, {"all", DType::i64, true}};

  explicit DrawTokens(const KernelInfo&) {}

  void compute(const Context& context) const {
    const Tensor logits = context.input(0), filters = context.input(1), numbers = context.input(2);
    const Tensor before = context.input(3);
    logits.expect({-1, -1});
    filters.expect({3});
    numbers.expect({3});
    context.expect_outputs(before.data ? 2 : 1);
    const auto* real = filters.as<const double>();
    const auto* whole = numbers.as<const int64_t>();
    if (!(real[0] >= 0 && std::isfinite(real[0]))) fail("the temperature is %g; it must be 0 or more", real[0]);
    if (whole[0] < 0) fail("top-k is %lld; it must be 0 (off) or more", static_cast<long long>(whole[0]));
    if (before.data) before.expect({-1});
    const int64_t rows = logits.dims[0], vocab = logits.dims[1], known = before.data ? before.dims[0] : 0;
    auto* tokens = context.output(0, {rows}).as<int64_t>();
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t position = whole[2] + i + (known ? known - 1 : 0);
      tokens[i] = token(logits.as<const float>() + i * vocab, vocab, real, whole, position);
      if (before.data && tokens[i] < 0) tokens[i] = 0;
    }
    if (!before.data) return;
    auto* all = context.output(1, {known + rows}).as<int64_t>();
    std::copy_n(tokens, rows, std::copy_n(before.as<const int64_t>(), known, all));
  }

 private:
  static int64_t token(const float* logits, int64_t vocab, const double* real, const int64_t* whole, int64_t position) {
    const bool likeliest = real[0] == 0;
    return trigraph_draw(logits, nullptr, vocab, likeliest ? 1 : real[0], likeliest ? 1 : whole[0], real[1], real[2],
                         static_cast<uint64_t>(whole[1]), static_cast<uint64_t>(position));
  }
};

}  // namespace

const OrtCustomOp* draw_tokens() {
  static const Op<DrawTokens> op;
  return &op;
}

}  // namespace trigraph
