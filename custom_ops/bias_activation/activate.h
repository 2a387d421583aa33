// Activations of sixteen values.
#pragma once

#include "../simd.h"
#include "signature.h"

namespace trigraph::TRIGRAPH_ISA {

template <Activation activation>
TRIGRAPH_INLINE vf activate(vf x) {
  if constexpr (activation == Activation::gelu_tanh) {
    x = max(splat(kTanhLeast), x);  // in this order NaN stays NaN
    return mul(x, sigmoid(mul(x, fmadd(mul(x, x), splat(kTanh3), splat(kTanh1)))));
  } else if constexpr (activation == Activation::gelu_erf) {
    // x (1 + erf(x / sqrt(2))) / 2 = max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, where nothing cancels.
    const vf size = min(splat(kMostTail), max(x, sub(zero(), x)));
    vf sum = splat(tail_term(kTailTerms - 1));
    for (int i = kTailTerms - 2; i >= 0; --i) sum = fmadd(sum, size, splat(tail_term(i)));
    const vf tail = exp(sub(zero(), mul(size, sum)));
    return sub(max(zero(), x), mul(mul(size, splat(0.5f)), tail));
  } else {
    return x;
  }
}

}  // namespace trigraph::TRIGRAPH_ISA
