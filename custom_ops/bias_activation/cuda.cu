// BiasActivation on a device: a thread for each element.
#include "../cuda/kernel.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

constexpr int kThreads = 256;

// cpu.cc's `activate` for one element.
template <Activation activation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (activation == Activation::gelu_tanh) {
    x = kTanhLeast > x ? kTanhLeast : x;
    return x * sigmoid(x * fmaf(x * x, kTanh3, kTanh1));
  } else if constexpr (activation == Activation::gelu_erf) {
    const float positive = 0.0f > x ? 0.0f : x, negated = 0.0f - x, most = x > negated ? x : negated;
    const float size = kMostTail < most ? kMostTail : most;
    float sum = tail_term(kTailTerms - 1);
#pragma unroll
    for (int i = kTailTerms - 2; i >= 0; --i) sum = fmaf(sum, size, tail_term(i));
    return positive - size * 0.5f * exp(0.0f - size * sum);
  } else {
    return x;
  }
}

// grid: [rows, blocks of a row].
template <Activation activation>
__global__ void __launch_bounds__(kThreads)
    make_rows(const float* x, const float* bias, const float* residual, int64_t width, float* y) {
  const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x, at = blockIdx.x * width + i;
  if (i >= width) return;
  const float made = activate<activation>(x[at] + bias[i]);
  y[at] = residual ? made + residual[at] : made;
}

struct BiasActivation : BiasActivationSignature {
  using BiasActivationSignature::BiasActivationSignature;

  void compute(const Context& context) const {
    const Tensor x = context.input(0), bias = context.input(1), residual = context.input(2);
    check(x, bias, residual);
    const Tensor y = context.output_like(0, x);
    const auto kernel = activation == Activation::gelu_tanh  ? make_rows<Activation::gelu_tanh>
                        : activation == Activation::gelu_erf ? make_rows<Activation::gelu_erf>
                                                             : make_rows<Activation::none>;
    launch(kernel, dim3(static_cast<unsigned>(x.dims[0]), blocks_of(x.dims[1], kThreads)), kThreads, 0,
           stream_of(context), x.as<float>(), bias.as<float>(), residual.as<float>(), x.dims[1], y.as<float>());
  }
};

}  // namespace

const OrtCustomOp* bias_activation() {
  static const Op<Checked<BiasActivation>> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
