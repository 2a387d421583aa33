// The operator as a graph sees it: inputs, and the shapes that must agree.
#pragma once

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

struct PositionRowsSignature {
  static constexpr const char* kName = "PositionRows";
  static constexpr Argument kInputs[] = {
      {"x", DType::f32}, {"bias", DType::f32}, {"table", DType::f32}, {"rows", DType::i32}, {"weights", DType::f32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  static constexpr int kRows = 4;  // of the table, for each row of x

  static void check(const Tensor& x, const Tensor& bias, const Tensor& table, const Tensor& rows,
                    const Tensor& weights) {
    x.expect({-1, -1});
    bias.expect({x.dims[1]});
    table.expect({-1, x.dims[1]});
    rows.expect({kRows, x.dims[0]});
    weights.expect({kRows, x.dims[0]});
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
