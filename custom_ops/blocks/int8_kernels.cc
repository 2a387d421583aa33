#include "int8_products.h"
#include "kernels.h"

namespace trigraph::TRIGRAPH_ISA {

template <class... F>
static const RowKernel* find_kernel(const std::string& type, Types<F...>) {
  static constexpr RowKernel kKernels[] = {
      {weight_type<F>(), int8_bytes, prepare_int8, int8_product<F>, unpack_row<F>}...};
  return find(kKernels, type);
}

const RowKernel* find_int8_kernel(const std::string& type) { return find_kernel(type, BlockTypes()); }

}  // namespace trigraph::TRIGRAPH_ISA
