// The operator as a graph sees it: inputs, attributes, and the shapes that must agree.
#pragma once

#include <cmath>

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

struct PatchAttentionSignature {
  static constexpr const char* kName = "PatchAttention";
  static constexpr Argument kInputs[] = {{"qkv", DType::f32}, {"places", DType::i32}, {"cu_seqlens", DType::i32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  static constexpr int64_t kMostWidth = 256;  // of a head
  int64_t heads;
  double theta;

  explicit PatchAttentionSignature(const KernelInfo& info)
      : heads(info.integer("heads")), theta(info.real("rope_theta")) {
    if (heads < 1) fail("attribute heads is %lld, expected at least 1", static_cast<long long>(heads));
    if (!(theta > 0) || std::isinf(theta)) fail("attribute rope_theta is %g, not above 0 and finite", theta);
  }

  // Checks shapes; returns the width of a head.
  int64_t check(const Tensor& qkv, const Tensor& places) const {
    qkv.expect({-1, -1});
    places.expect({2, qkv.dims[0]});
    const int64_t columns = qkv.dims[1], width = heads <= columns ? columns / 3 / heads : 0;
    if (width < 4 || width % 4 || width > kMostWidth || width * heads * 3 != columns)
      fail("input qkv has %lld columns, not 3 x %lld heads of 4, 8, .. or %lld dimensions",
           static_cast<long long>(columns), static_cast<long long>(heads), static_cast<long long>(kMostWidth));
    return width;
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
