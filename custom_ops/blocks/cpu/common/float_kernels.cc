#include "float_products.h"
#include "kernels.h"

namespace trigraph::TRIGRAPH_ISA {

template <class F>
static void unpack_row(const uint8_t* w, int64_t width, float* out) {
  for (int64_t start = 0; start < width; start += kSuper)
    unpack<F>(w + start / F::kBlock * F::kBytes, static_cast<int>(width - start < kSuper ? width - start : kSuper),
              out + start);
}

template <class... F>
static const RowKernel* find_kernel(const std::string& type, Types<F...>) {
  static constexpr RowKernel kKernels[] = {
      {weight_type<F>(), float_bytes, prepare_float, float_product<F>, unpack_row<F>}...};
  return find(kKernels, type);
}

const RowKernel* find_float_kernel(const std::string& type) {
  const RowKernel* kernel = find_kernel(type, PlainTypes());
  return kernel ? kernel : find_kernel(type, BlockTypes());
}

}  // namespace trigraph::TRIGRAPH_ISA
