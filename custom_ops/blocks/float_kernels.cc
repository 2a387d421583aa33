#include "float_rows.h"

namespace trigraph::TRIGRAPH_ISA {

using namespace native;

const RowKernel* find_float_kernel(const std::string& type) {
  const RowKernel* kernel = Kernels<PlainStep, F32, F16, BF16>::find(type);
  return kernel ? kernel : Kernels<FloatStep, TRIGRAPH_BLOCK_TYPES>::find(type);
}

}  // namespace trigraph::TRIGRAPH_ISA
