// The operator as a graph sees it: inputs, attributes and the shapes that must agree.
#pragma once

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

struct RouterSignature {
  static constexpr const char* kName = "Router";
  static constexpr Argument kInputs[] = {{"logits", DType::f32}};
  static constexpr Argument kOutputs[] = {{"ids", DType::i64}, {"weights", DType::f32}};
  int64_t k;
  bool normalize;

  explicit RouterSignature(const KernelInfo& info) : k(info.integer("k")), normalize(info.integer("normalize") != 0) {
    if (k < 1) fail("attribute k is %lld, below 1", static_cast<long long>(k));
  }

  void check(const Tensor& logits) const {
    logits.expect({-1, -1});
    if (k > logits.dims[1])
      fail("attribute k is %lld, more than the %lld experts of input logits", static_cast<long long>(k),
           static_cast<long long>(logits.dims[1]));
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
