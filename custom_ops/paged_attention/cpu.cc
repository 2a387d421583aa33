#include "../kernel.h"

namespace trigraph::TRIGRAPH_ISA {
namespace {

struct PagedAttention {
  static constexpr const char* kName = "PagedAttention";
  static constexpr Argument kInputs[] = {{"x", DType::f32}};
  static constexpr Argument kOutputs[] = {{"y", DType::f32}};
  explicit PagedAttention(const KernelInfo&) {}
  void compute(Context&) { fail("not implemented"); }
};

}  // namespace

const OrtCustomOp* paged_attention() {
  static const Op<PagedAttention> op;
  return &op;
}

}  // namespace trigraph::TRIGRAPH_ISA
