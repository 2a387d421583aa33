// The operators as a graph sees them: inputs, and the types of their weights.
#pragma once

#include <algorithm>
#include <string>

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

struct BlockMatMulSignature {
  static constexpr int kMost = 4;  // weights of a node
  static constexpr const char* kName = "BlockMatMul";
  static constexpr Argument kInputs[] = {{"x", DType::f32},
                                         {"weight", DType::any},
                                         {"weight_1", DType::any, true},
                                         {"weight_2", DType::any, true},
                                         {"weight_3", DType::any, true}};
  static constexpr Argument kOutputs[] = {
      {"y", DType::f32}, {"y_1", DType::f32, true}, {"y_2", DType::f32, true}, {"y_3", DType::f32, true}};
  std::string type[kMost];  // of each weight, from the attribute `types`, where commas separate them
  int count = 0;

  explicit BlockMatMulSignature(const KernelInfo& info) {
    const std::string types = info.text("types");
    for (size_t at = 0, end; at <= types.size(); at = end + 1) {
      end = std::min(types.find(',', at), types.size());
      if (count == kMost) fail("attribute types is \"%s\", with more than %d types", types.c_str(), kMost);
      type[count++] = types.substr(at, end - at);
    }
  }

  // One weight for each type, from input `first` on: returns the i-th.
  Tensor weight(const Context& context, int i, int first = 1) const {
    const Tensor tensor = context.input(static_cast<size_t>(first + i));
    if (!tensor.rank) fail("input %s is missing, but attribute types names %d", tensor.name, count);
    if (tensor.rank != 2) fail("input %s has %d dimensions, expected 2", tensor.name, tensor.rank);
    return tensor;
  }
};

// BlockMatMul of rows that are there as int8 too, each as prepare (blocks/cuda/products.h) makes it.
struct PreparedBlockMatMulSignature : BlockMatMulSignature {
  static constexpr const char* kName = "PreparedBlockMatMul";
  static constexpr Argument kInputs[] = {{"x", DType::f32},
                                         {"prepared", DType::u8},
                                         {"weight", DType::any},
                                         {"weight_1", DType::any, true},
                                         {"weight_2", DType::any, true},
                                         {"weight_3", DType::any, true}};
  using BlockMatMulSignature::BlockMatMulSignature;
};

// PreparedRMSNorm and PreparedBlockMatMul of what it makes.
struct NormedBlockMatMulSignature : BlockMatMulSignature {
  static constexpr const char* kName = "NormedBlockMatMul";
  static constexpr int kFirstWeight = 5, kFirstProduct = 3;
  static constexpr Argument kInputs[] = {{"x", DType::f32},
                                         {"norm", DType::f32},
                                         {"residual", DType::f32, true},
                                         {"other", DType::f32, true},
                                         {"other_norm", DType::f32, true},
                                         {"weight", DType::any},
                                         {"weight_1", DType::any, true},
                                         {"weight_2", DType::any, true},
                                         {"weight_3", DType::any, true}};
  static constexpr Argument kOutputs[] = {
      {"normed", DType::f32, true}, {"sum", DType::f32, true}, {"prepared", DType::u8, true}, {"y", DType::f32},
      {"y_1", DType::f32, true},    {"y_2", DType::f32, true}, {"y_3", DType::f32, true}};
  using BlockMatMulSignature::BlockMatMulSignature;
};

// The product of silu(gate) up, or, with a scale and without up, of silu(scale gate).
struct GatedBlockMatMulSignature {
  static constexpr const char* kName = "GatedBlockMatMul";
  static constexpr Argument kInputs[] = {{"gate", DType::f32}, {"up", DType::f32, true}, {"weight", DType::any}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  float scale;  // 0: none

  explicit GatedBlockMatMulSignature(const KernelInfo& info) : scale(info.real("scale", 0)) {}

  void check(const Tensor& gate, const Tensor& up, const Tensor& weight) const {
    gate.expect({-1, -1});
    if (scale != 0 && up.rank) fail("input up is there, but attribute scale is for a gate alone");
    if (scale == 0 && !up.rank) fail("input up is missing");
    if (up.rank) up.expect({gate.dims[0], gate.dims[1]});
    if (weight.rank != 2) fail("input weight has %d dimensions, expected 2", weight.rank);
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
