#include "kernels.h"
#if defined(TRIGRAPH_ISA_portable)
#include "int8_products.h"
#else
#include "int8_lanes.h"
#endif

namespace trigraph::TRIGRAPH_ISA {

template <class... F>
static const RowKernel* find_kernel(const std::string& type, Types<F...>) {
#if defined(TRIGRAPH_ISA_portable)
  static constexpr RowKernel kKernels[] = {
      {weight_type<F>(), int8_bytes, prepare_int8, int8_product<F>, unpack_row<F>}...};
#else
  static constexpr RowKernel kKernels[] = {
      {weight_type<F>(), int8_bytes, prepare_int8, lane_product<F>, unpack_row<F>}...};
#endif
  return find(kKernels, type);
}

const RowKernel* find_int8_kernel(const std::string& type) { return find_kernel(type, BlockTypes()); }

}  // namespace trigraph::TRIGRAPH_ISA
