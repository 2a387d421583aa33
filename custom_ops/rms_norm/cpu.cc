// RMSNorm: root-mean-square norm of each row, of a sum where there is a residual. JoinedRMSNorm: of two rows, joined.
#include "../simd.h"
#include "norm.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int64_t kElements = 16384;  // fewer cost less than waking a thread

struct RMSNorm : RMSNormSignature {
  using RMSNormSignature::RMSNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), residual = context.input(2);
    check(x, weight, residual);
    context.expect_outputs(residual.rank ? 2 : 1);
    const int64_t rows = x.dims[0], width = x.dims[1];
    float* y = context.output_like(0, x).as<float>();
    float* sum = residual.rank ? context.output_like(1, x).as<float>() : nullptr;
    const int64_t together = kElements / width + 1;
    context.parallel_for((rows + together - 1) / together, [&](int64_t task) {
      for (int64_t i = task * together; i < rows && i < (task + 1) * together; ++i) {
        const float* row = x.as<float>() + i * width;
        if (sum) {
          const float* other = residual.as<float>() + i * width;
          for (int64_t j = 0; j < width; j += VL)
            store_first(sum + i * width + j, add(load_first(row + j, width - j), load_first(other + j, width - j)),
                        width - j);
          row = sum + i * width;
        }
        normalize(row, weight.as<float>(), width, eps, y + i * width);
      }
    });
  }
};

struct JoinedRMSNorm : JoinedRMSNormSignature {
  using JoinedRMSNormSignature::JoinedRMSNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), other = context.input(2);
    const Tensor other_weight = context.input(3);
    check(x, weight, other, other_weight);
    const int64_t rows = x.dims[0], first = x.dims[1], second = other.dims[1], width = first + second;
    float* y = context.output(0, {rows, width}).as<float>();
    const int64_t together = kElements / width + 1;
    context.parallel_for((rows + together - 1) / together, [&](int64_t task) {
      for (int64_t i = task * together; i < rows && i < (task + 1) * together; ++i) {
        normalize(x.as<float>() + i * first, weight.as<float>(), first, eps, y + i * width);
        normalize(other.as<float>() + i * second, other_weight.as<float>(), second, eps, y + i * width + first);
      }
    });
  }
};

}  // namespace

const OrtCustomOp* rms_norm() {
  static const Op<RMSNorm> op;
  return &op;
}

const OrtCustomOp* joined_rms_norm() {
  static const Op<JoinedRMSNorm> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
