#include "kernels.h"
#if defined(TRIGRAPH_ISA_portable)
#include "int8_products.h"
#else
#include "lane_products.h"
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

#if defined(TRIGRAPH_ISA_avx2) || defined(TRIGRAPH_ISA_avx512)
// Named after the rows that lie side by side.
#if defined(TRIGRAPH_ISA_avx512)
#define TRIGRAPH_REPACKED(type) #type "_R16"
#else
#define TRIGRAPH_REPACKED(type) #type "_R8"
#endif
template <class F>
constexpr RowKernel repacked(const char* type) {
  return {{type, F::kDType, F::kBlock, F::kBytes, kRowLanes}, int8_bytes, prepare_int8, lane_product<F, true>, nullptr};
}
const RowKernel* find_int8_kernel(const std::string& type) {
  static constexpr RowKernel kRepacked[] = {repacked<Q4_K>(TRIGRAPH_REPACKED(Q4_K)),
                                            repacked<Q5_K>(TRIGRAPH_REPACKED(Q5_K)),
                                            repacked<Q6_K>(TRIGRAPH_REPACKED(Q6_K))};
  const RowKernel* kernel = find(kRepacked, type);
  return kernel ? kernel : find_kernel(type, BlockTypes());
}
#else
const RowKernel* find_int8_kernel(const std::string& type) { return find_kernel(type, BlockTypes()); }
#endif

}  // namespace trigraph::TRIGRAPH_ISA
