#include "../dispatch.h"

namespace trigraph::TRIGRAPH_ISA {

const RowKernel* find_rare_kernel(const std::string& type) { return find_int8_kernel(type, RareTypes()); }

}  // namespace trigraph::TRIGRAPH_ISA
