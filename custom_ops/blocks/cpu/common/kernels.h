// Tables of kernels by type.
#pragma once

#include "activations.h"

namespace trigraph::TRIGRAPH_ISA {

template <class F>
void unpack_row(const uint8_t* w, int64_t width, float* out) {
  for (int64_t start = 0; start < width; start += kSuper)
    unpack<F>(w + start / F::kBlock * F::kBytes, static_cast<int>(width - start < kSuper ? width - start : kSuper),
              out + start);
}

template <class F>
constexpr WeightType weight_type() {
  return {F::kName, F::kDType, F::kBlock, F::kBytes};
}

template <size_t N>
const RowKernel* find(const RowKernel (&kernels)[N], const std::string& type) {
  for (const RowKernel& kernel : kernels)
    if (type == kernel.type) return &kernel;
  return nullptr;
}

}  // namespace trigraph::TRIGRAPH_ISA
