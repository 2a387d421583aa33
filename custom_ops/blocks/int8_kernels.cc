#include "int8_rows.h"

namespace trigraph::TRIGRAPH_ISA {

using namespace native;

const RowKernel* find_int8_kernel(const std::string& type) {
  return Kernels<Int8Step, BlockTypes>::find(type);
}

}  // namespace trigraph::TRIGRAPH_ISA
