#include "row_kernel.h"

namespace trigraph::TRIGRAPH_ISA {

// nullptr: no kernel of that kind. Each kind is its own unit of compilation.
const RowKernel* find_float_kernel(const std::string& type);
const RowKernel* find_int8_kernel(const std::string& type);

const RowKernel& row_kernel(const std::string& type, const std::string& activations) {
  check_activations(activations);
  const RowKernel* kernel = activations == "int8" ? find_int8_kernel(type) : nullptr;
  if (!kernel) kernel = find_float_kernel(type);
  if (kernel) return *kernel;
  fail_type(type);
}

}  // namespace trigraph::TRIGRAPH_ISA
