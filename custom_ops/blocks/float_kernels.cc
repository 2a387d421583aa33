#include "float_rows.h"

namespace trigraph::TRIGRAPH_ISA {

using namespace native;

const RowKernel* find_float_kernel(const std::string& type) {
  const RowKernel* kernel = Kernels<PlainStep, PlainTypes>::find(type);
  return kernel ? kernel : Kernels<FloatStep, BlockTypes>::find(type);
}

}  // namespace trigraph::TRIGRAPH_ISA
