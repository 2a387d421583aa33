// LayerNorm: each row with mean 0 and variance 1, times the weight, plus the bias.
#include "../simd.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

// The mean first, then the variance of what is left without it; sums go in order in each lane, then over the lanes.
void normalize(const float* x, const float* weight, const float* bias, int64_t width, float eps, float* y) {
  vf sum = zero();
  for (int64_t i = 0; i < width; i += VL) sum = add(sum, load_first(x + i, width - i));
  const vf mean = splat(reduce_add(sum) / static_cast<float>(width));
  for (int64_t i = 0; i < width; i += VL) store_first(y + i, sub(load_first(x + i, width - i), mean), width - i);
  vf squares = zero();
  for (int64_t i = 0; i < width; i += VL) {
    const vf part = load_first(y + i, width - i);
    squares = fmadd(part, part, squares);
  }
  const vf factor = splat(1 / std::sqrt(reduce_add(squares) / static_cast<float>(width) + eps));
  for (int64_t i = 0; i < width; i += VL) {
    const int64_t left = width - i;
    store_first(y + i,
                fmadd(mul(load_first(y + i, left), factor), load_first(weight + i, left), load_first(bias + i, left)),
                left);
  }
}

constexpr int64_t kElements = 16384;  // fewer cost less than waking a thread

struct LayerNorm : LayerNormSignature {
  using LayerNormSignature::LayerNormSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), weight = context.input(1), bias = context.input(2);
    check(x, weight, bias);
    const int64_t rows = x.dims[0], width = x.dims[1], together = kElements / width + 1;
    float* y = context.output_like(0, x).as<float>();
    context.parallel_for((rows + together - 1) / together, [&](int64_t task) {
      for (int64_t i = task * together; i < rows && i < (task + 1) * together; ++i)
        normalize(x.as<float>() + i * width, weight.as<float>(), bias.as<float>(), width, eps, y + i * width);
    });
  }
};

}  // namespace

const OrtCustomOp* layer_norm() {
  static const Op<LayerNorm> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
