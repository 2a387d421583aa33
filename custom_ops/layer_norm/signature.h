// The operator as a graph sees it: inputs, attributes and the shapes that must agree.
#pragma once

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

struct LayerNormSignature {
  static constexpr const char* kName = "LayerNorm";
  static constexpr Argument kInputs[] = {{"x", DType::f32}, {"weight", DType::f32}, {"bias", DType::f32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  float eps;

  explicit LayerNormSignature(const KernelInfo& info) : eps(info.real("eps")) {
    if (!(eps >= 0)) fail("attribute eps is %g, below 0", static_cast<double>(eps));
  }

  static void check(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    x.expect({-1, -1});
    if (!x.dims[1]) fail("input x has rows of width 0");
    weight.expect({x.dims[1]});
    bias.expect({x.dims[1]});
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
