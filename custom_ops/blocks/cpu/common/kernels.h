// Tables of kernels by type.
#pragma once

#include <cstddef>

#include "../row_kernel.h"

namespace trigraph::TRIGRAPH_ISA {

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
