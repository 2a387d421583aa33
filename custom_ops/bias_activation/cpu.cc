// BiasActivation: activation(x + bias), plus a residual where there is one.
#include <algorithm>

#include "activate.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

template <Activation activation>
void make_row(const float* x, const float* bias, const float* residual, int64_t width, float* y) {
  for (int64_t i = 0; i < width; i += VL) {
    const int64_t left = width - i;
    const vf made = activate<activation>(add(load_first(x + i, left), load_first(bias + i, left)));
    store_first(y + i, residual ? add(made, load_first(residual + i, left)) : made, left);
  }
}

constexpr int64_t kElements = 16384;  // fewer cost less than waking a thread

struct BiasActivation : BiasActivationSignature {
  explicit BiasActivation(const KernelInfo& info)
      : BiasActivationSignature(info),
        row(activation == Activation::gelu_tanh  ? make_row<Activation::gelu_tanh>
            : activation == Activation::gelu_erf ? make_row<Activation::gelu_erf>
                                                 : make_row<Activation::none>) {}

  void compute(const Context& context) const {
    const Tensor x = context.input(0), bias = context.input(1), residual = context.input(2);
    check(x, bias, residual);
    const int64_t rows = x.dims[0], width = x.dims[1];
    const int64_t together = kElements / std::max<int64_t>(width, 1) + 1;
    float* y = context.output_like(0, x).as<float>();
    context.parallel_for((rows + together - 1) / together, [&](int64_t task) {
      for (int64_t i = task * together; i < rows && i < (task + 1) * together; ++i)
        row(x.as<float>() + i * width, bias.as<float>(), residual.rank ? residual.as<float>() + i * width : nullptr,
            width, y + i * width);
    });
  }

  void (*row)(const float* x, const float* bias, const float* residual, int64_t width, float* y);
};

}  // namespace

const OrtCustomOp* bias_activation() {
  static const Op<BiasActivation> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
