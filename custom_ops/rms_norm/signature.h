// The operator as a graph sees it: inputs, attributes and the shapes that must agree.
#pragma once

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

struct RMSNormSignature {
  static constexpr const char* kName = "RMSNorm";
  static constexpr Argument kInputs[] = {{"x", DType::f32}, {"weight", DType::f32}, {"residual", DType::f32, true}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}, {"sum", DType::f32, true}};
  float eps;

  explicit RMSNormSignature(const KernelInfo& info) : eps(info.real("eps")) {
    if (!(eps >= 0)) fail("attribute eps is %g, below 0", static_cast<double>(eps));
  }

  static void check(const Tensor& x, const Tensor& weight, const Tensor& residual) {
    x.expect({-1, -1});
    if (!x.dims[1]) fail("input x has rows of width 0");
    weight.expect({x.dims[1]});
    if (residual.rank) residual.expect({x.dims[0], x.dims[1]});
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
