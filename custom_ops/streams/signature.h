// The operators as a graph sees them. A row of `streams` streams holds them side by side, each `hidden` wide.
#pragma once

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

// Adds a part's result to the streams, and norms each of them.
struct StreamNormSignature {
  static constexpr const char* kName = "StreamNorm";
  static constexpr Argument kInputs[] = {
      {"x", DType::f32}, {"weight", DType::f32}, {"block", DType::f32, true}, {"inject", DType::f32, true}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}, {"sum", DType::f32, true}};
  int64_t streams;
  float eps;

  explicit StreamNormSignature(const KernelInfo& info) : streams(info.integer("streams")), eps(info.real("eps")) {
    if (streams < 1) fail("attribute streams is %lld, expected at least 1", static_cast<long long>(streams));
    if (!(eps >= 0)) fail("attribute eps is %g, below 0", static_cast<double>(eps));
  }

  // Width of a stream.
  int64_t check(const Tensor& x, const Tensor& weight, const Tensor& block, const Tensor& inject) const {
    x.expect({-1, -1});
    weight.expect({-1});
    const int64_t width = weight.dims[0], hidden = width / streams;
    if (!hidden || width % streams)
      fail("input weight has %lld values, expected a multiple of %lld streams", static_cast<long long>(width),
           static_cast<long long>(streams));
    x.expect({x.dims[0], width});
    if (!block.rank != !inject.rank) fail("inputs block and inject must both be there, or neither");
    if (block.rank) block.expect({x.dims[0], hidden});
    if (block.rank) inject.expect({x.dims[0], streams});
    return hidden;
  }
};

// The mean of the streams, each element times the sigmoid of its logit.
struct StreamMeanSignature {
  static constexpr const char* kName = "StreamMean";
  static constexpr Argument kInputs[] = {{"x", DType::f32}, {"logits", DType::f32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  int64_t streams;

  explicit StreamMeanSignature(const KernelInfo& info) : streams(info.integer("streams")) {
    if (streams < 1) fail("attribute streams is %lld, expected at least 1", static_cast<long long>(streams));
  }

  int64_t check(const Tensor& x, const Tensor& logits) const {
    x.expect({-1, -1});
    logits.expect({x.dims[0], x.dims[1]});
    if (!x.dims[1] || x.dims[1] % streams)
      fail("input x has rows of width %lld, expected a multiple of %lld streams", static_cast<long long>(x.dims[1]),
           static_cast<long long>(streams));
    return x.dims[1] / streams;
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
