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

}  // namespace trigraph::TRIGRAPH_ISA
