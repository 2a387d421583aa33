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

// Norms of two rows, side by side.
struct JoinedRMSNormSignature {
  static constexpr const char* kName = "JoinedRMSNorm";
  static constexpr Argument kInputs[] = {
      {"x", DType::f32}, {"weight", DType::f32}, {"other", DType::f32}, {"other_weight", DType::f32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  float eps;

  explicit JoinedRMSNormSignature(const KernelInfo& info) : eps(info.real("eps")) {
    if (!(eps >= 0)) fail("attribute eps is %g, below 0", static_cast<double>(eps));
  }

  static void check(const Tensor& x, const Tensor& weight, const Tensor& other, const Tensor& other_weight) {
    x.expect({-1, -1});
    other.expect({x.dims[0], -1});
    for (const Tensor* rows : {&x, &other})
      if (!rows->dims[1]) fail("input %s has rows of width 0", rows->name);
    weight.expect({x.dims[1]});
    other_weight.expect({other.dims[1]});
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
