// The operator as a graph sees it, and the numbers that its activations are made of.
#pragma once

#include <string>

#include "../everywhere.h"
#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {

enum class Activation { none, gelu_tanh, gelu_erf };

// GELU by tanh is x sigmoid(x (kTanh1 + kTanh3 x^2)): sqrt(8 / pi), and 0.044715 times that. Below kTanhLeast it is 0
// to 36 places.
constexpr float kTanh1 = 1.59576912f, kTanh3 = 0.0713548163f, kTanhLeast = -10.0f;

// erfc(x / sqrt(2)) = e^-(x p(x)) for 0 <= x <= kMostTail, with an error below 1e-7 in float32 with this library's e^x.
// The polynomial p is a fit of this project: least squares for -ln(erfc(x / sqrt(2))) / x at 4000 Chebyshev points up
// to 12.8, weighted by what an error changes in erfc and then by the errors themselves, until these are level. Behind
// kMostTail it is 0 to 36 places.
constexpr float kMostTail = 12.8f;
constexpr int kTailTerms = 8;
TRIGRAPH_EVERYWHERE inline float tail_term(int power) {
  const float terms[kTailTerms] = {0.797885656f,    0.318294793f,   0.0364041105f,    -0.0049263509f,
                                   0.000123485501f, 0.00011485412f, -2.37718541e-05f, 1.62306333e-06f};
  return terms[power];
}

struct BiasActivationSignature {
  static constexpr const char* kName = "BiasActivation";
  static constexpr Argument kInputs[] = {{"x", DType::f32}, {"bias", DType::f32}, {"residual", DType::f32, true}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  Activation activation;

  explicit BiasActivationSignature(const KernelInfo& info) : activation(read(info.text("activation"))) {}

  static Activation read(const std::string& name) {
    if (name == "none") return Activation::none;
    if (name == "gelu_tanh") return Activation::gelu_tanh;
    if (name == "gelu_erf") return Activation::gelu_erf;
    fail("attribute activation is %s, expected none, gelu_tanh or gelu_erf", name.c_str());
  }
  static void check(const Tensor& x, const Tensor& bias, const Tensor& residual) {
    x.expect({-1, -1});
    bias.expect({x.dims[1]});
    if (residual.rank) residual.expect({x.dims[0], x.dims[1]});
  }
};

}  // namespace trigraph::TRIGRAPH_ISA
