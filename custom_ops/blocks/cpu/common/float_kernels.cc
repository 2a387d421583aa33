#include "float_products.h"
#include "kernels.h"

namespace trigraph::TRIGRAPH_ISA {

template <class... F>
static const RowKernel* find_kernel(const std::string& type, Types<F...>) {
  static constexpr RowKernel kKernels[] = {
      {weight_type<F>(), float_bytes, prepare_float, float_product<F>, unpack<F>}...};
  return find(kKernels, type);
}

const RowKernel* find_float_kernel(const std::string& type) {
  const RowKernel* kernel = find_kernel(type, PlainTypes());
  return kernel ? kernel : find_kernel(type, BlockTypes());
}

}  // namespace trigraph::TRIGRAPH_ISA
