// The operators as a graph sees them: what block drafters do with the rows of their blocks, one for each sequence.
#pragma once

#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

struct BlockConvolutionSignature {
  static constexpr const char* kName = "BlockConvolution";
  static constexpr Argument kInputs[] = {
      {"x", DType::f32}, {"kernels", DType::f32}, {"base", DType::f32}, {"cu_seqlens", DType::i32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};

  int64_t first, taps;  // of the kernels that are used

  explicit BlockConvolutionSignature(const KernelInfo& info)
      : first(info.integer("first")), taps(info.integer("taps")) {
    if (first < 0 || taps < 1 || first + taps > kMostTaps)
      fail("attributes first and taps are %lld and %lld, expected 0 and 1 at least, %lld together at most",
           static_cast<long long>(first), static_cast<long long>(taps), static_cast<long long>(kMostTaps));
  }
  static constexpr int64_t kMostTaps = 256;

  // Checks shapes; the channels that share a coefficient.
  int64_t group(const Tensor& x, const Tensor& kernels, const Tensor& base) const {
    x.expect({-1, -1});
    base.expect({-1, x.dims[1]});
    kernels.expect({x.dims[0], -1});
    if (base.dims[0] < first + taps)
      fail("input %s has %lld rows, and attributes ask for %lld", base.name, static_cast<long long>(base.dims[0]),
           static_cast<long long>(first + taps));
    const int64_t groups = kernels.dims[1] / base.dims[0];
    if (!groups || groups * base.dims[0] != kernels.dims[1] || x.dims[1] % groups)
      fail("input %s has %lld columns, expected %lld x a divisor of %lld", kernels.name,
           static_cast<long long>(kernels.dims[1]), static_cast<long long>(base.dims[0]),
           static_cast<long long>(x.dims[1]));
    return x.dims[1] / groups;
  }
};

struct CandidateEdgesSignature {
  static constexpr const char* kName = "CandidateEdges";
  static constexpr Argument kInputs[] = {{"scores", DType::f32},     {"known", DType::f32},
                                         {"before", DType::f32},     {"after", DType::f32},
                                         {"cu_seqlens", DType::i32}, {"gate", DType::f32, true}};
  static constexpr Argument kOutputs[] = {{"edges", DType::f32}};

  int64_t drafting;  // the first row of a block that drafts

  explicit CandidateEdgesSignature(const KernelInfo& info) : drafting(info.integer("drafting")) {
    if (drafting != 0 && drafting != 1)
      fail("attribute drafting is %lld, expected 0 or 1", static_cast<long long>(drafting));
  }
  static void check(const Tensor& scores, const Tensor& known, const Tensor& before, const Tensor& after,
                    const Tensor& gate) {
    scores.expect({-1, -1});
    known.expect({scores.dims[0], -1});
    before.expect({scores.size(), known.dims[1]});
    after.expect({scores.size(), known.dims[1]});
    if (gate.rank) gate.expect({scores.dims[0], known.dims[1]});
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
