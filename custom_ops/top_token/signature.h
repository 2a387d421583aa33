// The operator as a graph sees it: inputs, attributes and the shapes that must agree.
#pragma once

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

struct TopTokenSignature {
  static constexpr const char* kName = "TopToken";
  static constexpr Argument kInputs[] = {{"logits", DType::f32}};
  static constexpr Argument kOutputs[] = {{"tokens", DType::i64}, {"probability", DType::f32, true}};
  static constexpr int64_t kPart = 4096;  // ids whose exponentials are summed before parts are
  bool probability;

  explicit TopTokenSignature(const KernelInfo& info) : probability(info.integer("probability") != 0) {}

  static void check(const Tensor& logits) {
    logits.expect({-1, -1});
    if (!logits.dims[1]) fail("input logits has rows of width 0");
  }
};

struct TopTokensSignature {
  static constexpr const char* kName = "TopTokens";
  static constexpr Argument kInputs[] = {{"logits", DType::f32}};
  static constexpr Argument kOutputs[] = {{"values", DType::f32}, {"ids", DType::i64}};
  static constexpr int64_t kMostTokens = 256;
  int64_t count;

  explicit TopTokensSignature(const KernelInfo& info) : count(info.integer("count")) {
    if (count < 1 || count > kMostTokens)
      fail("attribute count is %lld, outside 1 to %lld", static_cast<long long>(count),
           static_cast<long long>(kMostTokens));
  }
  void check(const Tensor& logits) const {
    logits.expect({-1, -1});
    if (logits.dims[1] < count || logits.dims[1] > INT32_MAX)
      fail("input logits has rows of width %lld, and attribute count is %lld", static_cast<long long>(logits.dims[1]),
           static_cast<long long>(count));
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
