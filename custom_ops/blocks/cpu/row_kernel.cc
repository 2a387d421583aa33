#include "row_kernel.h"

namespace trigraph::TRIGRAPH_ISA {

const RowKernel& row_kernel(const std::string& type, const std::string& activations) {
  check_activations(activations);
  if (activations == "int8")
    for (const auto find : {find_frequent_kernel, find_interleaved_kernel, find_rare_kernel})
      if (const RowKernel* kernel = find(type)) return *kernel;
  if (const RowKernel* kernel = TRIGRAPH_BASE::find_float_kernel(type)) return *kernel;
  fail_type(type);
}

}  // namespace trigraph::TRIGRAPH_ISA
