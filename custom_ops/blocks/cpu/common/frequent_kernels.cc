#include "../dispatch.h"

namespace trigraph::TRIGRAPH_ISA {

const RowKernel* find_frequent_kernel(const std::string& type) { return find_int8_kernel(type, FrequentTypes()); }

}  // namespace trigraph::TRIGRAPH_ISA
